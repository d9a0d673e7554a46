"""A dry run harms nothing: scripts write, delete and rename, on the system's overlay, behind the fence, on none."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.file_ways import BY_OTHER_PROGRAMS, WAYS, fill, script, state_of
from helpers.prepared_process import run_prepared

from memfit.overlay.state import BY_FENCE, BY_SYSTEM
from memfit.predict.scripts.dry_run import protecting_keepers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process is forked")

DRIVER = """
import sys
import memfit.cli
from memfit.overlay import fence, namespace
for keeper in {refused}:
    keeper.enter = lambda *folders: False
sys.exit(memfit.cli.main())
"""

REFUSED = {"system": "()", "fence": "(namespace,)", "python": "(namespace, fence)"}
"""What this system must be without, for each keeper to be chosen."""


def memfit_run(folder: Path, *flags: str, keeper: str = "system") -> subprocess.CompletedProcess[str]:
    """Runs ``train.py`` beside the folder, in the folder."""
    options = ("--gpu", "T4", "--json", "--out", str(folder.parent / "run.memfit"), *flags)
    return run_prepared(DRIVER.format(refused=REFUSED[keeper]), "run", *options, str(folder.parent / "train.py"), cwd=folder)


def figures(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def keepers() -> dict[str, bool]:
    """Which of them this system has; one at least, or nothing here would be tested."""
    found = list(protecting_keepers())
    assert found, "this system has neither mount namespaces nor Landlock"
    return {"system": BY_SYSTEM in found, "fence": BY_FENCE in found, "nobody": True}


# -- all ways ----------------------------------------------------------------------------------------------------------------


class Ran:
    """Folders before and after a script that goes all the ways, and what memfit said."""

    def __init__(self, root: Path, ways: dict[str, str], *flags: str, keeper: str = "system") -> None:
        folders = root / "folders"
        for way in ways:
            fill(folders / way)
        (root / "train.py").write_text(script(ways))
        self.before = {way: state_of(folders / way) for way in ways}
        done = memfit_run(folders, *flags, keeper=keeper)
        self.figures, self.err = figures(done), done.stderr
        self.after = {way: state_of(folders / way) for way in ways}
        self.has_ledger = (root / "run.memfit").is_file()

    def said(self) -> str:
        return next((sentence for sentence in self.figures["assumptions"] if "changed" in sentence), "")


@pytest.fixture(scope="module")
def by_system(keepers: dict[str, bool], tmp_path_factory: pytest.TempPathFactory) -> Ran:
    if not keepers["system"]:
        pytest.skip("this system gives no overlay of its own")
    return Ran(tmp_path_factory.mktemp("by_system"), WAYS | BY_OTHER_PROGRAMS | BELOW_PYTHON)


@pytest.fixture(scope="module")
def by_fence(keepers: dict[str, bool], tmp_path_factory: pytest.TempPathFactory) -> Ran:
    if not keepers["fence"]:
        pytest.skip("this system has no Landlock")
    ways = WAYS | {way: REFUSING + indented(code) for way, code in (BY_OTHER_PROGRAMS | BELOW_PYTHON).items()}
    return Ran(tmp_path_factory.mktemp("by_fence"), ways, keeper="fence")


@pytest.fixture(scope="module")
def by_python(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("by_python"), WAYS, "--unprotected", keeper="python")


UNWRITTEN = ("torch.save", "safetensors of the GPU", "save, replace, rotate, resume")
"""What has no data is not written to real files, and can then not be renamed either."""

BELOW_PYTHON = {
    "io.FileIO": "import io; f = io.FileIO('log.txt', 'w'); f.write(b'GONE'); f.close()",
    "posix": "import posix; posix.unlink('log.txt')",
    "the working directory's other name": "open('/proc/self/cwd/log.txt', 'w').write('x')",
    "a mode by number": "n = os.open('log.txt', os.O_RDONLY); os.fchmod(n, 0); os.close(n)",
    "C": "import ctypes; assert ctypes.CDLL(None).unlink(b'log.txt') == 0",
    "a database that is attached": "c = sqlite3.connect(':memory:'); c.execute(\"attach 'log.db' as d\"); "
    "c.execute('create table d.z (a)'); c.commit(); c.close()",
}
"""Ways past Python's file functions."""

