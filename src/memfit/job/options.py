"""How a training run is predicted, and for which GPUs: everything but the training itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from memfit.errors import ConfigError
from memfit.hardware import MOST_GPUS, find_gpu
from memfit.timing import parse_interconnect
from memfit.units import format_bytes, parse_bytes

LONGEST_STEP: Final = 1
"""The step with the longest batch: the optimizer state exists by then, and usual batches follow."""

MOST_STEPS: Final = 1_000_000
"""Training steps in a prediction: more than anybody waits for."""

Ranks = str | Sequence[int]
"""``"all"``, or the ranks to predict."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """How a run is predicted. Raises ``ConfigError`` for invalid values."""

    gpu: str = "H200"
    """A name that memfit knows; kept as memfit writes it."""
    world_size: int = 1
    """Processes, one for each GPU."""
    rank: int = 0
    """The process that is predicted."""
    ranks: Ranks | None = None
    """Several processes in place of one: ``"all"`` for one of each kind, or their numbers."""
    steps: int = 3
    """Training steps."""
    torch_version: str = ""
    """The torch build whose kernels and allocator are used: ``2.11+cu130``. Empty: the default."""
    alloc_conf: str = ""
    """As in ``PYTORCH_CUDA_ALLOC_CONF``."""
    expected: Mapping[str, float] = field(default_factory=dict)
    """What to assume where only data could tell, by place or kind: ``{"mask": 0.25, "train.py:31": 128}``."""
    interconnect: str = ""
    """How GPUs are linked: ``8xH100-NVLink+400G``. Empty: as nodes of such GPUs usually are; ``none``: communication takes no
    time."""
    budget: int | str | None = None
    """The allocator's limit: ``"40GiB"``, kept in bytes. ``None``: everything that is free on the GPU."""

    host_memory: int | str | None = None
    """Host memory of a node: ``"512GiB"``, kept in bytes. ``None``: unknown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpu", find_gpu(self.gpu).name)
        for name in ("world_size", "steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} takes a whole number of at least 1, not {value!r}")
        if self.world_size > MOST_GPUS:
            raise ConfigError(f"world_size takes at most {MOST_GPUS:,} GPUs, not {self.world_size}")
        if self.steps > MOST_STEPS:
            raise ConfigError(f"steps takes at most {MOST_STEPS:,}, not {self.steps}: few are enough, later ones repeat")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"cannot predict rank {self.rank} of {self.world_size}: a rank is at least 0 and below the world size"
            )
        if "longest" in self.expected and self.steps < LONGEST_STEP + 1:
            raise ConfigError(
                f"the longest batch comes in step {LONGEST_STEP}, counted from 0: predict {LONGEST_STEP + 1} steps or more"
            )
        if self.interconnect:
            parse_interconnect(self.interconnect)
        if self.host_memory is not None:
            object.__setattr__(self, "host_memory", parse_bytes(self.host_memory))
        if self.budget is not None:
            object.__setattr__(self, "budget", self._read_budget(self.budget))

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of the data; 0 if not given."""
        return int(self.expected.get("longest", 0))

    def _read_budget(self, budget: int | str) -> int:
        """Reads a budget in bytes. Raises ``ConfigError`` if it is not positive or above what the allocator can get on this GPU."""
        wanted, most = parse_bytes(budget), self._most
        if wanted < 1:
            raise ConfigError(f"a budget of {budget} leaves nothing to the allocator: say how many bytes it may get, as in 40GiB")
        if wanted > most:
            raise ConfigError(
                f"a budget of {format_bytes(wanted)} is more than the allocator can get of a {self.gpu}, {format_bytes(most)}: "
                "give less, or leave it out"
            )
        return wanted

    @property
    def _most(self) -> int:
        """The GPU's memory without context and communicators."""
        return find_gpu(self.gpu).capacity(int(self.world_size > 1))

    @property
    def capacity(self) -> int:
        """Bytes that the allocator can get: the budget, or the GPU's memory without context and communicators."""
        return self._most if self.budget is None else int(self.budget)
