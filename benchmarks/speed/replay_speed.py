"""How fast the allocator replays a run, in C and in Python.

python benchmarks/speed/replay_speed.py [TRACE]       by default the largest in benchmarks/truth: Llama-3 70B on 64 GPUs
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from memfit.allocator import AllocatorSettings, load_requests, replay, requests_from_ledger, smallest_fit
from memfit.allocator.engine import Rules, native, prepare, python
from memfit.ledger import Ledger, LedgerBuilder

TRACE = Path(__file__).parents[1] / "truth" / "traces" / "trace_fsdp2_llama3_70b_w64.npz"
NUM_LEDGER_EVENTS = 1_000_000


def main(path: Path) -> None:
    settings = AllocatorSettings()
    requests, ledger = load_requests(path), large_ledger()
    prepared, rules = prepare(requests, settings, use_recorded_addresses=True), Rules.of(settings)
    from_ledger = requests_from_ledger(ledger)
    compiled = native.library()
    table = Table("what", "events", "seconds", "million events a second", box=None)

    def add(what: str, num_events: int, seconds: float) -> None:
        table.add_row(what, f"{num_events:,}", f"{seconds:.3f}", f"{num_events / seconds / 1e6:.2f}")

    add("read the trace", requests.num_events, best(lambda: load_requests(path)))
    if compiled is not None:
        add("engine in C, trace", requests.num_events, best(lambda: native.run(compiled, prepared, rules)))
    add("engine in Python, trace", requests.num_events, best(lambda: python.run(prepared, rules)))
    add("replay, trace", requests.num_events, best(lambda: replay(requests).peak_reserved))
    add("replay, ledger", len(ledger.events), best(lambda: replay(from_ledger).peak_reserved))
    add("replay, ledger, from its events on", len(ledger.events), best(lambda: replay(requests_from_ledger(ledger)).peak_reserved))
    console = Console(width=120)
    console.print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {path.name}")
    console.print(table)
    console.print(f"smallest_fit of the trace: {best(lambda: smallest_fit(requests)):.2f} s")


def best(work: Callable[[], object], times: int = 5) -> float:
    """Seconds, of the fastest of several tries: the others were disturbed."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took)


def large_ledger() -> Ledger:
    """Many steps of one model: what a layer allocates in forward is freed in backward."""
    builder = LedgerBuilder()
    device, op = builder.device("cuda:0"), builder.string("op")
    while len(builder.build().events) < NUM_LEDGER_EVENTS:
        builder.step()
        for _ in range(20):
            blocks = [
                builder.alloc(size, device, op) for layer in range(60) for size in (4096, 40_000 + 512 * layer, 8 << 20, 33 << 20)
            ]
            for block in reversed(blocks):
                builder.free(block)
    return builder.build()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TRACE)