REFUSING = """
try:
"""


def indented(code: str) -> str:
    """As the body of a ``try`` whose errors are those of the fence."""
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    return lines + "except (OSError, AssertionError, sqlite3.Error, subprocess.CalledProcessError):\n    pass\n"


HARMFUL = {way: code for way, code in (WAYS | BY_OTHER_PROGRAMS | BELOW_PYTHON).items() if way not in UNWRITTEN}


@pytest.fixture(scope="module")
def by_nobody(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("by_nobody"), HARMFUL, "--write")


@pytest.mark.parametrize("way", [*WAYS, *BY_OTHER_PROGRAMS, *BELOW_PYTHON])
def test_the_system_keeps_a_folder_as_it_was(by_system: Ran, way: str):
    assert by_system.after[way] == by_system.before[way]


@pytest.mark.parametrize("way", [*WAYS, *BY_OTHER_PROGRAMS, *BELOW_PYTHON])
def test_the_fence_keeps_a_folder_as_it_was(by_fence: Ran, way: str):
    assert by_fence.after[way] == by_fence.before[way]


@pytest.mark.parametrize("way", WAYS)
def test_python_keeps_a_folder_as_it_was(by_python: Ran, way: str):
    assert by_python.after[way] == by_python.before[way]


@pytest.mark.parametrize("way", HARMFUL)
def test_with_write_the_script_does_as_it_says(by_nobody: Ran, way: str):
    """So the proofs above can fail."""
    assert by_nobody.after[way] != by_nobody.before[way]


def test_what_is_not_held_back_is_said_before_and_after_by_the_system(by_system: Ran):
    assert by_system.err.startswith(
        "memfit: dry run: what the script writes is thrown away; the network and devices are not held back"
    )
    assert by_system.said().startswith("no file was changed: the operating system kept apart")
    assert by_system.has_ledger


def test_what_is_not_held_back_is_said_before_and_after_by_the_fence(by_fence: Ran):
    assert by_fence.err.startswith("memfit: dry run: what Python writes is thrown away, and what other programs")
    assert by_fence.said().startswith("no file was changed: Python kept apart")
    assert by_fence.has_ledger


def test_without_protection_nothing_is_promised(by_python: Ran, by_nobody: Ran):
    assert by_python.err.startswith("memfit: NOT PROTECTED")
    assert by_python.said().startswith("files may have been changed")
    assert by_nobody.said() == ""
    assert by_python.has_ledger
    assert by_nobody.has_ledger


def test_where_nothing_protects_files_the_script_is_not_started(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "train.py").write_text("open('started', 'w')")
    done = memfit_run(folder, keeper="python")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--unprotected" in done.stderr
    assert list(folder.iterdir()) == []


READS_IN_ANOTHER_PROGRAM = """
import multiprocessing, os
if __name__ == "__main__":
    open("log.txt", "w").close()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(os.remove, ["log.txt"])
"""


@pytest.mark.parametrize("source", ["import io\nio.FileIO('log.txt', 'w')", READS_IN_ANOTHER_PROGRAM], ids=["writes", "reads"])
def test_a_script_that_the_fence_stops_is_told_why(keepers: dict[str, bool], tmp_path: Path, source: str):
    if not keepers["fence"]:
        pytest.skip("this system has no Landlock")
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "train.py").write_text(source)
    done = memfit_run(folder, keeper="fence")
    assert done.returncode == 2
    assert "C libraries and other programs may not write" in done.stderr


# -- frameworks --------------------------------------------------------------------------------------------------------------

TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 100, (16,))
        return {"input_ids": tokens, "labels": tokens}

model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100))
args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, max_steps=50, report_to=[],
                         save_steps=1, save_total_limit=1)
