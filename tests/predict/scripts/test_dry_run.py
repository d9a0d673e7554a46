"""A dry run harms nothing: scripts write, delete and rename, on the overlay of the system, on that in Python, and on none."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.file_ways import BY_OTHER_PROGRAMS, WAYS, fill, script, state_of
from helpers.prepared_process import run_prepared

from memfit.overlay import namespace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process is forked")

DRIVER = """
import functools, sys
import memfit.cli
from memfit.predict.scripts import dry_run
dry_run.harmlessly = functools.partial(dry_run.harmlessly, by_system={by_system})
sys.exit(memfit.cli.main())
"""


def memfit_run(folder: Path, *flags: str, by_system: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs ``train.py`` beside the folder, in the folder."""
    options = ("--gpu", "T4", "--json", "--out", str(folder.parent / "run.memfit"), *flags)
    return run_prepared(DRIVER.format(by_system=by_system), "run", *options, str(folder.parent / "train.py"), cwd=folder)


def figures(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def system_gives_an_overlay(tmp_path_factory: pytest.TempPathFactory) -> bool:
    store = tmp_path_factory.mktemp("probe")
    child = os.fork()
    if child == 0:
        os._exit(0 if namespace.enter(str(store)) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- all ways ----------------------------------------------------------------------------------------------------------------


class Ran:
    """Folders before and after a script that goes all the ways, and what memfit said."""

    def __init__(self, root: Path, ways: dict[str, str], *flags: str, by_system: bool = True) -> None:
        folders = root / "folders"
        for way in ways:
            fill(folders / way)
        (root / "train.py").write_text(script(ways))
        self.before = {way: state_of(folders / way) for way in ways}
        self.figures = figures(memfit_run(folders, *flags, by_system=by_system))
        self.after = {way: state_of(folders / way) for way in ways}
        self.has_ledger = (root / "run.memfit").is_file()

    def said(self) -> str:
        return next((sentence for sentence in self.figures["assumptions"] if sentence.startswith("no file was changed")), "")


@pytest.fixture(scope="module")
def by_system(system_gives_an_overlay: bool, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    if not system_gives_an_overlay:
        pytest.skip("this system gives no overlay of its own")
    return Ran(tmp_path_factory.mktemp("by_system"), WAYS | BY_OTHER_PROGRAMS)


@pytest.fixture(scope="module")
def by_python(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("by_python"), WAYS, by_system=False)


UNWRITTEN = ("torch.save", "safetensors of the GPU", "save, replace, rotate, resume")
"""What has no data is not written to real files, and can then not be renamed either."""

HARMFUL = {way: code for way, code in (WAYS | BY_OTHER_PROGRAMS).items() if way not in UNWRITTEN}


@pytest.fixture(scope="module")
def by_nobody(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("by_nobody"), HARMFUL, "--write")


@pytest.mark.parametrize("way", [*WAYS, *BY_OTHER_PROGRAMS])
def test_the_system_keeps_a_folder_as_it_was(by_system: Ran, way: str):
    assert by_system.after[way] == by_system.before[way]


@pytest.mark.parametrize("way", WAYS)
def test_python_keeps_a_folder_as_it_was(by_python: Ran, way: str):
    assert by_python.after[way] == by_python.before[way]


@pytest.mark.parametrize("way", HARMFUL)
def test_with_write_the_script_does_as_it_says(by_nobody: Ran, way: str):
    """So the two proofs above can fail."""
    assert by_nobody.after[way] != by_nobody.before[way]


def test_the_verdict_says_who_kept_files_apart_and_the_ledger_is_real(by_system: Ran, by_python: Ran, by_nobody: Ran):
    assert "the operating system kept apart" in by_system.said()
    assert "Python kept apart" in by_python.said()
    assert "not held back" in by_python.said()
    assert by_nobody.said() == ""
    assert (by_system.has_ledger, by_python.has_ledger, by_nobody.has_ledger) == (True, True, True)


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
@pytest.mark.parametrize("keeper", ["system", "python", "nobody"])
def test_frameworks_keep_older_checkpoints(code: str, needs: str, keeper: str, tmp_path: Path):
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    folder = tmp_path / "folder"
    folder.mkdir()
    older_checkpoints(folder)
    before = state_of(folder)
    (tmp_path / "train.py").write_text(code)
    flags = ["--write"] if keeper == "nobody" else []
    done = memfit_run(folder, "--steps", "3", *flags, by_system=keeper == "system")
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

os.remove("cache/0.txt")
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2):
    assert open("cache/0.txt").read() == "by a worker"
    model(batch.cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("by_system", [True, False], ids=["system", "python"])
def test_workers_of_data_loaders_write_to_the_overlay_too(by_system: bool, tmp_path: Path):
    folder = tmp_path / "folder"
    (folder / "cache").mkdir(parents=True)
    (folder / "cache" / "0.txt").write_text("before")
    before = state_of(folder)
    (tmp_path / "train.py").write_text(LOADING)
    figures(memfit_run(folder, by_system=by_system))
    assert state_of(folder) == before


def test_a_script_that_dies_is_told_and_leaves_nothing(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "train.py").write_text(f"import os\nopen('x', 'w')\nos.kill(os.getpid(), {int(signal.SIGSEGV)})\n")
    done = memfit_run(folder)
    assert (done.returncode, done.stderr) == (2, "memfit: error: the process that ran the script died (signal 11)\n")
    assert list(folder.iterdir()) == []


BEYOND = """
import errno, os
import torch
from memfit.overlay import in_force

print("on", in_force())
if "operating system" in in_force():
    raise OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW))
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(1, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_where_the_system_cannot_do_it_python_does(system_gives_an_overlay: bool, tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "train.py").write_text(BEYOND)
    done = memfit_run(folder)
    assert any("Python kept apart" in sentence for sentence in figures(done)["assumptions"])
    assert ("it cannot change files of another user" in done.stderr) == system_gives_an_overlay
