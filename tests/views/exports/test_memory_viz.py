"""The snapshot for PyTorch's memory_viz page: torch's own reader, memfit's own reader, and what the page's script can cope with."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from helpers.arbitrary_ledgers import ledgers
from helpers.export_runs import HOSTILE, ON_THE_CPU, PREDICTED, RUN, RUNS, TWO_GPUS, hostile_run
from hypothesis import assume, given, settings
from torch.cuda import _memory_viz

from memfit.allocator import load_requests, replay, requests_from_ledger
from memfit.allocator.sources.torch_snapshots import requests_from_snapshot
from memfit.allocator.sources.unpickling import unpickle_plain
from memfit.ledger import Ledger
from memfit.units import MIB
from memfit.views.exports.memory_viz import snapshot_of, write_snapshot

# -- what comes out ----------------------------------------------------------------------------------------------------------


def actions(snapshot: dict[str, Any], device: int = 0) -> list[tuple[str, int]]:
    return [(entry["action"], entry["size"]) for entry in snapshot["device_traces"][device]]


def test_the_log_is_what_the_allocator_does():
    assert actions(snapshot_of(RUN)) == [
        ("segment_alloc", 20 * MIB),
        ("alloc", 4 * MIB),
        ("alloc", 3 * MIB),
        ("segment_alloc", 12 * MIB),
        ("alloc", 12 * MIB),
        ("free_requested", 3 * MIB),
        ("free_completed", 3 * MIB),
        ("alloc", 6 * MIB),
        ("segment_alloc", 30 * MIB),
        ("alloc", 30 * MIB),
        ("free_requested", 12 * MIB),
        ("free_completed", 12 * MIB),
        ("free_requested", 30 * MIB),
        ("free_completed", 30 * MIB),
        ("segment_free", 12 * MIB),
        ("segment_free", 30 * MIB),
        ("segment_alloc", 2 * MIB),
        ("alloc", 2048),
    ]


def test_frames_say_what_a_block_is():
    allocs = [entry for entry in snapshot_of(RUN)["device_traces"][0] if entry["action"] == "alloc"]
    assert [(frame["filename"], frame["line"], frame["name"]) for frame in allocs[3]["frames"]] == [
        ("op", 0, "layers.0.g"),
        ("name", 0, "layers.0.g"),
        ("module", 0, "layers.0"),
        ("module", 0, "layers"),
        ("module", 0, "(Module)"),
        ("step", 0, "backward"),
        ("category", 0, "gradient"),
    ]
    assert [entry["category"] for entry in allocs] == [
        "parameter",
        "forward temporary",
        "activation",
        "gradient",
        "activation",
        "unknown",
    ]
    assert [frame["filename"] for frame in allocs[0]["frames"]][-2:] == ["init", "category"]


def test_segments_are_those_at_the_end():
    segments = snapshot_of(RUN)["segments"]
    assert [(segment["total_size"], segment["segment_type"]) for segment in segments] == [(2 * MIB, "small"), (20 * MIB, "large")]
    assert [(block["size"], block["state"]) for block in segments[1]["blocks"]] == [
        (4 * MIB, "active_allocated"),
        (6 * MIB, "active_allocated"),
        (10 * MIB, "inactive"),
    ]


def test_every_gpu_is_in_it_under_its_number():
    snapshot = snapshot_of(TWO_GPUS)
    assert [len(trace) for trace in snapshot["device_traces"]] == [0, 2, 0, 4]
    assert {segment["device"] for segment in snapshot["segments"]} == {1, 3}


def test_a_run_without_a_gpu_is_shown_as_if_it_had_one():
    assert actions(snapshot_of(ON_THE_CPU))[:2] == [("segment_alloc", 20 * MIB), ("alloc", 4 * MIB)]


def test_expandable_segments_are_mapped():
    snapshot = snapshot_of(PREDICTED)
    assert snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert {"segment_map", "segment_unmap"} <= {action for action, _ in actions(snapshot)}
    assert all(segment["is_expandable"] for segment in snapshot["segments"])


# -- torch's reader ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_torch_reads_it(run: Ledger):
    snapshot = pickle.loads(write_snapshot(run))
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    assert f"total_reserved: {_memory_viz.Bytes(reserved)}" in _memory_viz.segsum(snapshot)
    assert _memory_viz.trace(snapshot).count(" = cudaMalloc(") == sum(
        entry["action"] == "segment_alloc" for trace in snapshot["device_traces"] for entry in trace
    )
    assert "Active Memory Timeline" in _memory_viz.trace_plot(snapshot)
    assert "Allocator State History" in _memory_viz.segment_plot(snapshot)


def test_torch_draws_flames_of_modules():
    lines = _memory_viz.memory(snapshot_of(RUN), format_flamegraph=lambda text: text).splitlines()
    flame = (
        "category:0:gradient;step:0:backward;module:0:(Module);module:0:layers;module:0:layers.0;name:0:layers.0.g;op:0:layers.0.g"
    )
    assert f"stream_0;active_allocated;{flame} {6 * MIB}" in lines


# -- memfit's reader ---------------------------------------------------------------------------------------------------------


@given(ledgers)
@settings(max_examples=60)
def test_it_is_read_back_with_equal_peaks(ledger: Ledger):
    traces = snapshot_of(ledger)["device_traces"]
    assume(any(traces))
    # What is read back is the device with the longest log; a run without a GPU is shown as number 0.
    name = f"cuda:{max(range(len(traces)), key=lambda number: len(traces[number]))}"
    original = replay(requests_from_ledger(ledger, name if any(name == known.name for known in ledger.devices) else None))
    back = replay(requests_from_snapshot(Path("run.pickle"), write_snapshot(ledger)), original.settings)
    assert (back.peak_allocated, back.peak_reserved) == (original.peak_allocated, original.peak_reserved)


@pytest.mark.parametrize("run", [RUN, PREDICTED], ids=["measured", "expandable"])
def test_memfit_fit_takes_it(run: Ledger, tmp_path: Path):
    (tmp_path / "run.pickle").write_bytes(write_snapshot(run))
    back, original = load_requests(tmp_path / "run.pickle"), requests_from_ledger(run)
    assert back.alloc_conf == original.alloc_conf
    assert (replay(back).peak_allocated, replay(back).peak_reserved) == (
        replay(original).peak_allocated,
        replay(original).peak_reserved,
    )


# -- the page's script -------------------------------------------------------------------------------------------------------

PAGE_OPCODES = {
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "SETITEM", "SETITEMS", "APPEND", "APPENDS", "DICT", "LIST"),
    *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NEWTRUE", "NEWFALSE", "NONE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE"),
}
"""What the unpickler in torch/utils/viz/MemoryViz.js knows."""


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_page_can_unpickle_it(run: Ledger):
    opcodes = {
        (opcode.name, argument if opcode.name == "PROTO" else None)
        for opcode, argument, _ in pickletools.genops(write_snapshot(run))
    }
    assert {name for name, _ in opcodes} <= PAGE_OPCODES
    assert ("PROTO", 4) in opcodes


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_page_can_colour_it(run: Ledger):
    """It fails on a snapshot that has categories, but not this one."""
    categories = {entry["category"] for trace in snapshot_of(run)["device_traces"] for entry in trace}
    assert not categories or "unknown" in categories


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_page_can_go_back_from_the_end_to_the_beginning(run: Ledger):
    walk_back(snapshot_of(run))


@given(ledgers)
@settings(max_examples=60)
def test_the_page_can_go_back_through_every_run(ledger: Ledger):
    walk_back(snapshot_of(ledger))


def walk_back(snapshot: dict[str, Any]) -> None:
    """Undoes entry by entry what the log did; in the end nothing is left, and on the way every block lies in memory."""
    for device, trace in enumerate(snapshot["device_traces"]):
        mapped: set[tuple[int, int]] = set()
        blocks: dict[int, int] = {}
        for segment in snapshot["segments"]:
            if segment["device"] == device:
                mapped.add((segment["address"], segment["address"] + segment["total_size"]))
                assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
                blocks |= {b["address"]: b["requested_size"] for b in segment["blocks"] if b["state"] == "active_allocated"}
        for entry in reversed(trace):
            address, size = entry["addr"], entry["size"]
            if entry["action"] == "alloc":
                assert blocks.pop(address) == size
            elif entry["action"] == "free_completed":
                assert address not in blocks
                blocks[address] = size
            elif entry["action"] in ("segment_free", "segment_unmap"):
                mapped.add((address, address + size))
            elif entry["action"] in ("segment_alloc", "segment_map"):
                mapped = unmap(mapped, address, address + size)
            assert all(inside(mapped, start, start + length) for start, length in blocks.items())
        assert not blocks
        assert not mapped


def unmap(mapped: set[tuple[int, int]], start: int, end: int) -> set[tuple[int, int]]:
    left = set()
    for low, high in merged(mapped):
        if low <= start and end <= high:
            left |= {piece for piece in ((low, start), (end, high)) if piece[0] < piece[1]}
        else:
            left.add((low, high))
    return left


def merged(mapped: set[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for low, high in sorted(mapped):
        if found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


def inside(mapped: set[tuple[int, int]], start: int, end: int) -> bool:
    return any(low <= start and end <= high for low, high in merged(mapped))


# -- strangers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_can_only_be_read(name: str):
    snapshot = unpickle_plain(write_snapshot(hostile_run(name)))
    frames = [frame for trace in snapshot["device_traces"] for entry in trace for frame in entry["frames"]]
    assert frames
    assert all(frame["name"].isprintable() for frame in frames)


@pytest.mark.parametrize("name", ["cuda:99999999999", "cuda:", "cuda", "cuda:00", "cuda:²"])
def test_a_device_with_an_absurd_number_gets_another(name: str):
    snapshot = snapshot_of(hostile_run(name))
    assert [len(trace) for trace in snapshot["device_traces"]] == [2, 2]
    walk_back(snapshot)
