"""What is no regular file, or is too large, is refused before it is read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from memfit.cli import main
from memfit.errors import ConfigError
from memfit.reading import RefusedFileError, demand_memory, limit, read_regular, read_start
from memfit.testing import ledger
from memfit.units import GIB

COMMANDS = [
    ["show"],
    ["report", "-o", "page.html"],
    ["fit", "--gpu", "H200"],
    ["explain"],
    ["explain", "--gpu", "H200"],
    ["export", "--to", "json", "-o", "out.json"],
    ["diff", "sound.memfit"],
]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger("alloc 1MiB w on cuda:0").save("sound.memfit")


def test_a_file_is_read():
    Path("file").write_bytes(b"12345")
    assert (read_regular(Path("file")), read_start(Path("file"), 2)) == (b"12345", b"12")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_pipe_is_refused_and_not_waited_for(command: list[str], capsys: pytest.CaptureFixture[str]):
    os.mkfifo("pipe")
    statuses: list[int] = []
    reader = threading.Thread(target=lambda: statuses.append(main([*command, "pipe"])), daemon=True)
    reader.start()
    reader.join(timeout=300)
    assert statuses == [2], "the command waits for somebody to write"
    assert "pipe: cannot be read (it is a pipe or a device)" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("start", [b"\x80\x04", b"PK\x03\x04", b"memfit-journal-1\n", b"\x10\0\0\0\0\0\0\0{"])
def test_forty_gigabytes_are_refused_by_their_size(command: list[str], start: bytes, capsys: pytest.CaptureFixture[str]):
    with open("sparse", "wb") as file:
        file.write(start)
        file.truncate(40 * 10**9)
    assert main([*command, "sparse"]) == 2
    said = capsys.readouterr().err
    assert "sparse: is 37.25 GiB, more than the 1.00 GiB that memfit reads of a file" in said
    assert "set MEMFIT_MAX_FILE=38GiB" in said
    assert said.count("\n") == 1


def test_the_limit_is_raised_and_lowered(monkeypatch: pytest.MonkeyPatch):
    Path("file").write_bytes(b"12345")
    monkeypatch.setenv("MEMFIT_MAX_FILE", "4B")
    with pytest.raises(RefusedFileError, match="is 5 B, more than the 4 B"):
        read_regular(Path("file"))
    assert read_start(Path("file"), 3) == b"123"
    monkeypatch.setenv("MEMFIT_MAX_FILE", "20GiB")
    assert limit("MEMFIT_MAX_FILE") == 20 * GIB
    assert read_regular(Path("file")) == b"12345"


def test_a_limit_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MEMFIT_MAX_FILE", "a lot")
    with pytest.raises(ConfigError, match="MEMFIT_MAX_FILE: cannot read 'a lot'"):
        read_regular(Path("sound.memfit"))


def test_memory_has_a_limit_too(monkeypatch: pytest.MonkeyPatch):
    demand_memory(2 * GIB)
    with pytest.raises(RefusedFileError, match=r"unpacking it would take about 2\.00 GiB") as refused:
        demand_memory(2 * GIB + 1, "unpacking it")
    assert "MEMFIT_MAX_MEMORY=3GiB" in refused.value.advice
    monkeypatch.setenv("MEMFIT_MAX_MEMORY", "3GiB")
    demand_memory(2 * GIB + 1)


@pytest.mark.parametrize("path", ["/dev/zero", ".", "missing", "nul\0l", "x" * 300, "loop"])
def test_what_cannot_be_read_says_so(path: str):
    Path("loop").symlink_to("loop")
    with pytest.raises(RefusedFileError, match="cannot be read"):
        read_regular(Path(path))


def test_no_descriptor_is_left_open():
    os.mkfifo("pipe")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("pipe", "sound.memfit", "/dev/zero", "."):
        try:
            read_regular(Path(name))
        except RefusedFileError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before
