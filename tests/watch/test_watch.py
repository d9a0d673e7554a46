"""Programs that are watched without a change: whatever their end, the ledger ends there."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers.hanging import HANGS_AFTER

import memfit
from memfit.errors import ConfigError
from memfit.ledger import Ledger
from memfit.watch.launch import STARTUP, python_command, watched_environment
from memfit.watch.settings import WatchSettings

SCRIPT = """
    import sys
    import torch
    from torch import nn

    net = nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        net(torch.randn(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if "fail" in sys.argv:
        raise ValueError("bad luck")
    if "wait" in sys.argv:
        print("ready", flush=True)
        import time
        time.sleep(600)
    if "leave" in sys.argv:
        sys.exit(7)
"""


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(SCRIPT))
    return file


def environment(**more):
    return os.environ | {"PYTHONPATH": str(Path(memfit.__file__).parents[1])} | more


def watch(*words, folder):
    command = [sys.executable, "-m", "memfit", "watch", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment(), timeout=HANGS_AFTER)


def test_a_program_leaves_its_ledger_and_its_own_exit_status(script, tmp_path):
    done = watch(sys.executable, script, "leave", folder=tmp_path)
    assert done.returncode == 7, done.stderr
    ledger = Ledger.load(tmp_path / "run.memfit").check()
    assert ledger.info.complete
    assert len(ledger.step_numbers) == 3


def test_an_error_is_the_programs_own_and_in_the_ledger(script, tmp_path):
    done = watch("--save-to", "other.memfit", script, "fail", folder=tmp_path)
    assert done.returncode == 1
    assert "ValueError: bad luck" in done.stderr
    ledger = Ledger.load(tmp_path / "other.memfit").check()
    assert ledger.info.problem == "the program ended with ValueError: bad luck"
    assert len(ledger.step_numbers) == 3


@pytest.mark.skipif(not hasattr(signal, "SIGTERM") or sys.platform == "win32", reason="needs signals")
def test_a_signal_ends_the_program_and_the_ledger(script, tmp_path):
    command = [sys.executable, "-m", "memfit", "watch", sys.executable, str(script), "wait"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(timeout=HANGS_AFTER) == 128 + signal.SIGTERM
    assert Ledger.load(tmp_path / "run.memfit").check().info.problem == "the program was ended by SIGTERM"


def test_a_sitecustomize_of_the_users_own_is_run_too(script, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('mine')")
    path = os.pathsep.join((str(STARTUP), str(own), str(Path(memfit.__file__).parents[1])))
    found = environment(PYTHONPATH=path, MEMFIT=str(tmp_path / "run.memfit"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=found, timeout=HANGS_AFTER)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mine" in done.stdout
    assert Ledger.load(tmp_path / "run.memfit").check().info.complete


def test_a_program_without_torch_is_left_alone(tmp_path):
    file = tmp_path / "plain.py"
    file.write_text("import sys; assert 'torch' not in sys.modules and 'numpy' not in sys.modules")
    done = watch(sys.executable, file, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "never used CUDA" in done.stderr
    assert list(tmp_path.glob("*.memfit")) == []


def test_settings_that_make_no_sense_are_a_line_and_no_end(script, tmp_path):
    found = environment(PYTHONPATH=str(watched_environment(WatchSettings())["PYTHONPATH"]), MEMFIT="run.memfit every=often")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=found, cwd=tmp_path, timeout=HANGS_AFTER)
    assert done.returncode == 0
    assert done.stderr == "memfit: not watching: every must be a number of steps, not 'often'\n"


def test_settings_are_read_as_they_are_written():
    settings = WatchSettings(save_to=Path("a folder/run.memfit"), every=50, against=Path("predicted.memfit"))
    assert WatchSettings.parse(settings.to_text()) == settings
    assert WatchSettings.parse("") == WatchSettings()
    assert settings.retention_numbers() == {"every": 50}
    for wrong in ("run.memfit other.memfit", "run.memfit often=3"):
        with pytest.raises(ConfigError):
            WatchSettings.parse(wrong)


def test_a_script_alone_is_run_by_this_python():
    assert python_command(["train.py", "--lr", "1"]) == [sys.executable, "train.py", "--lr", "1"]
    assert python_command(["torchrun", "train.py"]) == ["torchrun", "train.py"]


def test_nothing_to_watch_and_nothing_to_compare_with_are_said(tmp_path):
    assert "nothing to watch" in watch(folder=tmp_path).stderr
    assert "predict the run first" in watch("--against", "none.memfit", "train.py", folder=tmp_path).stderr
    assert "cannot run 'no-such-program'" in watch("no-such-program", folder=tmp_path).stderr
