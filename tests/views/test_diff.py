"""The diff on the terminal: what it says, and that names can only be read."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from helpers.arbitrary_ledgers import ledgers
from hypothesis import given
from rich.console import Console

from memfit.analysis.diff.runs import diff_ledgers
from memfit.ledger import Category, Ledger, LedgerBuilder, Phase, RunInfo
from memfit.testing import ledger
from memfit.views.diff import show_diff

BEFORE = ledger("alloc 4MiB parameter layers.0.w on cuda:0; step; enter forward layers.0; alloc 2MiB x on cuda:0; exit; free x")
AFTER = ledger("alloc 4MiB parameter layers.0.w on cuda:0; step; enter forward layers.0; alloc 3MiB x on cuda:0; exit; free x")


def shown(before: Ledger, after: Ledger, **options: object) -> str:
    console = Console(**{"file": io.StringIO(), "width": 120, "color_system": None} | options)
    show_diff(diff_ledgers(before, after), console)
    return console.file.getvalue()


def lines(before: Ledger, after: Ledger) -> list[str]:
    return [line.rstrip() for line in shown(before, after).splitlines()]


def test_the_whole_picture():
    assert lines(BEFORE, AFTER) == [
        "before  measured, 1 step, the peak of cuda:0 is in step 0, forward of layers.0",
        "after   measured, 1 step, the peak of cuda:0 is in step 0, forward of layers.0",
        "",
        "The peak grew by 1.00 MiB (+16.67%).",
        "  peak          before      after              change",
        "  in use      6.00 MiB   7.00 MiB  +1.00 MiB  +16.67%",
        "  allocated   6.00 MiB   7.00 MiB  +1.00 MiB  +16.67%",
        "  reserved   20.00 MiB  20.00 MiB                 0 B",
        "",
        "By category",
        "     change    before     after  category",
        "  +1.00 MiB  2.00 MiB  3.00 MiB  forward temporary",
        "",
        "By module",
        "     change    before     after  module",
        "  +1.00 MiB  6.00 MiB  7.00 MiB  layers.0",
        "",
        "By the phase in which it was allocated",
        "     change    before     after  phase",
        "  +1.00 MiB  2.00 MiB  3.00 MiB  forward",
        "",
        "By operator",
        "     change    before     after  operator",
        "  +1.00 MiB  2.00 MiB  3.00 MiB  x",
        "",
        "The blocks behind it",
        "     change    before     after  blocks  category           operator  phase    module",
        "  +1.00 MiB  2.00 MiB  3.00 MiB       1  forward temporary  x         forward  layers.0",
        "",
        "The peaks of phases, where they differ",
        "     change    before     after  step  phase",
        "  +1.00 MiB  6.00 MiB  7.00 MiB     0  outside all phases",
        "  +1.00 MiB  6.00 MiB  7.00 MiB     0  forward",
    ]


def test_no_difference_is_said_and_nothing_else():
    found = lines(BEFORE, BEFORE)
    assert found[3] == "No difference: both peaks hold the same blocks, and every phase of every step has the same peak."
    assert len(found) == 8


def test_a_peak_as_high_but_of_something_else():
    assert "The peak has the same size, 1.00 KiB in use, but other contents." in lines(
        ledger("alloc 1KiB x"), ledger("alloc 1KiB y")
    )


def test_more_blocks_of_a_kind():
    def blocks(number: int) -> Ledger:
        builder = LedgerBuilder()
        for _ in range(number):
            builder.alloc(1024, builder.device("cpu"), builder.string("aten.mm"))
        return builder.build()

    found = lines(blocks(2), blocks(5))
    assert found[found.index("The blocks behind it") + 2] == "  +3.00 KiB  2.00 KiB  5.00 KiB  2 -> 5  other     aten.mm"


def test_shrinking():
    assert "The peak shrank by 1.00 MiB (-14.29%)." in lines(AFTER, BEFORE)


@pytest.mark.parametrize(
    ("measured", "predicted", "sentence"),
    [
        (BEFORE, AFTER, "The predicted peak is 1.00 MiB (16.67%) too high."),
        (AFTER, BEFORE, "The predicted peak is 1.00 MiB (14.29%) too low."),
        (ledger("alloc 1KiB x"), ledger("alloc 1KiB y"), "The predicted peak is exact: 1.00 KiB in use."),
    ],
)
def test_where_a_prediction_errs_in_either_order(measured: Ledger, predicted: Ledger, sentence: str):
    predicted = replace(predicted, info=RunInfo(source="predicted"))
    there, back = lines(measured, predicted), lines(predicted, measured)
    assert sentence in there
    assert sentence in back
    assert [line.split()[0] for line in there[:2]] == ["measured", "predicted"]
    assert any(line.split() == ["peak", "predicted", "measured", "change"] for line in back)


def test_what_makes_them_hard_to_compare_is_said():
    before = replace(BEFORE, info=RunInfo(versions={"torch": "2.11"}, gpu="H100", rank=0, world_size=8, problem="it died"))
    after = replace(AFTER, info=RunInfo(versions={"torch": "2.13"}, rank=3, world_size=8, alloc_conf="expandable_segments:True"))
    text = shown(before, after)
    assert "torch differs: 2.11 and 2.13\n" in text
    assert "gpu differs" not in text
    assert "rank 0 of 8" in text
    assert "rank 3 of 8" in text
    assert "the allocator's settings differ: default and expandable_segments:True\n" in text
    assert "one is incomplete: it died" in text
    assert "one ran on cpu, the other on cuda:0: they use different kernels\n" in shown(ledger("alloc 1KiB x"), BEFORE)
    assert "they have 1 and 2 steps" in shown(BEFORE, ledger("step; step; alloc 1KiB x on cuda:0"))


def test_of_many_changes_the_largest_are_shown_and_the_rest_is_summed_up():
    many = ledger("; ".join(f"alloc {i}KiB parameter {'abcdefghijklmnopqrst'[i]}.w" for i in range(1, 20)))
    found = lines(ledger(""), many)
    modules = found[found.index("By module") + 2 :]
    assert [line.split()[-1] for line in modules[:9]] == [*"tsrqponm", "more"]
    assert modules[8].split() == ["+66.00", "KiB", "11", "more"]


def test_of_many_levels_the_largest_are_shown_in_order():
    def steps(size: int) -> Ledger:
        return ledger("; ".join(f"step; alloc {size * (i + 1)}KiB x; free x" for i in range(20)))

    found = lines(steps(1), steps(2))
    levels = found[found.index("The peaks of phases, where they differ") + 2 :]
    assert [line.split()[6] for line in levels[:-1]] == [str(step) for step in range(8, 20)]
    assert levels[-1].split() == ["8", "more"]


def test_colours_on_a_terminal_and_none_in_a_pipe():
    assert "\x1b[" not in shown(BEFORE, AFTER, color_system="auto")
    assert "\x1b[31m+1.00 MiB" in shown(BEFORE, AFTER, force_terminal=True, color_system="standard")
    assert "\x1b[32m-1.00 MiB" in shown(AFTER, BEFORE, force_terminal=True, color_system="standard")


def hostile(name: str) -> Ledger:
    builder = LedgerBuilder(RunInfo(source=name, versions={"torch": name}, problem=name, alloc_conf=""))
    module = builder.module(name, name)
    block = builder.alloc(1, builder.device(name), builder.string(name), builder.enter(Phase.FORWARD, module))
    builder.role(block, Category.PARAMETER, module, name)
    return builder.build()


@pytest.mark.parametrize(
    "name", ["\x1b]0;owned\x07", "[red]x[/red]", "[/]", "a\nb", ":smile:", "\u202egnp.exe", "\ud800"], ids=ascii
)
def test_names_are_read_and_not_performed(name: str):
    printed = shown(hostile(name), hostile("harmless"))
    assert all(line.isprintable() for line in printed.split("\n"))
    if name.isprintable():
        assert name in printed


@given(ledgers, ledgers)
def test_every_two_runs_can_be_shown(before: Ledger, after: Ledger):
    printed = shown(before, after)
    assert all(line.isprintable() for line in printed.split("\n"))
    printed.encode()
