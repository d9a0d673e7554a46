"""Real traces of an H200 become ledgers whose peak is what the GPU counted, and whose replay reserves what it reserved."""

from pathlib import Path

import numpy as np
import pytest
import torch

from memfit.allocator import RequestKind, parse_alloc_conf, replay, requests_from_ledger
from memfit.allocator.sources.entries import CODES, OTHER
from memfit.analysis import find_peak
from memfit.ledger import Category, LedgerBuilder, Phase, RunInfo
from memfit.record.sources.allocator.facts import Fact
from memfit.record.sources.allocator.joining import Clock, Joiner, Window, describe_stack
from memfit.record.sources.allocator.marks import MarkKind
from memfit.record.sources.allocator.traces import Frame, State, Trace, read_trace
from memfit.units import MIB

TRACES = Path(__file__).parents[4] / "benchmarks" / "truth" / "traces"


def join(*windows, follows=False):
    clock = Clock(0)
    builder = LedgerBuilder(RunInfo(versions={"torch": "2.11.0"}), clock=clock)
    joiner = Joiner(builder, clock, parse_alloc_conf("", "2.11"), lambda device: f"cuda:{device}", str)
    for _ in range(3):
        builder.module(f"m{_}", "Linear")
    for number, window in enumerate(windows):
        joiner.add(window, follows=follows and number > 0)
    joiner.end()
    return builder.build().check(), joiner


def real_window(name):
    with np.load(TRACES / f"trace_{name}.npz") as found:
        codes = np.array([CODES.get(str(action), OTHER) for action in found["actions"]])
        entries = len(found["action"])
        trace = Trace(
            device=0,
            action=codes[found["action"]],
            address=found["addr"].astype(np.int64),
            size=found["size"].astype(np.int64),
            stream=found["stream"].astype(np.int64),
            time_ns=np.arange(entries),
            mark=np.full(entries, -1),
        )
        peaks = int(found["peak_allocated"]), int(found["peak_reserved"])
    return Window(traces=[trace], marks=np.empty((0, 4), dtype=np.int64), first_mark=0, facts=[], before=[State(0, {})]), peaks


@pytest.mark.parametrize("name", ["fsdp1_full", "fsdp2_full", "hf_resnet", "llama_amp"])
def test_a_real_trace_has_its_peak_and_reserves_what_was_reserved(name):
    window, (allocated, reserved) = real_window(name)
    ledger, joiner = join(window)
    assert find_peak(ledger, 0).size_bytes == allocated
    assert joiner.is_exact
    assert joiner.num_unknown_frees == 0
    again = replay(requests_from_ledger(ledger))
    assert again.peak_reserved == reserved
    assert abs(again.peak_allocated - allocated) <= MIB, "of two cached blocks that are as good, the allocator took the other"


def test_memory_that_another_stream_still_uses_comes_back_later():
    entries = [
        *(("alloc", 0, 4 * MIB), ("free_requested", 0, 4 * MIB), ("alloc", 20 * MIB, 4 * MIB), ("free_completed", 0, 4 * MIB)),
        ("alloc", 0, 4 * MIB),
    ]
    ledger, _ = join(window_of(entries))
    assert ledger.returns.block.tolist() == [0]
    assert ledger.returns.events_later.tolist() == [1]
    kinds = requests_from_ledger(ledger).kind.tolist()
    expected = [RequestKind.ALLOC, RequestKind.FREE_REQUESTED, RequestKind.ALLOC, RequestKind.FREE_COMPLETED, RequestKind.ALLOC]
    assert kinds == expected


def window_of(entries, marks=(), facts=(), mark_of=None, before=None):
    """Entries of one device, one every ten microseconds; ``marks`` are kind, value and time."""
    rows = [
        {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 10 * (number + 1), "user_metadata": ""}
        for number, (action, address, size) in enumerate(entries)
    ]
    table = np.array([(kind, value, time_us * 1000, 0) for kind, value, time_us in marks], dtype=np.int64).reshape(-1, 4)
    trace = read_trace(0, rows, table[:, 2], 0)
    return Window(traces=[trace], marks=table, first_mark=0, facts=facts, before=[before or State(0, {})])


