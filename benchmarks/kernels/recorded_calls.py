"""What the allocator does while something runs on a CUDA GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def recorded(run: Callable[[], T]) -> tuple[T, list[int]]:
    """What ``run`` returns, and the bytes that were taken meanwhile, in order; what was given back is negative."""
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(context=None, max_entries=10_000)
    result = run()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    done = [event for event in events if event["action"] in ("alloc", "free_completed")]
    return result, [event["size"] * (1 if event["action"] == "alloc" else -1) for event in done]
