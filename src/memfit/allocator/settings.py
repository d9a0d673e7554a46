"""The settings of an allocator, and what they mean in each release of torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from memfit.errors import ConfigError
from memfit.torch_versions import TorchVersion
from memfit.units import MIB

DEFAULT_TORCH_VERSION: Final = "2.11"
OLDEST: Final = (2, 6)
NEWEST: Final = (2, 15)
"""The releases whose allocator memfit knows. Newer ones are assumed to work like the newest of them."""


class TieBreak(IntEnum):
    """Which of several free blocks of one size is taken first."""

    ADDRESS = 0
    """The lowest address."""
    BIRTH = 1
    """The oldest block; splitting makes a new block of the front, and the rest stays the old one."""
    SEGMENT = 2
    """The oldest segment, then the lowest address."""


def parse_version(text: str) -> tuple[int, int]:
    """Reads ``"2.11.0+cu130"`` as ``(2, 11)``. Raises ``ConfigError`` for other text and for versions that are too old."""
    version = TorchVersion.parse(text).release
    if version < OLDEST:
        raise ConfigError(f"memfit knows the allocator of torch {version_text(OLDEST)} and newer, not that of {text}")
    return version


def version_text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def tie_break(version: tuple[int, int]) -> TieBreak:
    if version >= (2, 13):
        return TieBreak.SEGMENT
    return TieBreak.BIRTH if version == (2, 12) else TieBreak.ADDRESS


MIN_BLOCK: Final = 512
"""The size of the smallest block; all sizes are multiples of it."""
SMALL_REQUEST: Final = MIB
"""The largest request of the small pool."""
SMALL_SEGMENT: Final = 2 * MIB
"""The size of the small pool's segments."""
MEDIUM_REQUEST: Final = 10 * MIB
"""Requests below this, and not small, share segments of ``large_segment_bytes``."""
LARGE_SEGMENT: Final = 20 * MIB
"""The default size of those segments; ``large_segment_size_mb`` sets another."""
LARGE_ROUNDING: Final = 2 * MIB
"""Larger requests get segments of their own, rounded up to a multiple of this."""

SIZE_LIMIT: Final = 2**48
"""An upper bound of requests and segments."""

NUM_DIVISIONS: Final = 16
"""The intervals of ``roundup_power2_divisions``: from 1 MiB, doubling, to 32 GiB and above."""


@dataclass(frozen=True, kw_only=True)
class AllocatorSettings:
    """PyTorch's version and the settings of ``PYTORCH_CUDA_ALLOC_CONF``, as ``memfit.allocator.parse_alloc_conf`` reads them."""

    torch_version: str = DEFAULT_TORCH_VERSION
    """As torch writes it: ``2.11`` or ``2.11.0+cu130``."""
    expandable_segments: bool = False
    """Grow segments page by page instead of asking for new ones."""
    max_split_bytes: int | None = None
    """Blocks this large are never split, nor given to smaller requests. ``None``: every block may be."""
    max_non_split_rounding_bytes: int = 20 * MIB
    """How much larger than the request an unsplit block may be."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * NUM_DIVISIONS
    """Per interval of sizes: into how many parts each power of two is divided for rounding. 0 and 1 leave it at 512 bytes."""
    garbage_collection_threshold: float = 0.0
    """The share of the limit above which idle cached segments are freed. Acts only with a memory fraction; 0 is off."""
    large_segment_bytes: int = LARGE_SEGMENT
    """The segments that requests of 1 to 10 MiB share; also the page of expandable segments in the large pool."""
    per_process_memory_fraction: float | None = None
    """The share of the GPU's memory that the allocator may take."""
    throw_on_cudamalloc_oom: bool = False
    """Fail at that share at once, without freeing cached memory first."""

    def __post_init__(self) -> None:
        parse_version(self.torch_version)
        _refuse(self.max_split_bytes is not None and self.max_split_bytes < 20 * MIB, "max_split_size_mb must be 20 or more")
        _refuse(self.max_non_split_rounding_bytes < 20 * MIB, "max_non_split_rounding_mb must be 20 or more")
        _refuse(self.large_segment_bytes <= MEDIUM_REQUEST, "large_segment_size_mb must be more than 10")
        _refuse(self.large_segment_bytes >= SIZE_LIMIT, "large_segment_size_mb must be less than 256 TiB")
        _refuse(self.large_segment_bytes % MIB != 0, "large_segment_size_mb must be a whole number")
        threshold, fraction = self.garbage_collection_threshold, self.per_process_memory_fraction
        _refuse(not 0.0 <= threshold < 1.0, "garbage_collection_threshold must be above 0 and below 1")
        _refuse(fraction is not None and not 0.0 < fraction <= 1.0, "per_process_memory_fraction must be above 0 and at most 1")
        powers = {0} | {2**i for i in range(31)}
        _refuse(
            len(self.roundup_power2_divisions) != NUM_DIVISIONS or not powers.issuperset(self.roundup_power2_divisions),
            f"roundup_power2_divisions must be {NUM_DIVISIONS} powers of two",
        )

    @property
    def version(self) -> tuple[int, int]:
        return parse_version(self.torch_version)

    @property
    def tie_break(self) -> TieBreak:
        return tie_break(self.version)


def _refuse(wrong: bool, demand: str) -> None:
    if wrong:
        raise ConfigError(demand)
