"""How much the allocator gave for each request is known from where it gave it: checked against what H200s counted."""

from pathlib import Path

import numpy as np
import pytest

from memfit.allocator import parse_alloc_conf
from memfit.record.sources.allocator.extents import Extents
from memfit.record.sources.allocator.traces import Held, State
from memfit.units import MIB

TRACES = Path(__file__).parents[4] / "benchmarks" / "truth" / "traces"


@pytest.mark.parametrize("name", ["fsdp1_full", "hf_resnet", "llama_amp"])
def test_the_peak_of_a_real_trace_is_what_the_gpu_counted(name):
    with np.load(TRACES / f"trace_{name}.npz") as trace:
        actions = [str(action) for action in trace["actions"]]
        extents, held, in_use, peak = Extents(parse_alloc_conf("", "2.11")), {}, 0, 0
        for action, address, size in zip(*(trace[column].tolist() for column in ("action", "addr", "size")), strict=True):
            match actions[action]:
                case "alloc":
                    held[address] = extents.give(address, size)
                    in_use += held[address]
                    peak = max(peak, in_use)
                case "free_requested":
                    in_use -= held.pop(address, 0)
                case "free_completed":
                    extents.take_back(address)
                case "segment_alloc":
                    extents.add_segment(address, size)
                case "segment_free":
                    extents.remove_segment(address)
        assert peak == int(trace["peak_allocated"])
        assert extents.is_exact


def made(**settings):
    extents = Extents(parse_alloc_conf(settings.get("conf", ""), "2.11"))
    extents.add_segment(0, 20 * MIB)
    return extents


def test_a_small_rest_is_given_too():
    extents = made()
    assert extents.give(0, 19 * MIB + 1) == 20 * MIB
    extents.take_back(0)
    assert extents.give(0, 19 * MIB - 512) == 19 * MIB - 512
    assert extents.largest_free == MIB + 512


def test_free_neighbours_become_one_but_not_across_segments():
    extents = made()
    extents.add_segment(20 * MIB, 20 * MIB)
    extents.give(0, 5 * MIB)
    extents.give(5 * MIB, 5 * MIB)
    extents.give(20 * MIB, 5 * MIB)
    for address in (0, 20 * MIB, 5 * MIB):
        extents.take_back(address)
    assert extents.largest_free == 20 * MIB


def test_what_was_never_seen_is_counted_as_asked_and_said():
    extents = made()
    assert extents.give(99 * MIB, 3 * MIB + 1) == 3 * MIB + 512
    assert not extents.is_exact


def test_small_blocks_and_expandable_segments_are_always_split():
    assert made().give(0, 1000) == 1024
    assert made(conf="expandable_segments:True").give(0, 19 * MIB + 1) == 19 * MIB + 512


def test_blocks_that_were_there_before_are_known():
    state = State(0, {0: Held(3 * MIB, 4 * MIB, 0)}, free={4 * MIB: 16 * MIB}, segments=frozenset({0}))
    extents = Extents(parse_alloc_conf("", "2.11"), state)
    extents.take_back(0)
    assert extents.largest_free == 20 * MIB
