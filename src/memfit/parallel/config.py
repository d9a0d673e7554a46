"""How many ranks share what, and how; refused when built where it cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from memfit.choices import FLOAT8S, SCHEDULES, Choice, Float8, Schedule
from memfit.errors import ConfigError

_DEGREES = ("tp", "pp", "cp", "ep", "replicas")


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The axes of a job. What they leave of the world is data parallelism."""

    tp: int = 1
    """Ranks that share every layer: tensor parallelism, and hidden states cut along the sequence between layers."""
    pp: int = 1
    """Ranks in a row that share the layers out: pipeline parallelism."""
    cp: int = 1
    """Ranks that share every sequence: context parallelism, with ring attention."""
    ep: int = 1
    """Ranks that share the experts, among those of a stage: expert parallelism."""
    replicas: int = 1
    """Copies of the ranks that shard, for hybrid strategies."""
    schedule: str = "1f1b"
    """In which order a pipeline runs its microbatches: one of ``memfit.choices.SCHEDULES``."""
    microbatches: int = 1
    """Into how many parts a batch is cut for the pipeline."""
    float8: str = "none"
    """Matrix products in 8 bits, by torchao: one of ``memfit.choices.FLOAT8S``."""

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ConfigError(problem)

    def _problems(self) -> Iterator[str]:
        for name in (*_DEGREES, "microbatches"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                yield f"{name} takes a whole number of at least 1, not {getattr(self, name)!r}"
        tables: dict[str, Mapping[str, Choice]] = {"schedule": SCHEDULES, "float8": FLOAT8S}
        for name, known in tables.items():
            if getattr(self, name) not in known:
                yield f"{name} {getattr(self, name)!r} is not known: use one of {', '.join(known)}"
        if self.ep > 1 and self.ep % self.tp:
            yield f"the ranks that share experts are those of whole tp groups: ep={self.ep} is no multiple of tp={self.tp}"

    @property
    def schedule_row(self) -> Schedule:
        return SCHEDULES[self.schedule]

    @property
    def float8_row(self) -> Float8:
        return FLOAT8S[self.float8]

    @property
    def num_stages(self) -> int:
        return self.pp * self.schedule_row.stages_a_rank if self.pp > 1 else 1

    def check_world(self, world_size: int) -> None:
        shared = self.tp * self.pp * self.cp * self.replicas
        if world_size % shared:
            said = f"pp={self.pp}, cp={self.cp}, tp={self.tp} and replicas={self.replicas}"
            raise ConfigError(f"{said} take a multiple of {shared} ranks, but the world has {world_size}")
        if (world_size // self.pp) % self.ep:
            raise ConfigError(f"ep={self.ep} does not divide the {world_size // self.pp} ranks of a stage")
