"""What a dispatch mode that chooses operators costs the host, on a machine with a GPU.

    python benchmarks/plans/plan_mode_cost.py          # on an H200: writes truth/plan_mode_cost.json

The forward of a Llama layer so small that the GPU always waits for the host: without a mode, and under one that keeps nothing.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.plan.applying.host_copies import HostLink
from memfit.plan.applying.kept_outputs import Choices, contexts

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.workloads.zoo import Llama, LlamaArgs

TRUTH = pathlib.Path(__file__).parents[1] / "truth" / "plan_mode_cost.json"
ROUNDS, CALLS = 6, 30


class Counting(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def microseconds(forward: Callable[[], Any], context: Callable[[], Any]) -> dict[str, float]:
    taken = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            with context():
                forward()
        taken.append(1e6 * (time.perf_counter() - start) / CALLS)
    return {"least": round(min(taken), 1), "median": round(statistics.median(taken), 1)}


def main() -> None:
    with torch.device("cuda"):
        model = Llama(LlamaArgs(dim=64, layers=1, heads=4, kv_heads=2, hidden=64, vocab=64, seq=8))
        x = torch.randn(1, 8, 64, requires_grad=True)

    def forward() -> Any:
        return model.layers[0](x, model.cos, model.sin)

    with Counting() as counting:
        forward()
    found: dict[str, Any] = {"operators": counting.count}
    choices, link = Choices(()), HostLink()
    for threads in (torch.get_num_threads(), 1):
        torch.set_num_threads(threads)
        found[f"{threads} threads"] = {
            "without": microseconds(forward, contextlib.nullcontext),
            "with": microseconds(forward, lambda: contexts(choices, link)[0]),
        }
    TRUTH.write_text(json.dumps(found, indent=1) + "\n")
    print(TRUTH.read_text())


if __name__ == "__main__":
    main()
