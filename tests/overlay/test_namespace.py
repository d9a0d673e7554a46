"""The overlay of the operating system, as root and as somebody who may only make user namespaces."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.file_ways import state_of

from memfit.overlay import namespace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

NO_OVERLAY, FAILED = 3, 1


def in_a_child(work: Callable[[], None]) -> int:
    """The exit status of a forked process that does it."""
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            work()
            status = 0
        except SystemExit as leaving:
            status = int(leaving.code or 0)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refuse_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who may not make a mount namespace without a user namespace."""
    call = namespace._call

    def refusing(name: str, *args: object) -> None:
        if name == "unshare" and args == (namespace._CLONE_NEWNS,):
            raise PermissionError
        call(name, *args)

    monkeypatch.setattr(namespace, "_call", refusing)


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "user"])
def test_what_is_written_is_seen_inside_alone(is_root: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not is_root:
        refuse_root(monkeypatch)
    folder, store = tmp_path / "folder", tmp_path / "store"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "file").write_text("before")
    store.mkdir()
    before = state_of(folder)
    monkeypatch.chdir(folder)

    def work() -> None:
        user = os.getuid()
        if not namespace.enter(str(store)):
            raise SystemExit(NO_OVERLAY)
        assert os.getcwd() == str(folder)
        assert os.getuid() == user
        Path("sub/file").write_text("after")
        os.remove("sub/file")
        os.rmdir("sub")
        Path("new").write_text("after")
        Path("/dev/shm/memfit-test").touch()
        Path("/dev/null").write_text("nothing")
        assert os.path.exists("/proc/self/status")

    status = in_a_child(work)
    if status == NO_OVERLAY:
        pytest.skip("this system gives none")
    assert status == 0
    assert state_of(folder) == before
    assert not os.path.exists("/dev/shm/memfit-test")


def test_mounted_files_and_disks_of_a_desktop_are_kept_and_run_cannot_be_written(tmp_path: Path):
    """A file mounted alone, as docker does it, a disk below /run/media, and /run itself."""
    (tmp_path / "store").mkdir()
    (tmp_path / "real").write_text("before")
    (tmp_path / "bound").touch()

    def work() -> None:
        try:
            namespace._call("unshare", namespace._CLONE_NEWNS)
        except PermissionError:
            raise SystemExit(NO_OVERLAY) from None
        namespace._mount(None, "/", None, namespace._MS_REC | namespace._MS_PRIVATE)
        namespace._mount("tmpfs", "/run", "tmpfs", 0)
        disk = Path("/run/media/me/disk")
        disk.mkdir(parents=True)
        namespace._mount("tmpfs", str(disk), "tmpfs", 0)
        (disk / "file").write_text("before")
        namespace._mount(str(tmp_path / "real"), str(tmp_path / "bound"), None, namespace._MS_BIND)
        real = os.open(tmp_path / "real", os.O_RDONLY), os.open(disk / "file", os.O_RDONLY)
        if not namespace.enter(str(tmp_path / "store")):
            raise SystemExit(NO_OVERLAY)
        for path in (tmp_path / "bound", disk / "file"):
            path.write_text("after!")
            assert path.read_text() == "after!"
        assert [os.read(number, 10) for number in real] == [b"before", b"before"]
        with pytest.raises(OSError, match="Read-only"):
            Path("/run/file").touch()
        Path("/dev/null").write_text("nothing")

    status = in_a_child(work)
    if status == NO_OVERLAY:
        pytest.skip("this system lets nobody mount")
    assert status == 0
    assert (tmp_path / "real").read_text() == "before"


def test_where_it_is_refused_enter_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(name: str, *args: object) -> None:
        raise PermissionError

    monkeypatch.setattr(namespace, "_call", refuse)
    assert not namespace.enter(str(tmp_path))


@pytest.mark.parametrize(
    ("line", "mount"),
    [
        ("27 1 254:0 / / rw,relatime - ext4 /dev/vda rw", namespace.Mount("/", "ext4", False)),
        ("9 1 0:3 / /a\\040b ro shared:1 - nfs4 host:/x rw", namespace.Mount("/a b", "nfs4", True)),
        ("9 1 0:3 / /cafe\u0301 rw master:1 - squashfs none ro,x=y", namespace.Mount("/cafe\u0301", "squashfs", True)),
    ],
)
def test_lines_of_mountinfo(line: str, mount: namespace.Mount):
    assert namespace.Mount.parse(line) == mount
