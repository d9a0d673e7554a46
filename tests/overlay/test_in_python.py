"""The overlay in Python: whatever is done to files, the run sees what it would see for real, and nothing of before has changed."""

from __future__ import annotations

import errno
import functools
import io
import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.file_ways import state_of
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.overlay.in_python import keeping_apart
from memfit.torch_compat.patches import active_patches

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the overlay knows no drives")

NAMES = ("a", "b", "sub", "sub/c", "sub/deep", "sub/deep/d", "link", "way", "way/c", "new/e", "new")


def write(path: str, other: str) -> object:
    with open(path, "w", encoding="ascii") as file:
        return file.write("written")


def append(path: str, other: str) -> object:
    with open(path, "a", encoding="ascii") as file:
        return file.write("more")


def update(path: str, other: str) -> object:
    with open(path, "r+", encoding="ascii") as file:
        return file.write("up")


def make(path: str, other: str) -> object:
    with open(path, "x", encoding="ascii") as file:
        return file.write("made")


def read(path: str, other: str) -> object:
    with open(path, encoding="ascii") as file:
        return file.read()


ACTIONS = {
    "write": write,
    "append": append,
    "update": update,
    "make": make,
    "read": read,
    "remove": lambda path, other: os.remove(path),
    "mkdir": lambda path, other: os.mkdir(path),
    "makedirs": lambda path, other: os.makedirs(path, exist_ok=True),
    "rmdir": lambda path, other: os.rmdir(path),
    "rmtree": lambda path, other: shutil.rmtree(path),
    "rename": lambda path, other: os.rename(path, other),
    "replace": lambda path, other: os.replace(path, other),
    "move": lambda path, other: shutil.move(path, other) and None,
    "copy": lambda path, other: shutil.copy(path, other) and None,
    "copytree": lambda path, other: shutil.copytree(path, other) and None,
    "symlink": lambda path, other: os.symlink(os.path.abspath(path), other),
    "relative link": lambda path, other: os.symlink(os.path.basename(path), other),
    "readlink": lambda path, other: os.path.relpath(os.readlink(path)) if os.path.isabs(os.readlink(path)) else os.readlink(path),
    "truncate": lambda path, other: os.truncate(path, 3),
    "touch": lambda path, other: Path(path).touch(),
    "chmod": lambda path, other: os.chmod(path, 0o750),
    "mode": lambda path, other: os.stat(path).st_mode,
    "times": lambda path, other: (os.utime(path, (5, 7)), os.stat(path).st_mtime)[1],
    "list": lambda path, other: sorted(os.listdir(path)),
    "walk": lambda path, other: sorted((place, sorted(folders), sorted(files)) for place, folders, files in os.walk(path)),
    "glob": lambda path, other: sorted(str(found) for found in Path(path).rglob("*")),
    "exists": lambda path, other: (os.path.exists(path), os.path.isdir(path), os.path.islink(path), os.path.isfile(path)),
    "size": lambda path, other: os.path.isfile(path) and os.path.getsize(path),
    "real path": lambda path, other: os.path.relpath(os.path.realpath(path)),
}

SEVERAL_ERRORS = ("rmtree", "rename", "replace", "move", "copy", "copytree", "symlink", "relative link")

STEPS = st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=12)


def fill(folder: Path) -> None:
    (folder / "sub" / "deep").mkdir(parents=True)
    for name in ("a", "b", "sub/c", "sub/deep/d"):
        (folder / name).write_text("before")
    (folder / "link").symlink_to("a")
    (folder / "way").symlink_to("sub")


def act(action: str, path: str, other: str) -> object:
    """What comes of it; errors are told apart as far as scripts do: some actions may fail in two ways at once."""
    try:
        return ACTIONS[action](path, other)
    except shutil.Error:
        return "an error"
    except OSError as error:
        if action in SEVERAL_ERRORS:
            return "an error"
        return "missing" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else type(error).__name__


def view(folder: str) -> list[object]:
    """Everything as a script sees it, by the functions that scripts use."""
    found: list[object] = []
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(place, name)
            what = os.path.islink(path), os.path.isdir(path), os.path.isfile(path)
            found.append((os.path.relpath(path, folder), *what, read(path, "") if os.path.isfile(path) else ""))
    return found


@pytest.fixture(autouse=True)
def _back_home() -> Iterator[None]:
    cwd = os.getcwd()
    yield
    os.chdir(cwd)


