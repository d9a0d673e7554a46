"""Pickles that were made to do harm: each is refused at once, in a line, and in little memory."""

from __future__ import annotations

import contextlib
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
from helpers.allocator_requests import TRUTH
from hypothesis import example, given
from hypothesis import strategies as st

from memfit.allocator import load_requests
from memfit.allocator.sources.unpickling import HostilePickleError, unpickle_plain
from memfit.errors import TraceError

SHARED_KEY = b"\x80\x04}(K\x00\x85\x94" + b"".join(b"h%ch%c\x86\x94" % (i, i) for i in range(90)) + b"K\x01u."
NESTED_KEY = b"\x80\x04}(K\x00" + b"\x85" * 2_000_000 + b"K\x01u."
MEMO = b"\x80\x04Nr\xff\xff\xff\x7f."
ENTRY = {"action": "alloc", "addr": 2**40, "size": 512, "stream": 0}
SHARED_TRACES = pickle.dumps({"segments": [], "device_traces": [[ENTRY] * 40_000] * 40_000}, 4)
SHARED_BLOCKS = pickle.dumps(
    {
        "segments": [
            {"address": 1, "total_size": 1, "stream": 0, "blocks": blocks} for blocks in [[ENTRY] * 30_000] for _ in range(9_000)
        ],
        "device_traces": [[ENTRY]],
    },
    4,
)
HOSTILE = {
    "a key of tuples that are shared": SHARED_KEY,
    "a key of tuples in tuples": NESTED_KEY,
    "a value remembered under a huge number": MEMO,
    "one history for thousands of devices": SHARED_TRACES,
    "one list of blocks for thousands of segments": SHARED_BLOCKS,
    "lists in lists as an action": pickle.dumps({"segments": [], "device_traces": [[ENTRY | {"action": [[]]}]]}, 4),
    "a number of 255 bytes": b"\x80\x04\x8a\xff" + b"\x7f" * 255 + b".",
    "an entry of the extension registry": b"\x80\x04\x82\x01.",
    "text longer than the file": b"\x80\x04X\xff\xff\xff\xff.",
    "the stack doubled": b"\x80\x04]" + b"2" * 5000 + b".",
}

LIMITED = """
import resource, signal, sys
resource.setrlimit(resource.RLIMIT_DATA, (500 * 2**20, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_CPU, (20, 21))
from memfit.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", [["fit", "--gpu", "H200"], ["explain"]], ids=lambda command: command[0])
@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_in_a_line(name: str, command: list[str], tmp_path: Path):
    """In a process that may take little memory and little time, and that may die."""
    (tmp_path / "snapshot.pickle").write_bytes(HOSTILE[name])
    argv = [sys.executable, "-c", LIMITED, *command, str(tmp_path / "snapshot.pickle")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("memfit: error: ")


@pytest.mark.parametrize("path", sorted((TRUTH / "settings").glob("*.pickle")), ids=lambda path: path.stem)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_real_snapshots_are_what_python_makes_of_them(path: Path, protocol: int):
    plain = pickle.loads(path.read_bytes())
    assert unpickle_plain(pickle.dumps(plain, protocol)) == plain
    assert unpickle_plain(pickletools.optimize(pickle.dumps(plain, protocol))) == plain


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    max_leaves=50,
)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_data_comes_back(value: Any, protocol: int):
    if protocol > 2:  # before, bytes were written as a call
        assert unpickle_plain(pickle.dumps(value, protocol)) == value


def test_long_text_comes_back():
    value = {"x" * 1000: ["y" * 70_000, b"z" * 300]}
    assert unpickle_plain(pickle.dumps(value, 4)) == value


def test_pairs_are_the_only_tuples():
    assert unpickle_plain(pickle.dumps({"pool_id": (0, 70_000), "empty": ()})) == {"pool_id": (0, 70_000), "empty": ()}
    for value in [(1,), (1, 2, 3), ((1, 2), 3), (1, 2**40), ("a", "b")]:
        with pytest.raises(HostilePickleError, match="instruction"):
            unpickle_plain(pickle.dumps(value, 4))


@given(st.binary(max_size=200))
@example(b"\x8d\x00\x00\x00\x00\x00\x00\x00\x80")  # text of 2^63 bytes
def test_any_bytes_are_read_or_refused(data: bytes):
    with contextlib.suppress(ValueError):
        assert isinstance(
            unpickle_plain(b"\x80\x04" + data), (bool, bytearray, bytes, dict, float, int, list, str, tuple, NoneType)
        )


def test_what_would_take_too_much_memory_is_refused_before_it_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"\x80\x04]" + b"(" + b"]" * 100_000 + b"e.")
    monkeypatch.setenv("MEMFIT_MAX_MEMORY", "10MiB")
    with pytest.raises(TraceError, match="MEMFIT_MAX_MEMORY=1GiB"):
        load_requests(path)
    monkeypatch.delenv("MEMFIT_MAX_MEMORY")
    assert len(unpickle_plain(path.read_bytes())) == 100_000


def test_the_proofs_can_fail(tmp_path: Path):
    """Python's own unpickler does what these ask for."""
    shared = pickle.loads(SHARED_TRACES)["device_traces"]
    assert sum(map(len, shared)) == 1_600_000_000
    code = "import pickle, sys; pickle.loads(open(sys.argv[1], 'rb').read())"
    (tmp_path / "nested").write_bytes(NESTED_KEY)
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "nested")], check=False, capture_output=True).returncode != 0