def test_a_block_is_born_where_the_marks_say_and_is_what_its_address_was_then():
    facts = [[Fact(0, Category.GRADIENT, 1, "m1.weight")], [Fact(0, Category.OPTIMIZER_STATE, 2, "m2.weight")]]
    marks = [
        *((MarkKind.STEP, 0, 1), (MarkKind.ENTER, 1, 5), (MarkKind.LEARN, 0, 15), (MarkKind.EXIT, 1, 16)),
        *((MarkKind.OPTIMIZER, 0, 32), (MarkKind.LEARN, 1, 45), (MarkKind.OPTIMIZER_ENDS, 0, 46)),
    ]
    entries = [("alloc", 0, 512), ("free_requested", 0, 512), ("free_completed", 0, 512), ("alloc", 0, 1024)]
    ledger, _ = join(window_of(entries, marks, facts))
    assert [Phase(phase) for phase in ledger.block_phase] == [Phase.FORWARD, Phase.OPTIMIZER]
    assert [Category(category) for category in ledger.categories] == [Category.GRADIENT, Category.OPTIMIZER_STATE]
    assert ledger.step_numbers.tolist() == [0]


def test_an_input_that_a_module_made_is_no_input():
    marks = [(MarkKind.ENTER, 1, 5), (MarkKind.EXIT, 1, 15), (MarkKind.LEARN, 0, 16)]
    ledger, _ = join(window_of([("alloc", 0, 512)], marks, [[Fact(0, Category.INPUT)]]))
    assert len(ledger.roles) == 0


def test_what_frees_a_block_that_was_never_seen_is_counted():
    _, joiner = join(window_of([("free_requested", 0, 512)]))
    assert joiner.num_unknown_frees == 1


def test_a_state_is_taken_back_to_before_the_entries():
    window = window_of([("alloc", 0, 512), ("free_requested", 4096, 1024), ("alloc", 4096, 2048)])
    now = State.of(0, [segment(0, 512), segment(4096, 2048), segment(8192, 512)])
    before = now.before(window.traces[0])
    assert {address: held.requested for address, held in before.blocks.items()} == {4096: 1024, 8192: 512}
    assert not before.is_exact


def segment(address, size):
    block = {"address": address, "size": size, "requested_size": size, "state": "active_allocated"}
    return {"device": 0, "address": address, "stream": 0, "segment_type": "small", "blocks": [block]}


def test_of_blocks_as_large_as_a_workspace_the_first_that_stays_is_one():
    size = 4096 * 8 * 1024
    marks = [(MarkKind.STEP, 0, 1), (MarkKind.ENTER, 1, 5), (MarkKind.EXIT, 1, 55), (MarkKind.STEP, 1, 56), (MarkKind.STEP, 2, 75)]
    entries = [
        *(("alloc", 0, size), ("free_requested", 0, size), ("free_completed", 0, size)),
        *(("alloc", 40 * MIB, size), ("alloc", 80 * MIB, size), ("alloc", 120 * MIB, size)),
    ]
    ledger, _ = join(window_of(entries, marks))
    assert [Category(role) for role in ledger.roles.role] == [Category.WORKSPACE]
    assert ledger.roles.block.tolist() == [1], "not what was freed, nor what other blocks of that size are"


def test_an_optimizers_step_that_raised_is_over_when_the_next_begins():
    marks = [(MarkKind.STEP, 0, 1), (MarkKind.OPTIMIZER, 7, 2), (MarkKind.OPTIMIZER, 7, 5), (MarkKind.OPTIMIZER_ENDS, 7, 25)]
    ledger, _ = join(window_of([("alloc", 0, 512), ("alloc", 1024, 512), ("alloc", 2048, 512)], marks))
    assert ledger.scopes.parent.tolist() == [-1, -1]
    assert (ledger.scope_exit < len(ledger.events)).all()


def test_notes_outvote_the_clock():
    rows = [
        {"action": "alloc", "addr": 0, "size": 1, "stream": 0, "time_us": 10, "user_metadata": "1"},
        {"action": "oom", "device_free": 7, "size": 2, "stream": 0, "time_us": 11, "user_metadata": ""},
        {"action": "novelty", "addr": 0, "size": 1, "stream": 0, "time_us": 40},
    ]
    trace = read_trace(0, rows, np.array([5000, 20_000, 30_000]), 0)
    assert trace.mark.tolist() == [1, 1, 2]
    assert trace.address[1] == 7
    assert trace.action[2] == OTHER


def test_a_stack_is_named_by_the_programs_own_line_whatever_its_folder_is_called():
    inner = Frame(torch.nn.functional.__file__, 7, "linear")
    assert describe_stack((inner, Frame("/home/somebody/memfit/torch/train.py", 42, "step"))) == "train.py:42 in step"
    assert describe_stack((inner,)) == "functional.py:7 in linear"