@settings(max_examples=40)
@given(steps=STEPS)
def test_a_run_sees_what_it_would_see_for_real(steps: list[tuple[str, str, str]]):
    with ExitStack() as stack:
        real, kept, store = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(3))
        fill(real)
        fill(kept)
        stack.callback(os.chdir, os.getcwd())
        before = state_of(kept)
        os.chdir(real)
        expected = [act(*step) for step in steps]
        expected_view = view(".")
        os.chdir(kept)
        with keeping_apart(str(store)):
            found = [act(*step) for step in steps]
            assert found == expected
            assert view(".") == expected_view
        assert state_of(kept) == before


def test_everything_is_put_back_after_an_error(tmp_path: Path):
    before = {name: value for name, value in vars(os).items() if callable(value)}
    sets, patches = {name: set(getattr(os, name)) for name in ("supports_dir_fd", "supports_fd")}, active_patches()
    opening, defaults = open, tempfile._TemporaryFileCloser.close.__defaults__
    kept = []

    def fail() -> None:
        with keeping_apart(str(tmp_path)):
            assert os.remove is not before["remove"]
            assert open is not opening
            kept.append(os.remove)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert {name: value for name, value in vars(os).items() if callable(value)} == before
    assert {name: set(getattr(os, name)) for name in sets} == sets
    assert (open, active_patches()) == (opening, patches)
    assert tempfile._TemporaryFileCloser.close.__defaults__ == defaults
    (tmp_path / "file").touch()
    kept[0](tmp_path / "file")  # whoever kept a stand-in has the real function again
    assert not (tmp_path / "file").exists()


def test_the_working_directory_is_real_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "store").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with keeping_apart(str(tmp_path / "store")):
        os.mkdir("inner")
        os.chdir("inner")
        assert os.getcwd() == str(tmp_path / "here" / "inner")
    assert os.getcwd() == str(tmp_path / "here")


def test_what_a_user_may_not_do_fails_as_it_would(tmp_path: Path):
    if os.geteuid() == 0:
        pytest.skip("root may do everything")
    (tmp_path / "store").mkdir()
    (tmp_path / "file").touch(mode=0o444)
    with keeping_apart(str(tmp_path / "store")), pytest.raises(PermissionError):
        open(tmp_path / "file", "w")  # noqa: SIM115


def test_temporary_files_are_seen_by_other_programs(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with keeping_apart(str(tmp_path / "store")):
        number, name = tempfile.mkstemp()
        os.write(number, b"temporary")
        os.close(number)
        assert subprocess.check_output(["cat", name]) == b"temporary"
        assert subprocess.check_output("echo $TMPDIR", shell=True, text=True).strip() == os.path.dirname(name)
        os.replace(name, tmp_path / "kept")
        assert (tmp_path / "kept").read_bytes() == b"temporary"
        assert not os.path.exists(name)
    assert not (tmp_path / "kept").exists()


def test_functions_can_be_sent_to_other_processes(tmp_path: Path):
    with keeping_apart(str(tmp_path)):
        for function in (os.remove, os.open, os.stat, open, io.open_code):
            assert pickle.loads(pickle.dumps(function)) is function


def test_a_store_in_which_files_cannot_be_renamed_from_folder_to_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As behind a fence of Linux 5.13 to 5.18."""
    renames = {name: getattr(os, name) for name in ("rename", "replace", "link")}

    def refuse(name: str, source: str, target: str, **kwargs: object) -> None:
        if os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        renames[name](source, target, **kwargs)

    for name in renames:
        monkeypatch.setattr(os, name, functools.partial(refuse, name))
    (tmp_path / "store").mkdir()
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    with keeping_apart(str(tmp_path / "store")):
        append("sub/c", "")
        os.replace("sub/c", "moved")
        os.symlink("moved", "sub/way")
        os.rename("sub/way", "way2")
        os.link("moved", "sub/second")
        assert [read(name, "") for name in ("moved", "way2", "sub/second")] == ["beforemore"] * 3
        assert not os.path.lexists("sub/c")


def test_a_file_of_before_is_moved_without_a_copy(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 40)  # a hole of a tebibyte
    with keeping_apart(str(tmp_path / "store")):
        os.replace(tmp_path / "large", tmp_path / "larger")
        assert os.path.getsize(tmp_path / "larger") == 1 << 40
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["large"]


def test_devices_and_pipes_are_as_they_are(tmp_path: Path):
    with keeping_apart(str(tmp_path)):
        with open(os.devnull, "w", encoding="ascii") as file:
            file.write("x")
        with open("/dev/zero", "rb") as file:
            assert file.read(2) == b"\0\0"
        reader, writer = os.pipe()
        with open(reader, "rb") as source, open(writer, "wb") as sink:
            sink.write(b"through")
            sink.close()
            assert source.read() == b"through"
