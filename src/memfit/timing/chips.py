"""What a GPU could do at best: the published peaks that no price may beat.

Products on tensor cores, other arithmetic and memory each have a peak. What is reached of it was measured on an H200
(``benchmarks/truth/operator_times.json``) and stands with the operators; other GPUs are taken to reach the same shares of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from memfit.errors import ConfigError
from memfit.hardware import Gpu, find_gpu

TERA: Final = 1e12
GIGA: Final = 1e9
MICRO: Final = 1e-6
PICO: Final = 1e-12

MEASURED: Final = "measured"
ASSUMED: Final = "published peaks, with the shares of them that an H200 reaches"


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A kind of GPU, by its peaks."""

    name: str
    bf16_flops: float
    """Operations a second of dense products in bfloat16, sums in float32."""
    f16_flops: float
    tf32_flops: float
    f8_flops: float
    """Of float8; where a GPU has none, what it has for bfloat16."""
    f32_flops: float
    """Without tensor cores: products in float32, and all other arithmetic."""
    f64_flops: float
    memory_bandwidth: float
    """Bytes a second."""
    cache_bytes: int
    """The second-level cache, which all of the GPU shares."""
    num_sms: int
    link_bandwidth: float
    """Bytes a second to other GPUs of its node, in one direction: NVLink where it has it, otherwise PCIe."""
    host_bandwidth: float
    """Bytes a second to and from the host, in one direction."""
    has_multicast: bool = False
    """Can its switch add up (NVLink SHARP)?"""
    source: str
    """Of the peaks."""
    sustained_share: float = 0.67
    """Of the tensor cores' peak, what is reached when products follow one another for a second and a half, as they do in training,
    and the GPU lowers its clock to stay within its power: 659 to 671 of 989 teraflops on an H200 with 700 watts (``sustained``
    in ``benchmarks/truth/operator_times.json``)."""
    is_measured: bool = False
    """Were operators timed on it?"""

    def product_flops(self, dtype: str, allow_tf32: bool = False) -> float:
        """The peak for products of this type."""
        if dtype == "f32":
            return self.tf32_flops if allow_tf32 else self.f32_flops
        peaks = {"bf16": self.bf16_flops, "f16": self.f16_flops, "f8": self.f8_flops, "f64": self.f64_flops}
        return peaks.get(dtype, self.f32_flops)

    @property
    def arch(self) -> str:
        """``sm_90``."""
        return find_gpu(self.name).arch

    @property
    def basis(self) -> str:
        """How sure prices for it are."""
        return MEASURED if self.is_measured else ASSUMED


def _chip(
    name: str,
    bf16: float,
    tf32: float,
    f8: float,
    f32: float,
    f64: float,
    bandwidth: float,
    cache_mb: float,
    num_sms: int,
    link: float,
    host: float,
    source: str,
    *,
    f16: float = 0.0,
    has_multicast: bool = False,
    is_measured: bool = False,
) -> Chip:
    """Peaks in teraflops, bandwidths in gigabytes a second, the cache in megabytes."""
    return Chip(
        name=name,
        bf16_flops=bf16 * TERA,
        f16_flops=(f16 or bf16) * TERA,
        tf32_flops=tf32 * TERA,
        f8_flops=f8 * TERA,
        f32_flops=f32 * TERA,
        f64_flops=f64 * TERA,
        memory_bandwidth=bandwidth * GIGA,
        cache_bytes=int(cache_mb * 2**20),
        num_sms=num_sms,
        link_bandwidth=link * GIGA,
        host_bandwidth=host * GIGA,
        has_multicast=has_multicast,
        source=source,
        is_measured=is_measured,
    )


CHIPS: Final = (
    _chip("T4", 8.1, 8.1, 65, 8.1, 0.25, 320, 4, 40, 16, 16, "NVIDIA T4 datasheet; it has no bfloat16", f16=65),
    _chip("V100-16GB", 15.7, 15.7, 125, 15.7, 7.8, 900, 6, 80, 150, 16, "NVIDIA V100 datasheet; it has no bfloat16", f16=125),
    _chip("L4", 121, 60, 242, 30.3, 0.47, 300, 48, 58, 32, 32, "NVIDIA L4 datasheet, without sparsity"),
    _chip("A10", 125, 62.5, 125, 31.2, 0.98, 600, 6, 72, 32, 32, "NVIDIA A10 datasheet, without sparsity"),
    _chip("RTX-4090", 165.2, 82.6, 330.3, 82.6, 1.29, 1008, 72, 128, 32, 32, "NVIDIA Ada architecture paper, sums in float32"),
    _chip("RTX-3090", 71, 35.6, 71, 35.6, 0.56, 936, 6, 82, 32, 32, "NVIDIA GA102 architecture paper, sums in float32"),
    _chip("RTX-5090", 209.5, 104.8, 419, 104.8, 1.64, 1792, 96, 170, 64, 64, "NVIDIA RTX Blackwell architecture paper"),
    _chip("V100-32GB", 15.7, 15.7, 125, 15.7, 7.8, 900, 6, 80, 150, 16, "NVIDIA V100 datasheet; it has no bfloat16", f16=125),
    _chip("A100-40GB", 312, 156, 312, 19.5, 19.5, 1555, 40, 108, 300, 32, "NVIDIA A100 datasheet, SXM"),
    _chip("L40S", 362, 183, 733, 91.6, 1.43, 864, 96, 142, 32, 32, "NVIDIA L40S datasheet, without sparsity"),
    _chip("H100-80GB", 989.4, 494.7, 1978.9, 66.9, 66.9, 3350, 50, 132, 450, 64, "NVIDIA H100 datasheet, SXM", has_multicast=True),
    _chip(
        "H100-96GB",
        989.4,
        494.7,
        1978.9,
        66.9,
        66.9,
        2400,
        50,
        132,
        450,
        64,
        "torchtitan's docs/performance.md: HBM2e",
        has_multicast=True,
    ),
    _chip("A100-80GB", 312, 156, 312, 19.5, 19.5, 2039, 40, 108, 300, 32, "NVIDIA A100 datasheet, SXM"),
    _chip(
        "H200",
        989.4,
        494.7,
        1978.9,
        66.9,
        66.9,
        4800,
        50,
        132,
        450,
        64,
        "NVIDIA H200 datasheet",
        has_multicast=True,
        is_measured=True,
    ),
    _chip(
        "B200", 2250, 1125, 4500, 75, 37, 7700, 126, 148, 900, 64, "NVIDIA HGX B200 datasheet, an eighth of it", has_multicast=True
    ),
    _chip(
        "MI300X", 1307.4, 653.7, 2614.9, 163.4, 163.4, 5300, 256, 304, 448, 64, "AMD MI300X datasheet; the cache is its last level"
    ),
)
"""One for every GPU of ``hardware.py``. Peaks are dense, without sparsity."""


@cache
def chip_of(gpu: Gpu) -> Chip:
    """The peaks of a GPU."""
    for chip in CHIPS:
        if chip.name == gpu.name:
            return chip
    raise ConfigError(f"the speed of {gpu.name} is not known: memfit knows {', '.join(chip.name for chip in CHIPS)}")


def what_times_are_from(gpu: Gpu, world_size: int) -> str:
    """For whoever shows a time beside other figures."""
    basis = chip_of(gpu).basis
    links = "; links between GPUs were never measured" if world_size > 1 else ""
    if basis == MEASURED:
        return f"times are those of a clock that was read off an {gpu.name}{links}"
    return f"no operator was timed on {gpu.name}: times are from {basis}{links}"
