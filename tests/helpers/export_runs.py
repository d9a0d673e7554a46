"""Ledgers that exporting has to cope with."""

from __future__ import annotations

from dataclasses import replace

from memfit.ledger import Category, Ledger, LedgerBuilder, Phase, RunInfo
from memfit.testing import ledger

RUN = ledger(
    """
    alloc 4MiB parameter layers.0.w on cuda:0; alloc 1MiB batch
    step
    enter forward; enter forward layers.0
    alloc 3MiB x on cuda:0; alloc 12MiB y on cuda:0 stream 7; free x
    exit giving 12MiB; exit
    enter backward; enter backward layers.0; alloc 6MiB gradient layers.0.g on cuda:0; resize y 30MiB; free y; exit; exit
    empty-cache on cuda:0
    step; alloc 2KiB z on cuda:0
    """
)
"""Two streams, a resize, an emptied cache, blocks that live on, and blocks on the CPU."""

PREDICTED = replace(RUN, info=RunInfo(source="predicted", rank=3, world_size=8, alloc_conf="expandable_segments:True"))
ON_THE_CPU = ledger("alloc 4MiB parameter a.w; step; enter forward a; alloc 1MiB x; exit; free x")
EMPTY = ledger("")
TWO_GPUS = ledger("alloc 1MiB a on cuda:1; alloc 2MiB b on cuda:3; free b")
CUT_SHORT = ledger("enter forward a; alloc 1KiB x on cuda:0; enter forward a.b; alloc 1KiB y on cuda:0")

RUNS = {
    "measured": RUN,
    "predicted": PREDICTED,
    "cpu": ON_THE_CPU,
    "empty": EMPTY,
    "two gpus": TWO_GPUS,
    "cut short": CUT_SHORT,
}

HOSTILE = ("\x1b]0;owned\x07", "<script>alert(1)</script>", '=cmd|"/c calc"!A0', "a\nb,c", "\u202egnp.exe", "\ud800", "@x", "-1+1")


def hostile_run(name: str) -> Ledger:
    """A run in which everything that can have a name has this one."""
    builder = LedgerBuilder(RunInfo(source=name, versions={name: name}, problem=name, assumptions=(name,)))
    module = builder.module(name, name)
    scope = builder.enter(Phase.FORWARD, module)
    block = builder.alloc(1024, builder.device("cuda:0"), builder.string(name), scope)
    builder.alloc(1024, builder.device(name), builder.string(name), scope)
    builder.role(block, Category.PARAMETER, module, name)
    return builder.build()
