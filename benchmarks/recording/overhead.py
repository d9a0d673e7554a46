"""What tracking costs: a training step bare, under memfit.track and under PyTorch's MemTracker, all in one run.

    python benchmarks/recording/overhead.py                  # the whole table, a few minutes
    python benchmarks/recording/overhead.py --modules 60 480 # fewer sizes
    python benchmarks/recording/overhead.py --write          # also into benchmarks/results/overhead.md

The three kinds of step take turns, so that a noisy machine is noisy for all of them; the figures are medians, and only their ratios
mean something.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import pathlib
import platform
import statistics
import time

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

import memfit

RESULT = pathlib.Path(__file__).parents[1] / "results" / "overhead.md"


class Block(nn.Module):
    """Four modules: itself and three inside."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def build(num_modules: int, dim: int = 32, batch: int = 8):
    model = nn.Sequential(*(Block(dim) for _ in range(num_modules // 4)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.randn(batch, dim)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, x, step


def seconds(step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure(num_modules: int, fake: bool, rounds: int, torch_rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {"bare": [], "memfit": [], "torch": []}
    with FakeTensorMode() if fake else contextlib.nullcontext():
        model, optimizer, x, step = build(num_modules)
        step(), step()
        for turn in range(rounds):
            gc.collect()
            times["bare"].append(seconds(step))
            with memfit.track(model, optimizer, x):
                step()
                times["memfit"].append(seconds(step))
            if turn < torch_rounds:
                tracker = MemTracker()
                tracker.track_external(model, optimizer, x)
                with tracker:
                    times["torch"].append(seconds(step))
    return {name: statistics.median(values) for name, values in times.items() if values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", type=int, nargs="+", default=[60, 480, 960])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    args = parser.parse_args()
    torch.manual_seed(0)
    lines = [
        f"torch {torch.__version__}, python {platform.python_version()}, {torch.get_num_threads()} threads, CPU; "
        "`python benchmarks/recording/overhead.py --write`",
        "",
        "| tensors | modules | bare step | memfit | torch MemTracker | memfit / bare | torch / bare | memfit / torch |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for fake in (False, True):
        for num_modules in args.modules:
            t = measure(num_modules, fake, args.rounds, torch_rounds=3 if num_modules < 400 else 1)
            lines.append(
                f"| {'fake' if fake else 'real'} | {num_modules} | {t['bare'] * 1e3:.1f} ms | {t['memfit'] * 1e3:.1f} ms "
                f"| {t['torch'] * 1e3:.1f} ms | {t['memfit'] / t['bare']:.2f} | {t['torch'] / t['bare']:.1f} "
                f"| {t['memfit'] / t['torch']:.3f} |"
            )
            print(lines[-1], flush=True)
    if args.write:
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
