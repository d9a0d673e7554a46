import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers.allocator_requests import TRUTH
from hypothesis import given
from hypothesis import strategies as st

from memfit.allocator import RequestKind, load_requests, replay
from memfit.allocator.sources.entries import _InUse
from memfit.errors import TraceError
from memfit.units import MIB

ACTIONS = ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom"]
TOP = 0x7F00_0000_0000


def write(path: Path, entries: list[tuple[str, int, int]], **more: object) -> Path:
    """A trace of (action, address in MiB, size in MiB)."""
    names = sorted({action for action, _, _ in entries}) or ["alloc"]
    columns = {
        "actions": np.array(names),
        "action": np.array([names.index(action) for action, _, _ in entries], dtype=np.uint8),
        "addr": np.array([TOP + address * MIB for _, address, _ in entries], dtype=np.uint64),
        "size": np.array([size * MIB for _, _, size in entries], dtype=np.int64),
        "stream": np.zeros(len(entries), dtype=np.uint64),
    }
    np.savez(path, **columns | more)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.npz"


def test_a_free_at_once_is_one_request(path: Path):
    requests = load_requests(write(path, [("alloc", 0, 3), ("free_requested", 0, 3), ("free_completed", 0, 3)]))
    assert requests.kind.tolist() == [RequestKind.ALLOC, RequestKind.FREE]
    assert (requests.num_events, requests.num_blocks, requests.source) == (3, 1, "trace")


def test_a_deferred_free_is_two(path: Path):
    entries = [("alloc", 0, 3), ("free_requested", 0, 3), ("alloc", 8, 1), ("free_completed", 0, 3)]
    kinds = load_requests(write(path, entries)).kind.tolist()
    assert kinds == [RequestKind.ALLOC, RequestKind.FREE_REQUESTED, RequestKind.ALLOC, RequestKind.FREE_COMPLETED]


def test_an_address_is_used_again(path: Path):
    once = [("alloc", 0, 3), ("free_requested", 0, 3), ("free_completed", 0, 3)]
    assert load_requests(write(path, once + once)).block.tolist() == [0, 0, 1, 1]


def test_cached_memory_given_back_is_a_call_of_empty_cache(path: Path):
    entries = [
        ("alloc", 0, 30),
        ("free_requested", 0, 30),
        ("free_completed", 0, 30),
        ("segment_free", 0, 30),
        ("segment_free", 64, 2),
    ]
    requests = load_requests(write(path, entries))
    assert requests.kind.tolist()[-1] == RequestKind.EMPTY_CACHE
    assert "given back 1 times" in requests.warnings[0]
    assert replay(requests).reserved[-1] == 0


def test_segments_lie_where_they_lay(path: Path):
    requests = load_requests(write(path, [("segment_alloc", 64, 20), ("alloc", 64, 3), ("segment_alloc", 0, 30), ("alloc", 0, 30)]))
    assert [segment.address for segment in replay(requests).segments_at()] == [TOP, TOP + 64 * MIB]
    assert requests.event.tolist() == [1, 3]


def test_blocks_from_before_the_recording_are_there_first(path: Path):
    entries = [("alloc", 100, 3), ("free_requested", 0, 40), ("free_completed", 0, 40), ("free_completed", 50, 5)]
    requests = load_requests(write(path, entries))
    assert "began late: 2 blocks (45.00 MiB)" in requests.warnings[0]
    run = replay(requests)
    assert run.peak_allocated == 45 * MIB
    assert run.active[-1] == 3 * MIB


def test_an_oom_in_the_log_is_no_request(path: Path):
    assert len(load_requests(write(path, [("alloc", 0, 3), ("oom", 0, 3)]))) == 1


def test_entries_of_another_kind_are_named(path: Path):
    assert "left out: teleport" in load_requests(write(path, [("alloc", 0, 3), ("teleport", 0, 3)])).warnings[0]