Trainer(model=model, args=args, train_dataset=Data()).train()
"""

LIGHTNING = """
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def training_step(self, batch, index):
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 64)), batch_size=8)
saving = ModelCheckpoint(dirpath="out", filename="{step}", every_n_train_steps=1, save_top_k=1, save_last=True,
                         enable_version_counter=False)
trainer = lightning.Trainer(accelerator="gpu", devices=1, max_epochs=5, logger=CSVLogger("logs", flush_logs_every_n_steps=1),
                            log_every_n_steps=1, callbacks=[saving], enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Module(), loader)
"""


def older_checkpoints(folder: Path) -> None:
    for name in ("checkpoint-1", "checkpoint-2", "checkpoint-100"):
        (folder / "out" / name).mkdir(parents=True)
        (folder / "out" / name / "model.safetensors").write_text("a week of work")
    for name in ("last.ckpt", "step=1.ckpt", "step=2.ckpt"):
        (folder / "out" / name).write_text("another week")


@pytest.mark.parametrize(("code", "needs"), [(TRAINER, "transformers"), (LIGHTNING, "lightning")], ids=["trainer", "lightning"])
@pytest.mark.parametrize("keeper", ["system", "fence", "nobody"])
def test_frameworks_keep_older_checkpoints(code: str, needs: str, keeper: str, keepers: dict[str, bool], tmp_path: Path):
    if not keepers[keeper]:
        pytest.skip("this system has none")
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    folder = tmp_path / "folder"
    folder.mkdir()
    older_checkpoints(folder)
    before = state_of(folder)
    (tmp_path / "train.py").write_text(code)
    flags = ["--write"] if keeper == "nobody" else []
    done = memfit_run(folder, "--steps", "3", *flags, keeper="system" if keeper == "nobody" else keeper)
    if keeper == "nobody":  # it may fail on files that were not written
        assert state_of(folder) != before
    else:
        assert figures(done)["peak_allocated"] > 0
        assert state_of(folder) == before


# -- processes ---------------------------------------------------------------------------------------------------------------

LOADING = """
import os
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        with open(f"cache/{index}.txt", "w") as file:
            file.write("by a worker")
        return torch.ones(64)

if __name__ == "__main__":  # workers that are not forked import it: from Python 3.14 on, all of them
    os.remove("cache/0.txt")
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2):
        assert open("cache/0.txt").read() == "by a worker"
        model(batch.cuda()).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("keeper", ["system", "fence"])
def test_workers_of_data_loaders_write_to_the_overlay_too(keeper: str, keepers: dict[str, bool], tmp_path: Path):
    if not keepers[keeper]:
        pytest.skip("this system has none")
    folder = tmp_path / "folder"
    (folder / "cache").mkdir(parents=True)
    (folder / "cache" / "0.txt").write_text("before")
    before = state_of(folder)
    script = LOADING if keeper == "system" else LOADING.replace("num_workers=2", "num_workers=2, multiprocessing_context='fork'")
    (tmp_path / "train.py").write_text(script)  # the fence refuses what a Python that is started anew writes
    figures(memfit_run(folder, keeper=keeper))
    assert state_of(folder) == before


def test_a_script_that_dies_is_told_and_leaves_nothing(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "train.py").write_text(f"import os\nopen('x', 'w')\nos.kill(os.getpid(), {int(signal.SIGSEGV)})\n")
    done = memfit_run(folder)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "memfit: error: the process that ran the script died (signal 11)"
    assert list(folder.iterdir()) == []


BEYOND = """
import errno, os
import torch
from memfit.overlay import in_force

if "operating system kept" in in_force().after:
    raise OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW))
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_where_the_systems_overlay_cannot_do_it_the_fence_is_taken(keepers: dict[str, bool], tmp_path: Path):
    if not (keepers["system"] and keepers["fence"]):
        pytest.skip("this system has only one of them")
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "train.py").write_text(BEYOND)
    done = memfit_run(folder)
    assert any("Python kept apart" in sentence for sentence in figures(done)["assumptions"])
    assert "it cannot change files of another user" in done.stderr
