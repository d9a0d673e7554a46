"""What a ledger says of its run as a whole: where it comes from, what of it was seen, and the error that ended it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What was seen of a script that was predicted; all zero in other ledgers."""

    is_whole: bool = True
    """Did the script come to its own end?"""
    training_steps: int = 0
    steps_in_all: int = 0
    """Of a run that was stopped, where a trainer says it; 0 where that is not known."""
    batches_seen: int = 0
    """Of the epoch in which the run was stopped; 0 where it was not stopped in one."""
    batches_in_all: int = 0
    """Of that epoch."""
    kinds_of_batches: int = 0
    """Different shapes with which the model was called."""
    longest_batch: str = ""
    """The shape with the most elements of those: ``8 x 1900``."""
    forward_passes: int = 0
    evaluations: int = 0
    """Stretches of forward passes without gradients, between training steps or without any."""
    generations: int = 0
    saves: int = 0

    @property
    def is_known(self) -> bool:
        return bool(self.forward_passes or self.training_steps)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Coverage:
        """Reads what ``to_json`` gave; what is not of the right type is left out."""
        if not isinstance(data, dict):
            return cls()
        kept = {f.name: data[f.name] for f in fields(cls) if type(data.get(f.name)) is type(getattr(cls, f.name))}
        return cls(**kept)


_LIMIT: Final = 2**60
"""Larger than any device's bytes or any run's nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The out-of-memory error that ended a run; false where none did. ``None`` stands for what is not known."""

    message: str = ""
    """What the error said; empty where there was none."""
    time_ns: int = 0
    """When it was raised, on the ledger's clock: what comes later happened on the way out."""
    device: str = ""
    """The device that ran out, as torch writes it; empty if it is not known."""
    op: str = ""
    """The operator that asked for memory; empty if it is not known."""
    needed_bytes: int | None = None
    """What the allocator asked of the device: the size of a new segment, to the digits that the message has."""
    free_bytes: int | None = None
    """What the device had left, for whatever process."""
    total_bytes: int | None = None
    """What the device has."""
    limit_bytes: int | None = None
    """What the process may take of it, if there is a limit: ``set_per_process_memory_fraction``."""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None

    def __bool__(self) -> bool:
        return bool(self.message)

    @property
    def capacity(self) -> int | None:
        """What the allocator could get in all; ``None`` if it is not known."""
        if self.reserved_bytes is None or self.free_bytes is None:
            return self.limit_bytes
        room = self.reserved_bytes + self.free_bytes
        return room if self.limit_bytes is None else min(room, self.limit_bytes)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """From what ``dataclasses.asdict`` made of it; ``TypeError`` or ``ValueError`` where it has something else in it."""
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
    """Where a ledger comes from."""

    source: str = "measured"
    """``measured`` or ``predicted``."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of memfit, torch, python and whatever else decided the numbers."""
    gpu: str = ""
    """The GPU that a prediction is for; empty in a measured run."""
    clock: str = ""
    """How sure the times of a prediction's events are, ``timed`` or ``estimated``; empty where they are no times of the run."""
    mesh: str = ""
    """The axes of the job, the slowest first: ``pp=8,dp=8,tp=8``. Empty where no mesh was made."""
    stands_for: str = ""
    """The ranks of the job that need the same: ``0-63``, ``64-126,448``. Empty where one rank alone was asked for."""
    rank: int = 0
    world_size: int = 1
    problem: str = ""
    """Why the ledger is incomplete: the recorder failed, or the process died. Empty when it is whole."""
    assumptions: tuple[str, ...] = ()
    """What a prediction had to assume."""
    alloc_conf: str = ""
    """The allocator's settings it ran under, as in ``PYTORCH_CUDA_ALLOC_CONF``."""
    failure: Failure = Failure()
    """The out-of-memory error that ended the run, if one did."""
    witness: str = "operators"
    """Who saw the blocks: a dispatch mode that sees ``operators``, or the history of CUDA's ``allocator``."""
    capacity_bytes: int = 0
    """What the main device has; 0 where it is not known."""
    alarms: tuple[str, ...] = ()
    """What was noticed while the run lasted: memory that grows from step to step, fragmentation."""
    notes: tuple[str, ...] = ()
    """What a reader should know of the recording: modules that were too small to be marked."""
    covered: Coverage = Coverage()
    """What of a script was seen, in the prediction of one."""
    num_process_groups: int = 0
    """That were used and have several ranks, in a prediction; 0 where that is not known."""
    num_peers: int = 0
    """Of all of them together: ranks of the same node that are sent to one by one."""

    @property
    def communicators(self) -> tuple[int, int]:
        """How many communicators NCCL has, as far as is known, and how many ranks they send to one by one."""
        return self.num_process_groups or int(self.world_size > 1), self.num_peers

    @property
    def complete(self) -> bool:
        return not self.problem

    @property
    def has_clock(self) -> bool:
        """Do the times of events mean something? Those of predictions by an older memfit say how long predicting took."""
        return self.source == "measured" or bool(self.clock)

    @property
    def facts(self) -> dict[str, str]:
        """All that decided the numbers, by what it is called: versions, GPU, clock and place in the job."""
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
