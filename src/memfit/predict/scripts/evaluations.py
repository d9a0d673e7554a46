"""Forward passes without gradients that repeat: after some that were all alike, the next ones are written down, and not run.

A script may evaluate its model hundreds of times before it trains. Its loop is Python code, which cannot be left out, but the calls
of the model in it are all alike. So the first few are watched. A call that is like them in everything that could decide its memory
is answered with new outputs of the same shapes, while the ledger gets every block and scope that the watched calls had, in the same
order: the ledger is the one of the whole run.

::

    model(x)  model(x)  model(x) │ model(x) ...          three that are alike │ written down
    model(x, cache)              never: what is passed in or kept grows

What is compared: the arguments' structure, shapes, types and plain values; autocast and its kept casts; every module's plain
attributes, number of hooks, parameters and their types; and, of each watched call, every event in the ledger. A call is always run
that reads values or works on data of the host, that keeps or frees anything but its outputs, changes a plain attribute of a module,
takes or gives objects that are neither tensors nor plain values, or runs among several processes. What Python code does that leaves
no trace in any of these is not seen, so a prediction says how many calls were written down.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from memfit.ledger import LedgerBuilder
from memfit.ledger.schema import Array, Blocks, EventKind, Events, Roles, Scopes
from memfit.phantom.tensors.tensor_annotations import VALUES
from memfit.phantom.torch_cuda.autocast import CastCache
from memfit.record.sources.operators.recorder import Recorder
from memfit.torch_compat.dispatch import TorchDispatchMode, tree_leaves, tree_map
from memfit.torch_compat.dynamo import is_compiled
from memfit.torch_compat.fake_tensors import device_query

RUN_ALL: Final = "MEMFIT_RUN_ALL_CALLS"
"""With this variable set to 1, every call is run."""
WATCHED: Final = 3
"""So many calls in a row must be alike."""
MOST_FAILURES: Final = 20
"""After so many calls that could not be replaced, a module's calls are watched no more."""
PLAIN: Final = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size)


_Casts = Iterator[tuple[torch.Tensor, torch.Tensor]]
"""Leaves and the casts that autocast keeps of them."""


class NotRepeatableError(Exception):
    """Something about a call cannot be compared, or must not be repeated."""


