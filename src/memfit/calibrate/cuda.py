"""The card at hand, measured with torch."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import torch

from memfit.calibrate.fitting import TimedCall
from memfit.calibrate.host_cases import measure_host
from memfit.calibrate.kernel_cases import Make, kernel_cases
from memfit.calibrate.memory import measure_memory
from memfit.calibrate.meter import CardFacts, MemoryFacts
from memfit.calibrate.tracing import KernelTimes, kernel_times
from memfit.errors import ConfigError
from memfit.timing import Call
from memfit.units import MIB

MOST_OF_MEMORY: Final = 0.2
"""Of the card's memory, what is taken at most."""
ROUNDS: Final = 3
SHORTEST_US: Final = 0.5
"""Kernels that the profiler says are shorter are taken to be this long."""
FLUSHED_BYTES: Final = 256 * MIB
SUSTAINED_SECONDS: Final = 1.5
COPIED_BYTES: Final = 128 * MIB


class CudaMeter:
    """Measures the current CUDA device. Make it in a process that has not used the device."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise ConfigError("torch sees no GPU here: run memfit calibrate on the machine whose card is to be measured")
        torch.manual_seed(0)
        torch.cuda.set_per_process_memory_fraction(MOST_OF_MEMORY)
        self._flush: torch.Tensor | None = None

    @cached_property
    def half(self) -> str:
        return "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "f16"

    @cached_property
    def _cases(self) -> dict[str, list[Make]]:
        return kernel_cases(self.half)

    @property
    def kernel_families(self) -> Sequence[str]:
        return tuple(self._cases)

    def card(self) -> CardFacts:
        seen: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        asked = _nvidia_smi("driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory")
        driver, total, clock, memory_clock = asked or ("unknown", "", "", "")
        width = int(getattr(seen, "memory_bus_width", 0) or 0)
        megahertz = _number(clock) or getattr(seen, "clock_rate", 0) / 1000 or 1700.0
        return CardFacts(
            name=seen.name,
            capability=(seen.major, seen.minor),
            num_sms=seen.multi_processor_count,
            total_bytes=round(_number(total) * MIB) or seen.total_memory,
            usable_bytes=seen.total_memory,
            l2_cache_bytes=int(getattr(seen, "L2_cache_size", 0)) or 4 * MIB,
            clock_hertz=megahertz * 1e6,
            memory_bandwidth=_number(memory_clock) * 1e6 * 2 * width / 8,
            versions={
                "driver": driver,
                "torch": torch.__version__,
                "cuda": str(torch.version.cuda),
                "cudnn": str(torch.backends.cudnn.version()),
            },
        )

    def memory(self) -> MemoryFacts:
        return measure_memory(torch.bfloat16 if self.half == "bf16" else torch.float16)

    def host(self) -> dict[str, float]:
        return measure_host("cuda")

    def sustained(self) -> dict[str, float]:
        """Operations a second in the second half of a second and a half."""
        found = {}
        for kind, dtype in ((self.half, torch.bfloat16 if self.half == "bf16" else torch.float16), ("f32", torch.float32)):
            size = 8192 if kind != "f32" else 4096
            a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
            out = torch.mm(a, b)
            rates, began, seconds = [], time.perf_counter(), SUSTAINED_SECONDS * (1 if kind != "f32" else 0.5)
            while time.perf_counter() - began < seconds:
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                for _ in range(8):
                    torch.mm(a, b, out=out)
                end.record()
                end.synchronize()
                rates.append(8 * 2 * size**3 / start.elapsed_time(end) * 1e3)
            later = sorted(rates[len(rates) // 2 :])
            found[kind] = later[len(later) // 2]
            del a, b, out
        torch.cuda.empty_cache()
        return found

    def copies(self) -> dict[str, float]:
        """Bytes a second."""
        device = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
        found = {}
        for name, host in {
            "pinned": torch.ones(COPIED_BYTES, dtype=torch.uint8).pin_memory(),
            "pageable": torch.ones(COPIED_BYTES, dtype=torch.uint8),
        }.items():
            found[f"{name}_to"] = _bytes_a_second(device, host)
            found[f"{name}_from"] = _bytes_a_second(host, device)
        if torch.cuda.device_count() > 1:
            found["peer"] = _bytes_a_second(torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda:1"), device)
        del device
        torch.cuda.empty_cache()
        return found

    def kernels(self, family: str) -> tuple[list[TimedCall], list[str]]:
        """Every operator of the family's cases: between when the same ran just before, and when no cache holds its tensors."""
        if self._flush is None:
            self._flush = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
        is_tf32, errors = family == "tf32", []
        torch.backends.cuda.matmul.allow_tf32 = is_tf32
        try:
            with kernel_times() as times:
                for make in self._cases[family]:
                    try:
                        self._run(make, times)
                    except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
                        errors.append(str(error).splitlines()[0][:120])
                        torch.cuda.empty_cache()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        torch.cuda.empty_cache()
        timed = []
        for text, by in times.medians().items():
            if "hot" in by:
                cold = max(by.get("cold", by["hot"]), SHORTEST_US)
                timed.append(TimedCall(Call.parse(text), math.sqrt(max(by["hot"], SHORTEST_US) * cold) * 1e-6, is_tf32))
        return timed, errors

    def _run(self, make: Make, times: KernelTimes) -> None:
        assert self._flush is not None
        work = make()
        work()
        for label, before in (("hot", None), ("cold", self._flush.zero_)):
            for _ in range(ROUNDS):
                with times.naming(label, before):
                    work()


def _bytes_a_second(to: torch.Tensor, given: torch.Tensor) -> float:
    rates = []
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        to.copy_(given, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(COPIED_BYTES / (time.perf_counter() - start))
    return max(rates[1:])


def _nvidia_smi(*keys: str) -> tuple[str, ...] | None:
    """What nvidia-smi says of the current device; ``None`` where there is none, as on AMD's."""
    asked = ["nvidia-smi", f"--query-gpu={','.join(keys)}", "--format=csv,noheader,nounits", f"--id={torch.cuda.current_device()}"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    values = tuple(value.strip() for value in done.stdout.strip().splitlines()[0].split(","))
    return values if len(values) == len(keys) else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
