"""Runs a script on this machine's GPU for so many steps of an optimizer, and writes what the allocator says.

    python on_gpu.py STEPS OUT.json [torchrun ... | accelerate launch ... | -m module | script.py] ARGUMENTS...

After so many steps its data end, so that an evaluation after an epoch runs too; the next epoch ends it, or the fourth step.
Launchers of one process are passed over: the script runs in this one, with the environment that accelerate would give it. More
processes than one are not measured here. ``WILD_SNAPSHOT=FILE`` writes the allocator's history there, for ``memfit fit FILE``.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
import time
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

STEPS_AHEAD = 3
"""Some scripts fetch batches ahead, and others none at all."""


class _EnoughError(BaseException):
    """Ends the script; no ``except Exception`` of a script catches it."""


def _program(words: list[str]) -> list[str]:
    """What the launcher would run."""
    if words[:2] == ["accelerate", "launch"]:
        words = words[2:]
        while words[0].startswith("--"):
            if words[0] == "--mixed_precision":
                os.environ["ACCELERATE_MIXED_PRECISION"] = words[1]
            words = words[2:]
    if words[0] == "trl":  # it would start accelerate, and that the script
        words = ["-m", f"trl.scripts.{words[1]}", *words[2:]]
    return words


def main() -> None:
    steps, out, words = int(sys.argv[1]), Path(sys.argv[2]), _program(sys.argv[3:])
    peaks: list[int] = []

    next_batch = _BaseDataLoaderIter.__next__
    has_ended = has_begun_again = False

    def fetch(iterator: _BaseDataLoaderIter) -> object:
        nonlocal has_ended, has_begun_again
        if len(peaks) >= steps and not has_ended:
            has_ended = True
            raise StopIteration
        batch = next_batch(iterator)
        has_begun_again |= has_ended
        return batch

    def stepped(*_: object) -> None:
        peaks.append(torch.cuda.max_memory_allocated())
        if (len(peaks) > steps and has_begun_again) or len(peaks) > steps + STEPS_AHEAD:
            raise _EnoughError

    _BaseDataLoaderIter.__next__ = fetch  # type: ignore[method-assign]
    register_optimizer_step_post_hook(stepped)
    snapshot = os.environ.get("WILD_SNAPSHOT")
    if snapshot:
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    start = time.perf_counter()
    is_module = words[0] == "-m"
    program = words[1] if is_module else words[0]
    sys.argv = words[is_module:]
    sys.path.insert(0, "" if is_module else str(Path(program).parent))
    try:
        if is_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program if Path(program).exists() else str(shutil.which(program)), run_name="__main__")
    except (_EnoughError, SystemExit):
        pass
    found = {
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "steps": len(peaks),
        "peaks_after_steps": peaks,
        "seconds": time.perf_counter() - start,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
    }
    out.write_text(json.dumps(found))
    if snapshot:
        torch.cuda.memory._dump_snapshot(snapshot)


if __name__ == "__main__":
    main()