class Evaluations:
    """Watches and replaces calls of models."""

    def __init__(self, recorder: Recorder, casts: CastCache, passed: Callable[[], None]) -> None:
        """``passed`` is called for each call that was replaced."""
        self._recorder, self._casts, self._passed = recorder, casts, passed
        self._watched: weakref.WeakKeyDictionary[nn.Module, _History] = weakref.WeakKeyDictionary()
        self._taken: dict[str, int] = {}
        self._is_inside = False
        self.num_replaced = 0

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In the place of ``nn.Module.__call__``; calls inside a call are part of it."""

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._is_inside or torch.is_grad_enabled() or not self._may_watch():
                return original(module, *args, **kwargs)
            self._is_inside = True
            try:
                return self._answer(original, module, args, kwargs)
            finally:
                self._is_inside = False

        return call

    def _may_watch(self) -> bool:
        return are_wanted() and not torch.distributed.is_initialized() and self._recorder.is_at_rest()

    def _answer(self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        history = self._watched.get(module)
        if history is None:
            history = self._watched[module] = _History()
        if history.num_failures > MOST_FAILURES:
            return original(module, *args, **kwargs)
        try:
            state = _state_of(module, args, kwargs, self._casts)
        except NotRepeatableError:
            history.fail()
            return original(module, *args, **kwargs)
        if history.num_alike >= WATCHED and history.state == state and history.call is not None:
            return self._write(history.call, module, args, kwargs)
        return self._watch(original, history, state, module, args, kwargs)

    # -- watching ------------------------------------------------------------------------------------------------------------------

    def _watch(self, original: Callable[..., Any], history: _History, state: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        builder, casts = self._recorder.builder, set(self._casts.entries)
        builder.fresh_since(self._taken)
        first = (builder.num_blocks, builder.num_scopes)
        with _Readings() as readings:
            result = original(module, *args, **kwargs)
        fresh = builder.fresh_since(self._taken)
        try:
            if readings.are_there or _state_of(module, args, kwargs, None) != state[1:]:
                raise NotRepeatableError
            history.add(state, _Call.read(fresh, first, result, self._new_casts(casts), self._recorder))
        except NotRepeatableError:
            history.fail()
        return result

    def _new_casts(self, before: set[int]) -> _Casts:
        for key, (owner, cast) in self._casts.entries.items():
            if key not in before and (tensor := owner()) is not None:
                yield tensor, cast

    # -- writing -------------------------------------------------------------------------------------------------------------------

    def _write(self, call: _Call, module: nn.Module, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        recorder.begin_root(module, args, kwargs)
        blocks, scopes = call.write(recorder.builder)
        with recorder.quiet():
            for owner, tensor in call.casts:
                leaf = owner()
                assert leaf is not None  # the module has it, or its state would be another one
                self._casts.keep(leaf, tensor.make(recorder, blocks, scopes))
            made: dict[int, torch.Tensor] = {}
            result = tree_map(
                lambda leaf: leaf.make(recorder, blocks, scopes, made) if isinstance(leaf, _Made) else leaf, call.result
            )
        self.num_replaced += 1
        self._passed()
        return result


@dataclass
class _History:
    """The last calls of a module."""

    state: Any = None
    call: _Call | None = None
    num_alike: int = 0
    num_failures: int = 0

    def add(self, state: Any, call: _Call) -> None:
        is_alike = self.call is not None and self.state == state and self.call.is_like(call)
        self.num_alike = self.num_alike + 1 if is_alike else 1
        self.num_failures += not is_alike
        self.state, self.call = state, call

    def fail(self) -> None:
        self.state, self.call, self.num_alike = None, None, 0
        self.num_failures += 1


# -- what decides a call -----------------------------------------------------------------------------------------------------------


def _state_of(module: nn.Module, args: Any, kwargs: Any, casts: CastCache | None) -> tuple[Any, ...]:
    """Everything that could decide what a call does, as far as it can be compared. The kept casts stand first."""
    leaves = tuple(_of_value(leaf) for leaf in tree_leaves((args, kwargs)))
    structure = str(tree_map(lambda leaf: None, (args, kwargs)))
    modes = (
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
    )
    kept = () if casts is None else (tuple(casts.entries),)
    own = (leaves, structure, modes, tuple(_of_module(each) for each in module.modules()))
    return (*kept, *own)


def _of_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.requires_grad:
            raise NotRepeatableError
        storage = value.untyped_storage()
        where = (value.storage_offset(), int(storage.nbytes()))
        return (type(value), tuple(value.shape), value.stride(), value.dtype, value.device, *where)
    if isinstance(value, PLAIN):
        return (type(value), value)
    raise NotRepeatableError


def _of_module(module: nn.Module) -> tuple[Any, ...]:
    if is_compiled(module):
        raise NotRepeatableError  # watching it would change what is compiled
    parameters = tuple((id(parameter), parameter.dtype) for parameter in module._parameters.values() if parameter is not None)
    return (id(module), parameters, tuple(_plain_attributes(vars(module), deep=True)))


def _plain_attributes(attributes: dict[str, Any], deep: bool) -> Iterator[tuple[str, Any]]:
    """Plain values and lengths, the number of hooks too; of other objects, a configuration for one, their own plain attributes."""
    for name, value in attributes.items():
        if isinstance(value, PLAIN):
            yield name, value
        elif isinstance(value, (list, tuple, dict, set, deque)):
            yield name, len(value)
        elif isinstance(value, torch.Tensor):
            yield name, (id(value), value.dtype)
        elif deep and not isinstance(value, (nn.Module, type)) and hasattr(value, "__dict__"):
            yield name, tuple(_plain_attributes(vars(value), deep=False))


class _Readings(TorchDispatchMode):
    """Sees whether values decide anything: one is read, shapes follow from values, or data of the host are worked on.

    Tensors that a call makes of Python's own numbers are no such data: ``x[:, [-1]]`` makes one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.are_there = False
        self._of_numbers: list[weakref.ref[torch.Tensor]] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """To torch it is as if it were not there: compilers go on."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is device_query or self.are_there:
            return func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_of_numbers = not tensors or func is torch.ops.aten.lift_fresh.default
        self.are_there = _asks_for_values(func, args) or (not is_of_numbers and any(self._is_data(tensor) for tensor in tensors))
        result = func(*args, **(kwargs or {}))
        if is_of_numbers and isinstance(result, torch.Tensor):
            self._of_numbers.append(weakref.ref(result))
        return result

    def _is_data(self, tensor: torch.Tensor) -> bool:
        is_on_host = tensor.dim() > 0 and tensor.device.type == "cpu"
        return is_on_host and not any(known() is tensor for known in self._of_numbers)


def _asks_for_values(func: Any, args: Any) -> bool:
    if func is torch.ops.aten.index.Tensor:  # of positions, the shapes tell; of a mask, only its values do
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


# -- a call ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Made:
    """A tensor that a call made, and its block among those of the call."""

    block: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    size_bytes: int

    @classmethod
    def of(cls, tensor: torch.Tensor, first_block: int, recorder: Recorder) -> _Made:
        if tensor.requires_grad or tensor.layout is not torch.strided or any(vars(tensor).get(note) is not None for note in VALUES):
            raise NotRepeatableError
        block = recorder.block_of(tensor)
        if block is None or block < first_block:
            raise NotRepeatableError
        size_bytes = int(tensor.untyped_storage().nbytes())
        if size_bytes % tensor.element_size():
            raise NotRepeatableError
        offset = int(tensor.storage_offset())
        return cls(block - first_block, tuple(tensor.shape), tensor.stride(), offset, tensor.dtype, tensor.device, size_bytes)

    def make(
        self, recorder: Recorder, blocks: list[int], scopes: list[int], made: dict[int, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """A new tensor like it, whose storage stands for the block that was written; ``made`` has those that others have made."""
        made = {} if made is None else made
        if self.block not in made:
            base = torch.empty(self.size_bytes // self.dtype.itemsize, dtype=self.dtype, device=self.device)
            recorder.adopt_block(base, blocks[self.block], scopes[self.block], self.size_bytes)
            made[self.block] = base
        base = made[self.block]
        base = base if base.dtype is self.dtype else base.view(self.dtype)
        return base.as_strided(self.shape, self.stride, self.offset)


@dataclass(frozen=True)
class _Call:
    """What a call did to the ledger, counted from where it began, and what it gave."""

    kind: Array
    subject: Array
    size: Array
    blocks: Array
    """Rows of device, stream, operator and scope."""
    scopes: Array
    """Rows of phase, module and parent."""
    roles: Array
    """Rows of block, role, module and name."""
    casts: list[tuple[weakref.ref[torch.Tensor], _Made]]
    result: Any

    @classmethod
    def read(cls, fresh: dict[str, list[Any]], first: tuple[int, int], result: Any, kept: _Casts, recorder: Recorder) -> _Call:
        events, blocks = Events.concatenate(fresh.get("events", [])), Blocks.concatenate(fresh.get("blocks", []))
        scopes, roles = Scopes.concatenate(fresh.get("scopes", [])), Roles.concatenate(fresh.get("roles", []))
        if fresh.get("prelude") or np.isin(events.kind, (EventKind.STEP, EventKind.EMPTY_CACHE)).any():
            raise NotRepeatableError
        is_scope = np.isin(events.kind, (EventKind.ENTER, EventKind.EXIT))
        subject = events.subject - np.where(is_scope, first[1], first[0])
        inside = roles.block >= first[0]
        rows = (
            np.stack((blocks.device, blocks.stream, blocks.op, _counted_from(blocks.scope, first[1])), axis=1),
            np.stack((scopes.phase, scopes.module, _counted_from(scopes.parent, first[1])), axis=1),
            np.stack((roles.block - first[0], roles.role, roles.module, roles.name), axis=1)[inside],
        )
        if (subject < 0).any():
            raise NotRepeatableError
        skeleton = tree_map(
            lambda leaf: _Made.of(leaf, first[0], recorder) if isinstance(leaf, torch.Tensor) else _plain(leaf), result
        )
        casts = [(weakref.ref(owner), _Made.of(cast, first[0], recorder)) for owner, cast in kept]
        made = {leaf.block for leaf in (*tree_leaves(skeleton), *(cast for _, cast in casts)) if isinstance(leaf, _Made)}
        born = set(subject[events.kind == EventKind.ALLOC].tolist())
        if born - set(subject[events.kind == EventKind.FREE].tolist()) != made:
            raise NotRepeatableError  # it keeps something else, or gives back what it did not make
        return cls(events.kind, subject, events.size, *rows, casts, skeleton)

    def is_like(self, other: _Call) -> bool:
        names = ("kind", "subject", "size", "blocks", "scopes", "roles")
        if not all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names):
            return False
        casts = [[made for _, made in call.casts] for call in (self, other)]
        return bool(casts[0] == casts[1] and self.result == other.result)

    def write(self, builder: LedgerBuilder) -> tuple[list[int], list[int]]:
        """Writes it again; gives the numbers of its blocks, and of the scopes that they were born in."""
        blocks: list[int] = []
        born_in: list[int] = []
        scopes: list[int] = []
        rows, scope_rows = self.blocks.tolist(), self.scopes.tolist()
        for kind, subject, size in zip(self.kind.tolist(), self.subject.tolist(), self.size.tolist(), strict=True):
            if kind == EventKind.ALLOC:
                device, stream, op, scope = rows[subject]
                born_in.append(scopes[scope] if scope >= 0 else -1)
                blocks.append(builder.alloc(size, device, op, born_in[-1], stream))
            elif kind == EventKind.FREE:
                builder.free(blocks[subject])
            elif kind == EventKind.ENTER:
                phase, module, parent = scope_rows[subject]
                scopes.append(builder.enter(phase, module, scopes[parent] if parent >= 0 else -1, size))
            elif kind == EventKind.EXIT:
                builder.exit(scopes[subject], size)
            elif kind == EventKind.RESIZE:
                builder.resize(blocks[subject], size)
            else:
                builder.move(blocks[subject], size)
        for block, role, module, name in self.roles.tolist():
            builder.role(blocks[block], role, module, builder.strings[name] if name >= 0 else None)
        return blocks, born_in


def _counted_from(numbers: Array, first: int) -> Array:
    """-1 stays: it is outside all."""
    if ((numbers >= 0) & (numbers < first)).any():
        raise NotRepeatableError
    counted: Array = np.where(numbers >= 0, numbers - first, -1)
    return counted


def _plain(leaf: Any) -> Any:
    if not isinstance(leaf, PLAIN):
        raise NotRepeatableError
    return leaf


def are_wanted() -> bool:
    return os.environ.get(RUN_ALL, "") in ("", "0")
