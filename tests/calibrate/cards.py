"""A card that is made up: it takes as long for every call as a clock with known rates says."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from memfit.calibrate.fitting import TimedCall
from memfit.calibrate.meter import CardFacts, MemoryFacts
from memfit.data import FOLDER, parse_table, read_toml
from memfit.hardware import Gpu, find_gpu
from memfit.timing import Call, KernelSettings, Rates, price
from memfit.timing.leaves import find_leaves, scaled
from memfit.units import MIB

FACTS = CardFacts(
    name="NVIDIA Made-Up 9000",
    capability=(9, 0),
    num_sms=132,
    total_bytes=90_000 * MIB,
    usable_bytes=89_500 * MIB,
    l2_cache_bytes=50 * MIB,
    clock_hertz=1.83e9,
    memory_bandwidth=4.8e12,
    versions={"driver": "580.1", "torch": "2.11.0", "cuda": "13.0", "cudnn": "91900"},
)
MEMORY = MemoryFacts(
    context_bytes=800 * MIB + 1,
    first_context_bytes=500 * MIB,
    cublas_workspace_bytes=32 * MIB,
    attention_kernel="cudnn",
    rounding_bytes=512,
    small_segment_bytes=2 * MIB,
    large_segment_bytes=20 * MIB,
)
CALLS = {
    "products": [
        *(
            f"mm bf16[{m},{k}] bf16[{k},{n}]@1,{k} > bf16[{m},{n}]"
            for m in (64, 512, 2048, 8192)
            for k, n in ((1024, 1024), (4096, 4096))
        ),
        "mm f32[2048,1024] f32[1024,1024] > f32[2048,1024]",
        "mm f32[64,1024] f32[1024,64] > f32[64,64]",
    ],
    "elementwise": [
        *(f"mul.Tensor f32[{2**size}] f32[{2**size}] > f32[{2**size}]" for size in (10, 20, 26)),
        *(f"clone f32[{2**size}] > f32[{2**size}]" for size in (10, 26)),
        "gelu bf16[8192,8192] > bf16[8192,8192]",
        "silu bf16[8192,8192] > bf16[8192,8192]",
    ],
    "norms": [
        *(f"_fused_rms_norm bf16[{rows},1024] (1024) bf16[1024] - > bf16[{rows},1024] f32[{rows},1]" for rows in (16, 8192, 65536)),
        *(f"_softmax bf16[{rows},{width}] -1 F > bf16[{rows},{width}]" for rows, width in ((16, 64), (8192, 512), (8192, 8192))),
    ],
}


def h200_tables() -> dict[str, Any]:
    return read_toml(FOLDER / "rates" / "h200.toml")


def spoiled(tables: Mapping[str, Any], seed: int, by: float = 0.6) -> dict[str, Any]:
    """Every number of a section and kind up to so many times (as a logarithm) too large or too small."""
    chance, factors = random.Random(seed), {}
    for leaf in find_leaves(tables):
        factors.setdefault((leaf.section, leaf.kind), math.exp(chance.uniform(-by, by)))
    return scaled(tables, {leaf: factors[leaf.section, leaf.kind] for leaf in find_leaves(tables)})


class FakeMeter:
    """Counts on no clock. ``fails`` names families that raise."""

    def __init__(self, tables: Mapping[str, Any], gpu: Gpu | None = None, fails: Sequence[str] = (), interrupts: str = "") -> None:
        self._rates, self._gpu = parse_table(Rates, tables, "fake"), gpu or find_gpu("H200")
        self._fails, self._interrupts = fails, interrupts
        self.asked: list[str] = []

    @property
    def kernel_families(self) -> Sequence[str]:
        return tuple(CALLS)

    def card(self) -> CardFacts:
        return FACTS

    def memory(self) -> MemoryFacts:
        self.asked.append("memory")
        return MEMORY

    def host(self) -> dict[str, float]:
        return {
            "operator mm": 24.6,
            "operator sum": 23.8,
            "operator mul": 14.2,
            "operator mul with grad": 17.2,
            "backward view": 17.0,
        }

    def sustained(self) -> dict[str, float]:
        return {"bf16": 0.6 * self._gpu.bf16_flops}

    def copies(self) -> dict[str, float]:
        return {"pinned_to": 50e9, "pinned_from": 50e9, "pageable_to": 5e9, "pageable_from": 6e9}

    def kernels(self, family: str) -> tuple[list[TimedCall], list[str]]:
        self.asked.append(family)
        if family == self._interrupts:
            raise KeyboardInterrupt
        if family in self._fails:
            raise RuntimeError("CUDA error: made up")
        return [TimedCall(call, self.seconds(call)) for call in map(Call.parse, CALLS[family])], []

    def seconds(self, call: Call) -> float:
        return price(call, self._gpu, KernelSettings(is_sustained=False), self._rates).seconds
