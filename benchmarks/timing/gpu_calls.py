"""Every operator that some code runs on a GPU, with the microseconds that its kernels take: shared by the benchmarks of time.

A dispatch mode names each operator to CUDA's profiler and describes what it was given (``memfit.timing.operators.calls``). The
profiler tells when kernels were launched and how long each ran; a kernel belongs to the operator during which it was launched.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.phantom.clock.describe import describe

LAUNCHES = ("cuda_runtime", "cuda_driver")
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


class CallTracer(TorchDispatchMode):
    """Names every operator to the profiler; with ``before``, does something before each: empties the GPU's cache, for one."""

    def __init__(self, calls: list[tuple[str, str]], label: str, before: Callable[[], Any] | None = None) -> None:
        super().__init__()
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


class Profiled:
    """What ran on the GPU, by call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.microseconds: dict[int, float] = defaultdict(float)
        self.kernels: dict[int, list[str]] = defaultdict(list)
        self.kernel_us: dict[int, list[float]] = defaultdict(list)
        self.busy_us = 0.0

    def tracing(self, label: str, before: Callable[[], Any] | None = None) -> CallTracer:
        return CallTracer(self.calls, label, before)

    def numbers_by_text(self) -> Iterator[tuple[str, str, list[int]]]:
        """Label, call, and the number of each time it ran."""
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, key in enumerate(self.calls):
            if number in self.kernels:
                found[key].append(number)
        for (label, text), numbers in found.items():
            yield label, text, numbers

    def by_text(self) -> Iterator[tuple[str, str, list[float], list[str]]]:
        """Label, call, the microseconds of each time it ran, and its kernels."""
        for label, text, numbers in self.numbers_by_text():
            yield label, text, [self.microseconds[number] for number in numbers], self.kernels[numbers[-1]]


@contextmanager
def profiled(afterwards: Callable[[], Any] = lambda: None) -> Iterator[Profiled]:
    """What happens inside is profiled; the result is there afterwards. ``afterwards`` is called before the result is read, when the
    GPU is free for others."""
    found = Profiled()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        yield found
        torch.cuda.synchronize()
    afterwards()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        _read(json.loads(path.read_text()), found)


def _read(trace: dict[str, Any], found: Profiled) -> None:
    spans: dict[Any, list[tuple[float, float, int]]] = defaultdict(list)
    launches, kernels = [], []
    for event in trace["traceEvents"]:
        kind = event.get("cat")
        if kind == "user_annotation" and event["name"].startswith("call "):
            spans[event["tid"]].append((event["ts"], event["ts"] + event["dur"], int(event["name"][5:])))
        elif kind in LAUNCHES:
            launches.append(event)
        elif kind in ON_GPU:
            kernels.append(event)
    for span in spans.values():
        span.sort()
    starts = {thread: [begin for begin, _, _ in span] for thread, span in spans.items()}
    call_of: dict[int, int] = {}
    for launch in launches:
        thread, at = launch["tid"], launch["ts"]
        place = bisect_right(starts.get(thread, []), at) - 1
        if place >= 0 and at <= spans[thread][place][1]:
            call_of[launch["args"].get("correlation", -1)] = spans[thread][place][2]
    for kernel in sorted(kernels, key=lambda event: event["ts"]):
        found.busy_us += kernel["dur"]
        number = call_of.get(kernel["args"].get("correlation", -2))
        if number is not None:
            found.microseconds[number] += kernel["dur"]
            found.kernels[number].append(kernel["name"][:90])
            found.kernel_us[number].append(kernel["dur"])


def summary(found: Profiled) -> dict[str, dict[str, Any]]:
    """By call: the median microseconds of each label."""
    calls: dict[str, dict[str, Any]] = {}
    for label, text, times, kernels in found.by_text():
        entry = calls.setdefault(text, {})
        entry[label] = round(statistics.median(times), 2)
        entry["kernels"] = kernels if len(kernels) < 5 else [*kernels[:4], f"and {len(kernels) - 4} more"]
    return calls
