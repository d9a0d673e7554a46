"""The tables of a ledger, their columns, and the enumerations used in them.

::

    events    what happened, in order           blocks    one row per block of memory
      kind      EventKind                         device    -> devices
      subject   block, scope, step or device      stream    the CUDA stream it was allocated on, 0 elsewhere
      size      see EventKind                     op        -> strings
      time_ns   since the recording began         scope     -> scopes, where it was born; -1 outside all

    scopes    one row per call of something     modules   one row per module path
      phase     Phase                             path      -> strings: "layers.3.attention.wq"
      module    -> modules, or -1                 kind      -> strings: its class, "Linear"
      parent    -> scopes, or -1                  parent    -> modules, or -1

    roles     what was learned of a block: it is a parameter, it became a gradient, ...
      block     -> blocks       role    Category      module    -> modules, or -1      name    -> strings, or -1

    slack     what CUDA's allocator gave on top of a block, where it did not split a cached one; only where it was seen
      block     -> blocks       size    beyond what the device rounds to

    returns   when the memory of a block came back to its allocator, where that was after it was freed: another stream still used it
      block     -> blocks       events_later   the number of events in between

    levels    how full a device was, for every step, also for steps whose events were not kept
      first_step, last_step     the steps that a row is about: one, or several that were put together to save room
      device    -> devices      time_ns   at the end of the last step      has_events   were the events of all these steps kept?
      peak      the highest in use since the run began, or since the program last had its allocator forget it
      allocated, reserved, active, inactive_split, largest_free   at the end of the last step; -1 where it is not known

    work      what each stream did in the last step, where that was predicted; kernels that do the same after each other are one row
      stream    as of blocks; below 0 those that process groups communicate on
      group     -> strings, what the process group is called, or -1 where the stream is none of theirs
      kind      WorkKind
      module    -> modules, whose kernels they are; -1 where they are of none, or of several that are in no module together
      op        -> strings, the operator that took most of it
      begin_ns, end_ns   on the clock of the events      busy_ns   without the gaps between kernels      num_kernels

    activity  what a script did, in the prediction of one: outermost calls of models, and saves, in order
      event     how many events there were when it began
      kind      ActivityKind      number    which evaluation or save it belongs to, from 0; of training the step
      batch     -> strings: the shape of its largest argument, "8 x 1900"; -1 where there is none
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

FORMAT = "memfit-ledger"
VERSION = 1

Array = NDArray[Any]


class EventKind(IntEnum):
    """The kind of an event. ``size`` is in bytes, as requested from the allocator, before any rounding."""

    ALLOC = 0
    """A block was allocated; ``size`` is its size."""
    FREE = 1
    """A block was freed; ``size`` is 0."""
    RESIZE = 2
    """A block's storage was resized in place; ``size`` is its new size."""
    ENTER = 3
    """A scope began; ``size`` is the bytes of the tensors passed in."""
    EXIT = 4
    """A scope ended; ``size`` is the bytes of the tensors it returned."""
    STEP = 5
    """A training step began; ``subject`` is its number. What precedes step 0 is initialisation."""
    STREAM = 6
    """A block's next memory comes from another CUDA stream; ``size`` is the stream's number."""
    EMPTY_CACHE = 7
    """``torch.cuda.empty_cache()`` was called; ``subject`` is the device."""


class Phase(IntEnum):
    """What the run was doing. A scope with a module is that module's part of the phase."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2
    """A forward inside backward: activation checkpointing."""
    OPTIMIZER = 3
    PRE_FORWARD = 4
    """An engine's work before a unit's forward: it gathers parameters."""
    POST_FORWARD = 5
    """After a unit's forward: parameters are freed."""
    PRE_BACKWARD = 6
    POST_BACKWARD = 7
    """After a unit's backward: parameters are freed, gradients reduced."""
    CHECKPOINT = 8
    """Saving or loading a state dict."""

    @property
    def label(self) -> str:
        """The label of the phase: ``pre forward``."""
        return self.name.lower().replace("_", " ")

    @classmethod
    def from_label(cls, label: str) -> Phase | None:
        """The phase with this label, or ``None``. Figures of older releases say ``FSDP pre forward``."""
        return next((phase for phase in cls if phase.label == label.removeprefix("FSDP ")), None)


class Category(IntEnum):
    """What a block is. One block has one category for its whole life."""

    PARAMETER = 0
    BUFFER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    ACTIVATION = 4
    FORWARD_TEMPORARY = 5
    BACKWARD_TEMPORARY = 6
    OPTIMIZER_TEMPORARY = 7
    INPUT = 8
    SHARDED_PARAMETER = 9
    UNSHARDED_PARAMETER = 10
    SHARDED_GRADIENT = 11
    UNSHARDED_GRADIENT = 12
    ALL_GATHER = 13
    REDUCE_SCATTER = 14
    ALL_REDUCE = 15
    WORKSPACE = 16
    CHECKPOINT = 17
    OTHER = 18
    KEY_VALUE_CACHE = 19

    @property
    def label(self) -> str:
        """The label of the category: ``optimizer state``."""
        return self.name.lower().replace("_", " ")

    @classmethod
    def from_label(cls, label: str) -> Category | None:
        """The category with this label, or ``None``."""
        return next((category for category in cls if category.label == label), None)


