"""macOS and Windows, as far as Linux can stand in for them: what only Linux has is taken away, and memfit works without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import memfit
from memfit.errors import ConfigError
from memfit.workers import executors, forking, lanes

WHAT_OTHERS_NEED = """
import sysconfig
import torch, torch._dynamo, torch.distributed.fsdp, torch.distributed.run, transformers, lightning.pytorch

sysconfig.get_config_vars()
"""

TAKEN_AWAY = """
import os, signal, sys

GONE = ("fcntl", "resource", "pwd", "grp", "termios")

class NotHere:
    def find_spec(self, name, path=None, target=None):
        if name in GONE:
            raise ImportError(f"there is no {name} on this system")

sys.meta_path.insert(0, NotHere())
for name in GONE:
    sys.modules.pop(name, None)
for owner, names in {
    os: ("fork", "forkpty", "killpg", "sched_getaffinity", "register_at_fork", "uname", "geteuid", "getuid", "waitid", "wait"),
    signal: ("SIGKILL", "SIGALRM", "SIGHUP", "SIGUSR1", "alarm", "setitimer", "pthread_kill"),
}.items():
    for name in names:
        delattr(owner, name)
sys.platform = sys.argv[1]
if sys.platform == "win32":  # what shutil.which asks of Windows, from Python 3.12 on
    import shutil
    from types import SimpleNamespace
    shutil._winapi = SimpleNamespace(NeedCurrentDirectoryForExePath=lambda path: False)
"""

EVERY_MODULE_AND_A_PREDICTION = """
import importlib, pkgutil
import memfit

for module in pkgutil.walk_packages(memfit.__path__, "memfit."):
    if not module.name.endswith("._engine"):  # the library in C is no module of Python's
        importlib.import_module(module.name)

def build():
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step

print(int(memfit.predict(build, gpu="T4").peak_allocated))
"""


ON_EACH = """
import os, sys

for platform in sys.argv[1:]:
    if os.fork() == 0:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{platform}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        if platform != sys.platform:
            sys.argv[1] = platform
            exec(TAKEN_AWAY)
        exec(EVERY_MODULE_AND_A_PREDICTION)
        break
    os.wait()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is printed on each platform; libraries that have their own ways there are imported before anything is taken away."""
    folder = tmp_path_factory.mktemp("platforms")
    constants = f"TAKEN_AWAY, EVERY_MODULE_AND_A_PREDICTION = {TAKEN_AWAY!r}, {EVERY_MODULE_AND_A_PREDICTION!r}\n"
    code = WHAT_OTHERS_NEED + constants + ON_EACH
    subprocess.run([sys.executable, "-c", code, "linux", "darwin", "win32"], cwd=folder, check=True)
    return folder


def run(code: str, platform: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, platform], capture_output=True, text=True)


@pytest.mark.skipif(sys.platform != "linux", reason="takes from Linux what only Linux has")
@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_everything_is_imported_and_a_prediction_made(folder, platform):
    here, elsewhere = ((folder / f"{name}.out").read_text() for name in ("linux", platform))
    assert int(here) > 0
    assert elsewhere == here, (folder / f"{platform}.err").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="takes from Linux what only Linux has")
@pytest.mark.parametrize("code", ["import fcntl", "os.fork()", "signal.SIGKILL", "os.sched_getaffinity(0)"])
def test_the_proof_can_fail(code):
    assert run(code if code.startswith("import") else f"import os, signal; {code}", "linux").returncode == 0
    assert run(TAKEN_AWAY + code, "win32").returncode == 1


class LaneWithoutFork(lanes.WorkerLane):
    command = (
        sys.executable,
        "-c",
        "from memfit.workers import lanes; lanes.CAN_FORK = False; from memfit.workers import worker; worker.main()",
        "memfit.predict.cells",
    )


def test_cells_are_predicted_without_fork(monkeypatch):
    """A worker that has answered is not asked again: it may still be ending when the next job comes."""
    monkeypatch.setattr(lanes, "CAN_FORK", False)
    monkeypatch.setattr(executors, "WorkerLane", LaneWithoutFork)
    job = {"model": "no-such-model"}
    with executors.open_runner("processes:1") as runner:
        found = [future.result() for future in [runner.submit(job), runner.submit(job), runner.submit(job)]]
    assert [sorted(answer) for answer in found] == [["details", "error", "is_lasting"]] * 3
    assert not [answer for answer in found if "no answer" in answer["error"]]


def test_a_dead_worker_is_described_on_windows(monkeypatch):
    monkeypatch.delattr(lanes.signal, "SIGKILL")
    assert lanes.died(3) == "its process ended with status 3 and no answer"


def build():
    model = nn.Linear(64, 64).cuda()
    return lambda: model(torch.ones(8, 64, device="cuda")).sum().backward()


def test_without_fork_the_process_itself_predicts_and_says_so(monkeypatch):
    expected = memfit.predict(build, gpu="T4", steps=1).peak_allocated
    monkeypatch.setattr(forking, "CAN_FORK", False)
    monkeypatch.setattr(forking.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.warns(
        UserWarning, match=r"^macOS can make predictions only in the process itself: .*memfit predict FILE.py:FUNCTION$"
    ):
        assert memfit.predict(build, gpu="T4", steps=1).peak_allocated == expected


def test_without_fork_a_process_that_used_its_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(forking, "CAN_FORK", False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ConfigError, match="predict before the first work on the GPU"):
        memfit.predict(build, gpu="T4", steps=1)
