"""How long a million events take to analyse: ``python benchmarks/speed/analysis_speed.py``.

The ledger is made up: a model of 32 layers with 30 modules each, trained for five steps, about a hundred events a module call.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from memfit.analysis import build_report, gather_module_stats, take_snapshots, trace_lifetimes
from memfit.ledger import Category, Ledger, LedgerBuilder, Phase

NUM_LAYERS, MODULES_PER_LAYER, NUM_STEPS = 32, 30, 5
OPS = [f"aten.op{number}" for number in range(50)]


class Run:
    """A made-up training run, straight into a builder."""

    def __init__(self, num_events: int) -> None:
        self.builder = LedgerBuilder()
        self.random = Random(0)
        self.gpu = self.builder.device("cuda:0")
        self.ops = [self.builder.string(op) for op in OPS]
        root = self.builder.module("", "Transformer")
        self.layers = [self.builder.module(f"layers.{i}", "Block", root) for i in range(NUM_LAYERS)]
        self.leaves = [
            [self.builder.module(f"layers.{i}.part{j}", "Linear", layer) for j in range(MODULES_PER_LAYER)]
            for i, layer in enumerate(self.layers)
        ]
        self.temporaries = num_events // (NUM_STEPS * NUM_LAYERS * MODULES_PER_LAYER * 2 * 2)

    def record(self) -> Ledger:
        for leaf in (leaf for leaves in self.leaves for leaf in leaves):
            self.builder.role(self.alloc(2**24), Category.PARAMETER, leaf, "weight")
        for _ in range(NUM_STEPS):
            self.builder.step()
            saved = self.forward()
            self.backward(saved)
        return self.builder.build()

    def forward(self) -> list[int]:
        saved = []
        for layer, leaves in zip(self.layers, self.leaves, strict=True):
            outer = self.builder.enter(Phase.FORWARD, layer)
            for leaf in leaves:
                scope = self.builder.enter(Phase.FORWARD, leaf, outer, size=2**20)
                self.work(scope)
                saved.append(self.alloc(2**20, scope))
                self.builder.exit(scope, size=2**20)
            self.builder.exit(outer)
        return saved

    def backward(self, saved: list[int]) -> None:
        whole = self.builder.enter(Phase.BACKWARD)
        for layer, leaves in zip(reversed(self.layers), reversed(self.leaves), strict=True):
            outer = self.builder.enter(Phase.BACKWARD, layer, whole)
            for leaf in reversed(leaves):
                scope = self.builder.enter(Phase.BACKWARD, leaf, outer)
                self.work(scope)
                self.builder.free(saved.pop())
                self.builder.exit(scope)
            self.builder.exit(outer)
        self.builder.exit(whole)

    def work(self, scope: int) -> None:
        for block in [self.alloc(self.random.randrange(2**20), scope) for _ in range(self.temporaries)]:
            self.builder.free(block)

    def alloc(self, size: int, scope: int = -1) -> int:
        return self.builder.alloc(size, self.gpu, self.random.choice(self.ops), scope)


def timed(what: str, work: Callable[[Ledger], object], ledger: Ledger) -> float:
    start = time.perf_counter()
    work(ledger)
    seconds = time.perf_counter() - start
    print(f"{what:<28}{seconds:8.2f} s")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    ledger = Run(parser.parse_args().events).record()
    tables = (ledger.events, ledger.blocks, ledger.scopes, ledger.modules)
    print(", ".join(f"{len(table):,} {table.NAME}" for table in tables))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.memfit"
        timed("save", lambda ledger: ledger.save(path), ledger)
        timed("load", lambda _: Ledger.load(path), ledger)
        fresh = Ledger.load(path)
    timed("check", Ledger.check, fresh)
    timed("build_report", build_report, fresh)
    timed("module statistics again", lambda ledger: gather_module_stats(ledger, 0), fresh)
    timed("all snapshots", take_snapshots, fresh)
    timed("all lifetimes", trace_lifetimes, fresh)


if __name__ == "__main__":
    main()