class WorkKind(IntEnum):
    """The kind of work a stream does."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2
    """A recomputed forward inside backward, with everything in it."""
    OPTIMIZER = 3
    COMMUNICATION = 4
    """A collective, or a message to another rank."""
    COPY = 5
    """Between host and device; and what an engine packs for its collectives and unpacks after them."""
    OTHER = 6
    """Outside all phases; also several kinds in one row, which happens only where a stream did more than is kept."""

    @property
    def label(self) -> str:
        return self.name.lower()


class ActivityKind(IntEnum):
    """The kind of a script's activity."""

    TRAINING = 0
    """A call of a model with gradients."""
    EVALUATION = 1
    """A call without gradients: an evaluation, a generation, a teacher."""
    SAVE = 2


def column(dtype: type[np.generic]) -> Any:
    return field(metadata={"dtype": np.dtype(dtype)})


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one length. ``from_rows`` takes the flat list of values that a builder appends to."""

    NAME: ClassVar[str]

    @classmethod
    def dtypes(cls) -> dict[str, np.dtype[Any]]:
        return {f.name: f.metadata["dtype"] for f in fields(cls)}

    @classmethod
    def from_rows(cls, rows: list[int]) -> Self:
        dtypes = cls.dtypes()
        matrix = np.array(rows, dtype=np.int64).reshape(-1, len(dtypes))
        return cls(*(matrix[:, i].astype(dtype) for i, dtype in enumerate(dtypes.values())))

    @classmethod
    @cache
    def empty(cls) -> Self:
        return cls.from_rows([])

    @classmethod
    def concatenate(cls, parts: list[Self]) -> Self:
        parts = parts or [cls.from_rows([])]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.dtypes()))

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def columns(self) -> dict[str, Array]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, eq=False)
class Events(Table):
    NAME = "events"
    kind: Array = column(np.uint8)
    subject: Array = column(np.int64)
    size: Array = column(np.int64)
    time_ns: Array = column(np.int64)


@dataclass(frozen=True, eq=False)
class Blocks(Table):
    NAME = "blocks"
    device: Array = column(np.int32)
    stream: Array = column(np.int64)
    op: Array = column(np.int32)
    scope: Array = column(np.int64)


@dataclass(frozen=True, eq=False)
class Scopes(Table):
    NAME = "scopes"
    phase: Array = column(np.uint8)
    module: Array = column(np.int32)
    parent: Array = column(np.int64)


@dataclass(frozen=True, eq=False)
class Modules(Table):
    NAME = "modules"
    path: Array = column(np.int32)
    kind: Array = column(np.int32)
    parent: Array = column(np.int32)


@dataclass(frozen=True, eq=False)
class Roles(Table):
    NAME = "roles"
    block: Array = column(np.int64)
    role: Array = column(np.uint8)
    module: Array = column(np.int32)
    name: Array = column(np.int32)


@dataclass(frozen=True, eq=False)
class Slack(Table):
    NAME = "slack"
    block: Array = column(np.int64)
    size: Array = column(np.int64)


@dataclass(frozen=True, eq=False)
class Returns(Table):
    NAME = "returns"
    block: Array = column(np.int64)
    events_later: Array = column(np.int64)


@dataclass(frozen=True, eq=False)
class Levels(Table):
    NAME = "levels"
    first_step: Array = column(np.int64)
    last_step: Array = column(np.int64)
    device: Array = column(np.int32)
    time_ns: Array = column(np.int64)
    has_events: Array = column(np.uint8)
    peak: Array = column(np.int64)
    allocated: Array = column(np.int64)
    reserved: Array = column(np.int64)
    active: Array = column(np.int64)
    inactive_split: Array = column(np.int64)
    largest_free: Array = column(np.int64)


@dataclass(frozen=True, eq=False)
class Work(Table):
    NAME = "work"
    stream: Array = column(np.int64)
    group: Array = column(np.int32)
    kind: Array = column(np.uint8)
    module: Array = column(np.int32)
    op: Array = column(np.int32)
    begin_ns: Array = column(np.int64)
    end_ns: Array = column(np.int64)
    busy_ns: Array = column(np.int64)
    num_kernels: Array = column(np.int64)


@dataclass(frozen=True, eq=False)
class Activity(Table):
    NAME = "activity"
    event: Array = column(np.int64)
    kind: Array = column(np.uint8)
    number: Array = column(np.int64)
    batch: Array = column(np.int32)


TABLES: tuple[type[Table], ...] = (Events, Blocks, Scopes, Modules, Roles, Slack, Returns, Levels, Work, Activity)


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device with its own memory."""

    name: str
    """As torch writes it: ``cuda:0``, ``cpu``."""
    granularity: int = 1
    """What its allocator rounds every block up to; 512 for CUDA."""

    @property
    def is_cuda(self) -> bool:
        return self.name.partition(":")[0] == "cuda"

    @classmethod
    def from_name(cls, name: str) -> Device:
        return cls(name=name, granularity=512 if cls(name=name).is_cuda else 1)
