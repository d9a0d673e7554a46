"""The fence: nothing outside one folder can be written, whoever tries; inside it everything can."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.file_ways import state_of

from memfit.overlay import fence

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

NO_FENCE, FAILED = 3, 1

VERSIONS = (1, 2, 3, None)
"""Of Landlock: older ones refuse less, and the filter more."""


def behind_the_fence(folder: Path, work: Callable[[], None]) -> None:
    """Forks a process that does it in ``folder/outside``, with ``folder/kept`` for its own."""
    (folder / "kept").mkdir()
    (folder / "proof").touch()
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            os.chdir(folder / "outside")
            if fence.enter(str(folder / "kept"), str(folder / "proof")):
                work()
                status = 0
            else:
                status = NO_FENCE
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == NO_FENCE:
        pytest.skip("this system gives none")
    assert status == 0


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(PermissionError):
        act()


def every_way() -> None:
    """Python below its file functions, C, other programs, attributes."""
    library = ctypes.CDLL(None)
    number = os.open("file", os.O_RDONLY)
    refused(lambda: os.open("file", os.O_WRONLY))
    refused(lambda: os.open("file", os.O_RDONLY | os.O_TRUNC))
    refused(lambda: os.open(f"/proc/self/fd/{number}", os.O_WRONLY))
    refused(lambda: os.truncate("file", 0))
    refused(lambda: os.unlink("file"))
    refused(lambda: os.rename("file", "other"))
    refused(lambda: os.symlink("file", "link"))
    refused(lambda: os.link("file", "link"))
    refused(lambda: os.mkdir("folder"))
    refused(lambda: os.mknod("node"))
    assert library.open(b"file", os.O_WRONLY) < 0
    assert library.unlink(b"file") < 0
    os.fchmod(number, 0)
    os.chmod("file", 0)
    os.utime("file", (1, 1))
    os.chown("file", os.getuid(), os.getgid())
    with pytest.raises(OSError, match="not supported"):
        os.setxattr("file", "user.a", b"1")
    for command in (
        "rm file",
        "echo x > file",
        "echo x >> file",
        "mv file other",
        "cp file other",
        "chmod 0 file",
        "chattr +i file",
    ):
        subprocess.run(command, shell=True, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_way_leads_out(version: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if version is not None:
        found = fence._version()
        monkeypatch.setattr(fence, "_version", lambda: min(found, version))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("before")
    before = state_of(outside)
    behind_the_fence(tmp_path, every_way)
    assert state_of(outside) == before
    assert (tmp_path / "proof").exists()


def test_inside_and_on_devices_everything_is_possible(tmp_path: Path):
    (tmp_path / "outside").mkdir()

    def work() -> None:
        import multiprocessing

        os.chdir("../kept")
        Path("folder").mkdir()
        Path("file").write_text("new")
        os.rename("file", "other")
        os.truncate("other", 1)
        subprocess.run("cp other folder/file; echo x > /dev/null", shell=True, check=True)
        assert Path("folder/file").read_text() == "n"
        multiprocessing.get_context("fork").Lock().acquire()  # in /dev/shm

    behind_the_fence(tmp_path, work)


def test_where_it_is_refused_enter_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fence, "_version", lambda: 0)
    assert not fence.enter(str(tmp_path), str(tmp_path / "proof"))


def test_a_fence_that_does_not_hold_is_none(tmp_path: Path):
    """So the proof can fail: here nothing was put up."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "proof").touch(mode=0o600)
    with pytest.raises(OSError, match="does not hold"):
        fence._prove(str(tmp_path / "kept"), str(tmp_path / "proof"))