def test_expandable_segments_are_recognised():
    assert load_requests(TRUTH / "settings" / "expandable.npz").alloc_conf == "expandable_segments:True"


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([("alloc", 0, 3), ("alloc", 0, 3)], "entry 1, alloc of .* in use"),
        ([("alloc", 0, 3), ("alloc", 2, 3)], "entry 1 allocates .* over a block in use"),
        ([("alloc", 2, 3), ("alloc", 0, 3)], "entry 1 allocates .* over a block in use"),
        ([("alloc", 0, 3), ("free_completed", 0, 3)], "entry 1, free_completed of .* out of turn"),
        ([("alloc", 0, 3), *[("free_requested", 0, 3)] * 2], "entry 2, free_requested of .* out of turn"),
        ([("alloc", 0, 3), ("free_requested", 0, 3), *[("free_completed", 0, 3)] * 2], "entry 3, .* out of turn"),
        ([("alloc", 0, 3), ("free_requested", 0, 4)], "entry 1, .* differs in size"),
        ([("alloc", 0, 0)], "entry 0 has the size 0"),
        ([("alloc", 0, -3)], "entry 0 has the size -3145728"),
        ([("alloc", 0, 2**30)], "entry 0 has the size"),
        ([("alloc", 2**40, 1)], "entry 0 has the address"),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(path: Path, entries: list, problem: str):
    with pytest.raises(TraceError, match=problem):
        load_requests(write(path, entries))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"size": np.zeros(7, dtype=np.int64)}, "different lengths"),
        ({"size": np.zeros((1, 1), dtype=np.int64)}, "not plain lists"),
        ({"size": np.array([1.5])}, "not plain lists"),
        ({"addr": np.array([2**63], dtype=np.uint64)}, "63 bits"),
        ({"action": np.array([9], dtype=np.uint8)}, "without a name"),
        ({"peak_reserved": np.array(["much"])}, "peaks"),
        ({"size": np.array([object()], dtype=object)}, "allow_pickle"),
    ],
)
def test_columns_that_do_not_fit_are_refused(path: Path, more: dict, problem: str):
    with pytest.raises(TraceError, match=problem):
        load_requests(write(path, [("alloc", 0, 3)], **more))


def test_an_npz_of_something_else_is_refused(path: Path):
    np.savez(path, weights=np.zeros(3))
    with pytest.raises(TraceError, match="without actions, action, addr, size, stream"):
        load_requests(path)


def test_an_archive_that_would_fill_the_memory_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch):
    write(path, [("alloc", 0, 3)])
    monkeypatch.setenv("MEMFIT_MAX_MEMORY", "1KiB")
    with pytest.raises(TraceError, match=r"unpacking it would take about .* set MEMFIT_MAX_MEMORY=1GiB"):
        load_requests(path)


@pytest.mark.parametrize("length", [2, 4, 100, 2000, 12_000])
def test_a_truncated_trace_is_refused(path: Path, length: int):
    path.write_bytes((TRUTH / "traces" / "trace_hf_resnet.npz").read_bytes()[:length])
    with pytest.raises(TraceError, match="damaged"):
        load_requests(path)


def test_a_damaged_member_is_refused(path: Path):
    write(path, [("alloc", 0, 3)])
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("size.npy", b"\x93NUMPY\x01\x00")
    with pytest.raises(TraceError, match="damaged"):
        load_requests(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"hello, world, this is no ledger"])
def test_a_file_of_no_known_kind_is_refused(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(TraceError, match="neither a ledger"):
        load_requests(path)


def test_a_file_that_is_not_there(path: Path):
    with pytest.raises(TraceError, match="cannot be read"):
        load_requests(path)


# -- archives that were made to do harm --------------------------------------------------------------------------------------


def npy(shape: tuple[int, ...], dtype: str, data: bytes = b"") -> bytes:
    """An array that says of itself what it likes."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape!r}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    ("shape", "dtype"), [((10**13,), "<i8"), ((10**13,), "<U0"), ((2**40, 2**40), "|u1"), ((3,), f"<U{10**8}")], ids=str
)
def test_an_array_that_says_it_is_huge_is_refused_before_room_is_made(path: Path, shape: tuple[int, ...], dtype: str):
    write(path, [("alloc", 0, 3)])
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (members | {"actions.npy": npy(shape, dtype)}).items():
            archive.writestr(name, data)
    with pytest.raises(TraceError, match="said to be larger than it is"):
        load_requests(path)


def test_an_archive_that_unpacks_to_gigabytes_is_refused(path: Path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("size.npy", "w", force_zip64=True) as member:
        for _ in range(200):
            member.write(bytes(2**20))
    with pytest.raises(TraceError, match=r"unpacking it would take about 2\.54 GiB"):
        load_requests(path)


def test_an_archive_of_many_files_is_refused(path: Path):
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(101):
            archive.writestr(f"{number}", b"")
    with pytest.raises(TraceError, match="more than 100 files"):
        load_requests(path)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 12)), max_size=200))
def test_blocks_over_blocks_are_found_among_any_number(blocks: list[tuple[int, int]]):
    in_use, simple = _InUse(), dict[int, int]()
    in_use._LARGEST_GROUP = 3  # so that groups divide and vanish here as well
    for number, (start, size) in enumerate(blocks):
        end = start + size
        overlaps = any(start < other_end and other < end for other, other_end in simple.items())
        assert in_use.touches(start, end) == overlaps
        if not overlaps:
            simple[start] = end
            in_use.add(start, end)
        elif number % 3 == 0:
            gone = sorted(simple)[number % len(simple)]
            del simple[gone]
            in_use.remove(gone)
