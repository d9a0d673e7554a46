"""How long the kernels of every operator took: a dispatch mode names operators to CUDA's profiler, which times kernels."""

from __future__ import annotations

import json
import statistics
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from memfit.phantom.clock.describe import describe
from memfit.torch_compat.dispatch import TorchDispatchMode

_LAUNCHES: Final = ("cuda_runtime", "cuda_driver")
_ON_CARD: Final = ("kernel", "gpu_memcpy", "gpu_memset")


class KernelTimes:
    """Microseconds by call and label."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, str]] = []
        self._microseconds: dict[int, float] = defaultdict(float)

    def naming(self, label: str, before: Callable[[], Any] | None = None) -> _OperatorNames:
        """A mode in which every operator is timed; with ``before``, something is done before each."""
        return _OperatorNames(self._calls, label, before)

    def medians(self) -> dict[str, dict[str, float]]:
        """Call, then label."""
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for number, (label, text) in enumerate(self._calls):
            if number in self._microseconds:
                found[text][label].append(self._microseconds[number])
        return {text: {label: statistics.median(times) for label, times in by.items()} for text, by in found.items()}

    def read(self, trace: dict[str, Any]) -> None:
        """A kernel belongs to the operator during which it was launched."""
        spans: dict[Any, list[tuple[float, float, int]]] = defaultdict(list)
        for event in trace["traceEvents"]:
            if event.get("cat") == "user_annotation" and event["name"].startswith("call "):
                spans[event["tid"]].append((event["ts"], event["ts"] + event["dur"], int(event["name"][5:])))
        for each in spans.values():
            each.sort()
        starts = {thread: [begin for begin, _, _ in each] for thread, each in spans.items()}
        owner: dict[int, int] = {}
        for event in trace["traceEvents"]:
            if event.get("cat") in _LAUNCHES:
                place = bisect_right(starts.get(event["tid"], []), event["ts"]) - 1
                if place >= 0 and event["ts"] <= spans[event["tid"]][place][1]:
                    owner[event["args"].get("correlation", -1)] = spans[event["tid"]][place][2]
        for event in trace["traceEvents"]:
            if event.get("cat") in _ON_CARD:
                number = owner.get(event["args"].get("correlation", -2))
                if number is not None:
                    self._microseconds[number] += event["dur"]


class _OperatorNames(TorchDispatchMode):
    def __init__(self, calls: list[tuple[str, str]], label: str, before: Callable[[], Any] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls, self._label, self._before = calls, label, before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in (torch.Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented
        if self._before is not None:
            self._before()
        self._calls.append((self._label, ""))
        number = len(self._calls) - 1
        with record_function(f"call {number}"):
            result = func(*args, **(kwargs or {}))
        self._calls[number] = (self._label, str(describe(func, args, result)))
        return result


@contextmanager
def kernel_times() -> Iterator[KernelTimes]:
    """What happens inside is profiled; figures are there afterwards."""
    found = KernelTimes()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        yield found
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        found.read(json.loads(path.read_text(encoding="utf-8")))
