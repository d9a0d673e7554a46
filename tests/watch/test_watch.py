"""Programs that are watched without a change: whatever their end, the ledger ends there."""

import contextlib
import json
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
from memfit.watch.launch import STARTUP, program_environment, python_command
from memfit.watch.settings import VARIABLE, WatchSettings

SCRIPT = """
    import os
    import sys
    import torch
    from torch import nn

    if "stacks" in sys.argv:
        import faulthandler, signal
        faulthandler.register(signal.SIGUSR1)
    if "handler" in sys.argv:
        import signal
        def handle(number, frame):
            print(signal.Signals(number).name, flush=True)
            if number == signal.SIGTERM:
                sys.exit(5)
        for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handle)
    net = nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        net(torch.randn(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if "fail" in sys.argv:
        raise ValueError("bad luck")
    if "wait" in sys.argv or "handler" in sys.argv:
        print("ready", flush=True)
        import time
        time.sleep(600)
    if "stuck" in sys.argv:
        import ctypes, threading, time
        main = threading.get_native_id()
        def tell():
            looks = 0
            while looks < 3:  # it sleeps for good: nothing else makes it wait for longer than a look
                time.sleep(0.05)
                with open(f"/proc/self/task/{main}/stat") as file:
                    looks = looks + 1 if file.read().rpartition(")")[2].split()[0] == "S" else 0
            print("ready", flush=True)
        threading.Thread(target=tell, daemon=True).start()
        lock = ctypes.create_string_buffer(64)
        while True:  # the second call never returns
            ctypes.CDLL(None).pthread_mutex_lock(lock)
    if "stacks" in sys.argv:
        import time
        print("ready", flush=True)
        time.sleep(600)
    if "out of memory" in sys.argv and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
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


needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="needs signals")


@contextlib.contextmanager
def watching(script, *words, folder):
    """A watched program that has said that it is ready."""
    command = [sys.executable, "-m", "memfit", "watch", sys.executable, str(script), *words]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment(), start_new_session=True, **output) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)  # the program too, which outlives a watch that is killed


def program_of(process):
    """The process that ``memfit watch`` has started."""
    return int(subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(process.pid)], text=True).split()[0])


@needs_signals
def test_a_signal_ends_the_program_and_the_ledger(script, tmp_path):
    with watching(script, "wait", folder=tmp_path) as process:
        process.terminate()
        assert process.wait(timeout=HANGS_AFTER) == 128 + signal.SIGTERM
    assert Ledger.load(tmp_path / "run.memfit").check().info.problem == "the program was ended by SIGTERM"


@needs_signals
def test_a_program_that_is_stuck_in_c_ends_all_the_same(script, tmp_path):
    with watching(script, "stuck", folder=tmp_path) as process:
        process.terminate()
        assert process.wait(timeout=HANGS_AFTER) == 128 + signal.SIGTERM
    ledger = Ledger.load(tmp_path / "run.memfit").check()
    assert ledger.info.problem == "the program was ended by SIGTERM while it was stuck"
    assert len(ledger.step_numbers) == 3


@needs_signals
def test_every_signal_is_handed_on_once(script, tmp_path):
    with watching(script, "handler", folder=tmp_path) as process:
        for name in ("SIGUSR1", "SIGHUP", "SIGQUIT", "SIGINT"):
            process.send_signal(getattr(signal, name))
            assert process.stdout.readline() == f"{name}\n"
        process.terminate()
        assert process.stdout.read() == "SIGTERM\n"
        assert process.wait(timeout=HANGS_AFTER) == 5


@needs_signals
def test_a_handler_in_c_stays(script, tmp_path):
    with watching(script, "stacks", folder=tmp_path) as process:
        process.send_signal(signal.SIGUSR1)
        assert "most recent call first" in process.stdout.readline()
        assert process.poll() is None


@needs_signals
def test_ctrl_c_on_a_terminal_comes_once(script, tmp_path):
    import pty

    program = tmp_path / "interrupted.py"
    program.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda number, frame: print('interrupted', flush=True))\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    sys.exit(3)\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, [sys.executable, "-m", "memfit", "watch", sys.executable, str(program)], environment())
    told = b""
    for awaited, typed in ((b"ready", b"\x03"), (b"interrupted", b"enough\n")):
        while awaited not in told:
            told += os.read(terminal, 1000)
        os.write(terminal, typed)
    with contextlib.suppress(OSError):  # the other end is closed
        while more := os.read(terminal, 1000):
            told += more
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert told.count(b"interrupted") == 1


@needs_signals
def test_a_fork_of_a_watched_program_does_not_speak_for_it(script, tmp_path):
    """A data loader ends its workers by SIGTERM."""
    forking = "\nimport signal, time\nchild = os.fork()\nif child == 0:\n    time.sleep(600)\nos.kill(child, signal.SIGTERM)\n"
    waits = "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM\ntime.sleep(2.5)\n"
    script.write_text(script.read_text() + forking + waits)
    done = watch(script, folder=tmp_path)
    assert done.returncode == 0
    if sys.version_info[:2] != (3, 13):  # it warns of our threads, which it counts when they are back
        assert done.stderr == ""
    assert Ledger.load(tmp_path / "run.memfit").check().info.complete


def test_nothing_that_is_there_is_replaced(script, tmp_path):
    (tmp_path / "run.rank0.memfit").write_text("an older run")
    assert "this run is recorded in run-2.memfit" in watch(script, folder=tmp_path).stderr
    found = environment(PYTHONPATH=str(program_environment({})["PYTHONPATH"]), MEMFIT="run-2.memfit")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=found, cwd=tmp_path, timeout=HANGS_AFTER)
    assert done.stderr == "memfit: run-2.memfit is there already: this run is recorded in run-2-2.memfit\n"
    assert (tmp_path / "run.rank0.memfit").read_text() == "an older run"
    assert sorted(path.name for path in tmp_path.glob("*.memfit")) == ["run-2-2.memfit", "run-2.memfit", "run.rank0.memfit"]


def test_a_command_that_records_nothing_beside_an_older_run_is_told_so(tmp_path):
    (tmp_path / "run.memfit").write_text("an older run")
    assert "nothing was recorded" in watch(sys.executable, "-c", "pass", folder=tmp_path).stderr


def test_a_restart_leaves_the_attempt_that_ran_out_of_memory(script, tmp_path):
    for attempt in ("0", "1"):
        found = environment(
            PYTHONPATH=str(program_environment({})["PYTHONPATH"]),
            MEMFIT="run.memfit",
            TORCHELASTIC_RESTART_COUNT=attempt,
        )
        command = [sys.executable, script, "out of memory"]
        subprocess.run(command, capture_output=True, env=found, cwd=tmp_path, timeout=HANGS_AFTER)
    assert Ledger.load(tmp_path / "run.memfit").info.failure
    assert not Ledger.load(tmp_path / "run.restart1.memfit").info.failure


@needs_signals
def test_a_run_that_goes_on_is_not_called_ended(script, tmp_path):
    def status():
        told = subprocess.check_output(
            [sys.executable, "-m", "memfit", "top", "--json", "run.memfit"], cwd=tmp_path, env=environment()
        )
        found = json.loads(told)
        return found["is_running"], found["problem"]

    with watching(script, "wait", folder=tmp_path) as process:
        assert status() == (True, "")
        assert Ledger.load(tmp_path / "run.memfit").info.problem.startswith("the run goes on")
        os.kill(program_of(process), signal.SIGKILL)
        process.wait(timeout=HANGS_AFTER)
    is_running, problem = status()
    assert not is_running
    assert problem.startswith("the process ended before")


def test_a_folder_in_place_of_a_file_is_said(script, tmp_path):
    (tmp_path / "folder").mkdir()
    found = environment(PYTHONPATH=str(program_environment({})["PYTHONPATH"]), MEMFIT="folder")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=found, cwd=tmp_path, timeout=HANGS_AFTER)
    assert (done.returncode, "folder, a folder" in done.stderr) == (0, True)
    assert list(tmp_path.glob("folder*")) == [tmp_path / "folder"]


def test_a_python_without_torch_imports_almost_nothing_of_memfit(tmp_path):
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith(('memfit', 'typing', 'dataclasses'))))"
    found = program_environment({VARIABLE: WatchSettings(save_to=tmp_path / "run.memfit").to_text()})
    told = subprocess.check_output([sys.executable, "-S", "-c", "import sitecustomize; " + code], text=True, env=found)
    assert told.strip() == "['memfit', 'memfit.watch', 'memfit.watch.program']"


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
    found = environment(PYTHONPATH=str(program_environment({})["PYTHONPATH"]), MEMFIT="run.memfit every=often")
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
