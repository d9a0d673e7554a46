"""The terminal view: what it says, and that names in a ledger can only be read."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from helpers.arbitrary_ledgers import ledgers
from hypothesis import given
from rich.console import Console

from memfit.analysis import build_report
from memfit.ledger import Category, Ledger, LedgerBuilder, Phase, RunInfo
from memfit.testing import ledger
from memfit.views import show
from memfit.views.terminal import show_assumptions

RUN = ledger(
    """
    alloc 4MiB parameter layers.0.w on cuda:0; alloc 4MiB parameter layers.1.w on cuda:0; alloc 1MiB batch
    step; enter forward layers.0; alloc 2MiB x on cuda:0; exit
    enter backward; enter backward layers.0; alloc 6MiB gradient layers.0.g on cuda:0; free x; exit; exit
    step
    """
)


def shown(run: Ledger, **options: object) -> str:
    """What the view prints into a file or pipe."""
    console = Console(**{"file": io.StringIO(), "width": 120, "color_system": None} | options)
    show(build_report(run), console)
    return console.file.getvalue()


def lines(run: Ledger) -> list[str]:
    return [line.rstrip() for line in shown(run).splitlines()]


def first_words_of_steps(run: Ledger) -> list[str]:
    words = [line.split()[0] for line in lines(run) if line]
    return words[words.index("init") :]


def test_the_whole_picture():
    assert lines(replace(RUN, info=RunInfo(versions={"torch": "2.13", "memfit": "0.1"}))) == [
        "measured, 2 steps, 14 events, torch 2.13, memfit 0.1",
        "",
        "cuda:0  peak 16.00 MiB  in step 0, backward of layers.0",
        "",
        "The peak by category",
        "  parameter   8.00 MiB  50.0%  ████████████████████",
        "  gradient    6.00 MiB  37.5%  ███████████████",
        "  activation  2.00 MiB  12.5%  █████",
        "",
        "The modules that hold it",
        "  module    modules      bytes",
        "  layers.*        2  16.00 MiB",
        "",
        "The largest blocks in it",
        "     bytes  category    op          belongs to",
        "  6.00 MiB  gradient    layers.0.g  layers.0.g",
        "  4.00 MiB  parameter   layers.0.w  layers.0.w",
        "  4.00 MiB  parameter   layers.1.w  layers.1.w",
        "  2.00 MiB  activation  x           layers.0",
        "",
        "The peak of each step",
        "  step       peak  at its end  the peak is in",
        "  init   8.00 MiB    8.00 MiB",
        "     0  16.00 MiB   14.00 MiB  backward of layers.0",
        "     1  14.00 MiB   14.00 MiB",
        "",
        "cpu  peak 1.00 MiB  before the first step",
        "",
        "The peak by category",
        "  other  1.00 MiB  100.0%  ████████████████████████████████████████",
    ]


def test_an_incomplete_ledger_says_so():
    text = shown(replace(RUN, info=RunInfo(problem="the process died")))
    assert "incomplete: the process died" in text


def test_a_prediction_says_what_it_assumed():
    info = RunInfo(source="predicted", rank=3, world_size=8, assumptions=("nonzero() found everything",))
    text = shown(replace(RUN, info=info))
    assert text.startswith("predicted, 2 steps, 14 events, rank 3 of 8\n1 assumption (memfit show --assumptions)\n")
    console = Console(file=io.StringIO(), width=100)
    show_assumptions(build_report(replace(RUN, info=info)), console)
    assert console.file.getvalue() == "- nonzero() found everything\n"


def test_a_prediction_says_what_it_is_about_and_where_it_is_from():
    asked = {"model": "llama3-8b", "gpu": "H100-80GB", "world_size": 8, "strategy": "full_shard", "batch": 2, "tp": 1, "mesh": []}
    info = RunInfo(source="predicted", asked=asked, command="memfit predict --model llama3-8b", made_at="2026-11-18 02:10 UTC")
    first, _, third = shown(replace(RUN, info=info)).splitlines()[:3]
    assert first == "llama3-8b on 8 x H100-80GB, full_shard, batch 2"
    assert third == "Made 2026-11-18 02:10 UTC by memfit predict --model llama3-8b"


def test_what_no_module_owns_is_named():
    assert "  outside all modules           512 B" in lines(ledger("alloc 512 x"))


def test_of_many_steps_the_ends_and_the_highest_are_shown():
    script = "; ".join("step; alloc 2KiB x; free x" if i == 50 else "step; alloc 1KiB x; free x" for i in range(100))
    assert first_words_of_steps(ledger(script)) == [
        "init",
        "0",
        "1",
        "2",
        "3",
        "4",
        "...",
        "50",
        "...",
        "95",
        "96",
        "97",
        "98",
        "99",
    ]


def test_few_steps_are_all_shown():
    assert first_words_of_steps(ledger("alloc 1 x;" + "step;" * 10)) == ["init", *map(str, range(10))]


def test_an_empty_ledger_and_an_unused_device():
    assert lines(ledger("")) == ["measured, 0 steps, 0 events"]
    builder = LedgerBuilder()
    builder.device("cuda:0")
    assert lines(builder.build()) == ["measured, 0 steps, 0 events", "", "cuda:0  peak 0 B  before the first step"]


def test_colours_on_a_terminal_and_none_in_a_pipe():
    assert "\x1b[" not in shown(RUN, color_system="auto")
    assert "\x1b[34m█" in shown(RUN, force_terminal=True, color_system="standard")


def test_an_ascii_terminal_gets_ascii():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(build_report(RUN), Console(file=file, width=120))
    file.seek(0)
    assert "####" in file.read()


HOSTILE = ["\x1b]0;owned\x07", "[red]x[/red]", "[/]", "a\nb", ":smile:", "[link=http://x]y[/link]", "\u202egnp.exe", "\ud800"]


def hostile_ledger(name: str) -> Ledger:
    builder = LedgerBuilder(RunInfo(source=name, versions={name: name}, problem=name, assumptions=(name,)))
    module = builder.module(name, name)
    scope = builder.enter(Phase.FORWARD, module)
    block = builder.alloc(1, builder.device(name), builder.string(name), scope)
    builder.role(block, Category.PARAMETER, module, name)
    return builder.build()


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_names_are_read_and_not_performed(name: str, terminal: bool):
    printed = shown(hostile_ledger(name), force_terminal=terminal)
    harmless = shown(hostile_ledger("x" * len(ascii(name))), force_terminal=terminal)
    assert len(printed.splitlines()) == len(harmless.splitlines())
    for control in ("\x1b]", "\x07", "\u202e", "\ud800"):
        assert control not in printed
    if name.isprintable():
        assert name in printed


@given(ledgers)
def test_every_ledger_can_be_shown(run: Ledger):
    printed = shown(run)
    assert all(line.isprintable() for line in printed.split("\n"))
    printed.encode()
