"""What two runs differ in: exact figures on runs made by hand, and the laws for any two."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from helpers.arbitrary_ledgers import ledgers
from hypothesis import given

from memfit.allocator import parse_alloc_conf, replay, requests_from_ledger
from memfit.analysis import INIT
from memfit.analysis.diff.runs import Diff, diff_ledgers
from memfit.ledger import Category, Ledger, Phase, RunInfo
from memfit.testing import ledger
from memfit.units import KIB, MIB, Allowance


def run(width: int = 1, layers: int = 2, steps: int = 2, device: str = "cuda:0", extra: str = "") -> Ledger:
    """A few layers with activations of so many MiB."""
    forward = "; ".join(f"enter forward layers.{i}; alloc {width}MiB x{i} on {device}; exit" for i in range(layers))
    backward = "; ".join(f"enter backward layers.{i}; free x{i}; exit" for i in reversed(range(layers)))
    weights = "; ".join(f"alloc 4MiB parameter layers.{i}.w on {device}" for i in range(layers))
    step = f"step; enter forward; {forward}; exit; enter backward; {backward}; exit; {extra}"
    return ledger("; ".join([weights, *[step] * steps]))


def changes(parts) -> list[tuple[str, int]]:
    return [(change.name, change.change_bytes) for change in parts]


def test_what_grew_by_every_aspect():
    diff = diff_ledgers(run(), run(width=3))
    assert [(f.name, f.before_bytes, f.after_bytes) for f in diff.figures] == [
        ("in use", 10 * MIB, 14 * MIB),
        ("allocated", 10 * MIB, 14 * MIB),
        ("reserved", 22 * MIB, 20 * MIB),
    ]
    assert changes(diff.categories) == [("activation", 4 * MIB)]
    assert changes(diff.modules) == [("layers.*", 4 * MIB)]
    assert changes(diff.phases) == [("forward", 4 * MIB)]
    assert changes(diff.ops) == [("x0", 2 * MIB), ("x1", 2 * MIB)]
    first = diff.blocks[0]
    assert (first.kind.category, first.kind.module, first.kind.phase, first.kind.op) == (
        Category.ACTIVATION,
        "layers.0",
        Phase.FORWARD,
        "x0",
    )
    assert (first.before_bytes, first.after_bytes, first.before_blocks, first.after_blocks) == (MIB, 3 * MIB, 1, 1)


def test_the_largest_change_comes_first_whichever_way_it_goes():
    before = ledger("alloc 1KiB parameter a.w; alloc 8KiB parameter b.w; alloc 2KiB parameter c.w")
    after = ledger("alloc 3KiB parameter a.w; alloc 1KiB parameter b.w; alloc 2KiB parameter c.w")
    assert changes(diff_ledgers(before, after).modules) == [("b", -7 * KIB), ("a", 2 * KIB)]


def test_layers_are_put_together_where_they_go_the_same_way():
    before = ledger("; ".join(f"alloc 4KiB parameter layers.{i}.w" for i in range(4)))
    after = ledger("; ".join(f"alloc {size}KiB parameter layers.{i}.w" for i, size in enumerate((5, 6, 4, 1))))
    found = diff_ledgers(before, after).modules
    assert changes(found) == [("layers.*", 3 * KIB), ("layers.3", -3 * KIB)]
    assert (found[0].before_bytes, found[0].before_blocks) == (8 * KIB, 2)


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ({f"blocks.{i}.mlp.{j}": 1 + 4 * j for i in range(12) for j in (0, 2)}, ["blocks.*.mlp.2", "blocks.*.mlp.0"]),
        ({f"layers.{i}": 9 if i in (1, 3, 10) else 3 for i in range(12)}, ["layers.1 ... layers.10", "layers.0 ... layers.11"]),
    ],
    ids=["one way for each place in a layer", "one way for some layers"],
)
def test_no_two_rows_have_one_name(sizes: dict[str, int], names: list[str]):
    before = ledger("; ".join(f"alloc 4KiB parameter {name}.w" for name in sizes))
    after = ledger("; ".join(f"alloc {size}KiB parameter {name}.w" for name, size in sizes.items()))
    found = diff_ledgers(before, after)
    assert [change.name for change in found.modules] == names
    assert sum(change.change_bytes for change in found.modules) == KIB * sum(size - 4 for size in sizes.values())


def test_what_only_one_run_has():
    diff = diff_ledgers(ledger("alloc 1KiB x"), ledger("enter forward a; alloc 3KiB y"))
    assert changes(diff.ops) == [("y", 3 * KIB), ("x", -KIB)]
    assert changes(diff.modules) == [("a", 3 * KIB), ("", -KIB)]
    assert changes(diff.phases) == [("forward", 3 * KIB), ("", -KIB)]
    assert [change.before_blocks for change in diff.ops] == [0, 1]


def test_the_levels_of_each_phase_of_each_step():
    diff = diff_ledgers(run(), run(width=3))
    assert [(level.step, level.phase, level.change_bytes // MIB) for level in diff.levels] == [
        (0, None, 4),
        (0, Phase.FORWARD, 4),
        (0, Phase.BACKWARD, 4),
        (1, None, 4),
        (1, Phase.FORWARD, 4),
        (1, Phase.BACKWARD, 4),
    ]
    assert diff.levels[0].before_bytes == 10 * MIB, "between forward and backward"


def test_a_run_with_more_steps_is_compared_in_those_that_both_have():
    diff = diff_ledgers(run(steps=1), run(width=2, steps=3))
    assert {level.step for level in diff.levels} == {0}
    assert (diff.before.num_steps, diff.after.num_steps) == (1, 3)


def test_the_gpu_that_holds_most_is_looked_at_whatever_its_name():
    diff = diff_ledgers(run(extra="alloc 1MiB y on cuda:1; free y"), run(device="cuda:3", extra="alloc 64MiB y; free y"))
    assert diff.before.peak is not None
    assert diff.after.peak is not None
    assert (diff.before.peak.device, diff.after.peak.device) == ("cuda:0", "cuda:3")
    assert diff.empty


def test_without_a_gpu_there_is_only_what_was_in_use():
    assert [figure.name for figure in diff_ledgers(run(device="cpu"), run(device="cpu")).figures] == ["in use"]
    assert [figure.name for figure in diff_ledgers(run(device="cpu"), run()).figures] == ["in use"]


def test_an_empty_run():
    diff = diff_ledgers(ledger(""), run())
    assert diff.before.peak is None
    assert diff.figures[0].change_bytes == 10 * MIB
    assert diff_ledgers(ledger(""), ledger("")).empty


def test_the_allocator_runs_under_each_ones_settings():
    expandable = replace(run(), info=RunInfo(alloc_conf="expandable_segments:True"))
    diff = diff_ledgers(run(), expandable)
    assert [figure.change_bytes for figure in diff.figures[:2]] == [0, 0]
    assert (
        diff.figures[2].after_bytes
        == replay(requests_from_ledger(run()), parse_alloc_conf("expandable_segments:True")).peak_reserved
    )


@pytest.mark.parametrize(
    ("text", "over"),
    [("40%", []), ("39.9%", ["allocated"]), ("4MiB", []), ("3.99MiB", ["allocated"]), ("0", ["allocated"]), ("0%", ["allocated"])],
)
def test_growth_over_an_allowance(text: str, over: list[str]):
    diff = diff_ledgers(run(), run(width=3))
    assert [figure.name for figure in diff.grown_over(Allowance.parse(text))] == over
    assert [figure.name for figure in diff_ledgers(run(width=3), run()).grown_over(Allowance.parse("0"))] == ["reserved"]


def test_growth_without_an_allocator():
    diff = diff_ledgers(run(device="cpu"), run(width=3, device="cpu"))
    assert [figure.name for figure in diff.grown_over(Allowance.parse("1MiB"))] == ["in use"]


def test_json_is_plain_and_says_the_changes():
    found = json.loads(json.dumps(diff_ledgers(run(), run(width=3)).to_json()))
    assert found["figures"][1] == {
        "name": "allocated",
        "before_bytes": 10 * MIB,
        "after_bytes": 14 * MIB,
        "change_bytes": 4 * MIB,
    }
    assert found["blocks"][0]["kind"] == {"category": "activation", "module": "layers.0", "phase": "forward", "op": "x0"}
    assert found["levels"][1] == {
        "before_bytes": 10 * MIB,
        "after_bytes": 14 * MIB,
        "change_bytes": 4 * MIB,
        "step": 0,
        "phase": "forward",
    }


# -- laws --------------------------------------------------------------------------------------------------------------------


def parts(diff: Diff):
    return diff.categories, diff.modules, diff.phases, diff.ops, diff.blocks


@given(ledgers)
def test_a_run_does_not_differ_from_itself(run: Ledger):
    diff = diff_ledgers(run, run)
    assert diff.empty
    assert not any(parts(diff))


@given(ledgers, ledgers)
def test_the_parts_sum_to_the_change_of_the_peak(before: Ledger, after: Ledger):
    diff = diff_ledgers(before, after)
    sizes = [side.peak.size_bytes if side.peak else 0 for side in (diff.before, diff.after)]
    assert diff.figures[0].change_bytes == sizes[1] - sizes[0]
    for part in parts(diff):
        assert sum(change.change_bytes for change in part) == diff.figures[0].change_bytes
        assert all(change.change_bytes for change in part)
        sizes = [abs(change.change_bytes) for change in part]
        assert sizes == sorted(sizes, reverse=True)


@given(ledgers, ledgers)
def test_the_way_back_is_the_opposite(before: Ledger, after: Ledger):
    there, back = diff_ledgers(before, after), diff_ledgers(after, before)
    assert (there.before, there.after) == (back.after, back.before)
    for forth, opposite in zip(
        (*parts(there), there.figures, there.levels), (*parts(back), back.figures, back.levels), strict=True
    ):
        assert forth == tuple(turned(change) for change in opposite)


def turned(change):
    swapped = {"before_bytes": change.after_bytes, "after_bytes": change.before_bytes}
    if hasattr(change, "before_blocks"):
        swapped |= {"before_blocks": change.after_blocks, "after_blocks": change.before_blocks}
    return replace(change, **swapped)


@given(ledgers, ledgers)
def test_no_level_is_above_the_peak(before: Ledger, after: Ledger):
    diff = diff_ledgers(before, after)
    for level in diff.levels:
        assert 0 <= level.before_bytes <= diff.figures[0].before_bytes
        assert 0 <= level.after_bytes <= diff.figures[0].after_bytes
        assert INIT <= level.step < min(diff.before.num_steps, diff.after.num_steps)
        assert level.change_bytes
