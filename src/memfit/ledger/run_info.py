"""Facts about a run as a whole: its origin, how much of it was seen, and the error that ended it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How much of a predicted script was seen; all zero in other ledgers."""

    is_whole: bool = True
    """True if the script ran to its own end."""
    training_steps: int = 0
    steps_in_all: int = 0
    """The planned number of training steps of a run that was stopped, if a trainer says it; 0 if unknown."""
    batches_seen: int = 0
    """Batches seen of the epoch in which the run was stopped; 0 if it was not stopped within an epoch."""
    batches_in_all: int = 0
    """All batches of that epoch."""
    kinds_of_batches: int = 0
    """Number of different input shapes of the model."""
    longest_batch: str = ""
    """The largest of these shapes: ``8 x 1900``."""
    forward_passes: int = 0
    evaluations: int = 0
    """Runs of consecutive forward passes without gradients."""
    generations: int = 0
    saves: int = 0

    @property
    def is_known(self) -> bool:
        return bool(self.forward_passes or self.training_steps)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Coverage:
        """Reads the output of ``to_json``; ignores values of the wrong type."""
        if not isinstance(data, dict):
            return cls()
        kept = {f.name: data[f.name] for f in fields(cls) if type(data.get(f.name)) is type(getattr(cls, f.name))}
        return cls(**kept)


_LIMIT: Final = 2**60
"""Larger than any device's bytes or any run's nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The out-of-memory error that ended a run. False if there was none; unknown figures are ``None``."""

    message: str = ""
    """The error's message; empty if there was no error."""
    time_ns: int = 0
    """When it was raised, on the ledger's clock. Later events happened while the error propagated."""
    device: str = ""
    """The device that ran out, as torch writes it; empty if unknown."""
    op: str = ""
    """The operator that requested memory; empty if unknown."""
    needed_bytes: int | None = None
    """What the allocator requested from the device: the size of a new segment, as precise as the message."""
    free_bytes: int | None = None
    """Free memory of the device, over all processes."""
    total_bytes: int | None = None
    """Total memory of the device."""
    limit_bytes: int | None = None
    """The process's limit, if one was set with ``set_per_process_memory_fraction``."""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None

    def __bool__(self) -> bool:
        return bool(self.message)

    @property
    def capacity(self) -> int | None:
        """The total that the allocator could get; ``None`` if unknown."""
        if self.reserved_bytes is None or self.free_bytes is None:
            return self.limit_bytes
        room = self.reserved_bytes + self.free_bytes
        return room if self.limit_bytes is None else min(room, self.limit_bytes)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Reads the output of ``dataclasses.asdict``; raises ``TypeError`` or ``ValueError`` for invalid values."""
        kept = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        for name, value in kept.items():
            usual = getattr(cls, name)
            if type(value) is not type(usual) and not (usual is None and type(value) is int):
                raise TypeError(f"the run's failure has a {name} of the wrong type")
            if isinstance(value, int) and not 0 <= value < _LIMIT:
                raise ValueError(f"the run's failure has the {name} {value}, which is not possible")
        return cls(**kept)


_FACTS: Final = {"gpu": "gpu", "clock": "clock", "mesh": "mesh", "stands for ranks": "stands_for"}
"""Fields of ``RunInfo`` that files also have among the versions, by their names there: older releases look for
them there, and wrote them nowhere else."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The origin and circumstances of a ledger."""

    source: str = "measured"
    """``measured`` or ``predicted``."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of memfit, torch, Python and everything else that affects the figures."""
    gpu: str = ""
    """The GPU that a prediction is for; empty in a measured run."""
    clock: str = ""
    """The basis of a prediction's event times, ``timed`` or ``estimated``; empty if events have no times of the run."""
    mesh: str = ""
    """The axes of the job, slowest first: ``pp=8,dp=8,tp=8``. Empty without a mesh."""
    stands_for: str = ""
    """The ranks that this prediction stands for: ``0-63``, ``64-126,448``. Empty if only one rank was requested."""
    rank: int = 0
    world_size: int = 1
    problem: str = ""
    """Why the ledger is incomplete: the recorder failed, or the process died. Empty if it is complete."""
    assumptions: tuple[str, ...] = ()
    """What a prediction had to assume."""
    alloc_conf: str = ""
    """The allocator's settings during the run, as in ``PYTORCH_CUDA_ALLOC_CONF``."""
    failure: Failure = Failure()
    """The out-of-memory error that ended the run, if one did."""
    witness: str = "operators"
    """The source of the blocks: a dispatch mode (``operators``) or the history of CUDA's allocator (``allocator``)."""
    capacity_bytes: int = 0
    """Total memory of the main device; 0 if unknown."""
    alarms: tuple[str, ...] = ()
    """Problems noticed during the run: memory that grows from step to step, fragmentation."""
    notes: tuple[str, ...] = ()
    """Remarks on the recording, such as modules that were too small to be marked."""
    covered: Coverage = Coverage()
    """How much of a predicted script was seen."""
    num_process_groups: int = 0
    """Process groups with several ranks that a predicted run used; 0 if unknown."""
    num_peers: int = 0
    """Ranks of the same node, over all process groups, with point-to-point messages."""
    asked: dict[str, Any] = field(default_factory=dict)
    """What a prediction was asked for, in plain values: ``model``, ``hf``, ``function`` or ``script``, ``gpu``, ``world_size``, and
    how it is trained."""
    command: str = ""
    """The command line that made it; empty where none did."""
    made_at: str = ""
    """When that was: ``2026-11-18 02:10 UTC``."""
    sources: dict[str, str] = field(default_factory=dict)
    """Where classes of modules are written, but for torch's own: ``{"Block": "model.py:42"}``, the line of its forward."""
    speed: dict[str, float] = field(default_factory=dict)
    """Of the last step of a prediction: ``step_seconds``, ``tokens_per_second`` of this rank and ``mfu``, as far as they are
    known."""

    @property
    def communicators(self) -> tuple[int, int]:
        """Number of NCCL communicators, as far as known, and of ranks with point-to-point messages."""
        return self.num_process_groups or int(self.world_size > 1), self.num_peers

    @property
    def complete(self) -> bool:
        return not self.problem

    @property
    def has_clock(self) -> bool:
        """True if event times are times of the run. Older predictions hold the time that predicting took."""
        return self.source == "measured" or bool(self.clock)

    @property
    def facts(self) -> dict[str, str]:
        """Everything that affects the figures, by label: versions, GPU, clock and place in the job."""
        return self.versions | {name: value for name, field in _FACTS.items() if (value := getattr(self, field))}

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"versions": self.facts}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunInfo:
        known = {f.name for f in fields(cls)}
        kept = {key: value for key, value in data.items() if key in known}
        failure = Failure.from_json(kept.get("failure", {}))
        lists = {name: tuple(kept.get(name, ())) for name in ("assumptions", "alarms", "notes")}
        versions = kept.get("versions", {})
        if isinstance(versions, dict):
            kept |= {field: versions[name] for name, field in _FACTS.items() if name in versions}
            kept["versions"] = {name: text for name, text in versions.items() if name not in _FACTS}
        return cls(**kept | lists | {"failure": failure, "covered": Coverage.from_json(kept.get("covered"))})
