"""Values that decide what a call does: whether there is padding, where an image goes.

::

    mask ──> mask.to(bool) ──> .all() ──> .item()  False      read in a call that was watched
                                                              asked again of the mask of a call that could be written down

A reading that does not depend on the arguments' data is the same for every call of the same shapes. One that does is worked out
again from the data of the new call, with the operators that led to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.phantom.tensors.tensor_annotations import CONSTANT, PREFIX
from memfit.phantom.values.host_data import host_data_of, on_host, operand
from memfit.torch_compat.dispatch import TorchDispatchMode, tree_leaves, tree_map, without_modes
from memfit.torch_compat.fake_tensors import FakeTensor, device_query

_ORIGIN = f"{PREFIX}origin"
"""How a tensor's values follow from the arguments; ``None`` where they do and it cannot be told how."""
_TO_COPY = torch.ops.aten._to_copy.default


@dataclass(frozen=True, eq=False)
class _Input:
    """An argument of the call, by its place among its tensors."""

    place: int

    def value(self, inputs: Sequence[torch.Tensor], known: dict[int, Any], sizes: Mapping[int, int]) -> Any:
        data = host_data_of(inputs[self.place])
        if data is None:
            raise LookupError
        return data


@dataclass(frozen=True, eq=False)
class _OperatorResult:
    """What an operator made of such data; ``place`` is its place where it made several."""

    func: Any
    args: Any
    kwargs: dict[str, Any]
    place: int | None

    def value(self, inputs: Sequence[torch.Tensor], known: dict[int, Any], sizes: Mapping[int, int]) -> Any:
        if id(self) not in known:

            def real(value: Any) -> Any:
                if isinstance(value, (_Input, _OperatorResult)):
                    return value.value(inputs, known, sizes)
                return sizes.get(value, value) if type(value) is int else value

            args = tree_map(real, self.args)
            if self.func._schema.is_mutable:
                args = (args[0].clone(), *args[1:])  # what it changes in place may be the script's own
            result = on_host(self.func, args, tree_map(real, self.kwargs))
            known[id(self)] = result if self.place is None else result[self.place]
        return known[id(self)]


@dataclass(frozen=True, eq=False)
class ValueReading:
    """A value that was read, and how it follows from the arguments; without an origin, it does not."""

    outcome: Any
    origin: _Input | _OperatorResult | None
    func: Any

    def is_the_same(self, inputs: Sequence[torch.Tensor], known: dict[int, Any], sizes: Mapping[int, int]) -> bool:
        """``sizes`` translates sizes of the arguments that were, to those that are."""
        if self.origin is None:
            return True
        try:
            data = self.origin.value(inputs, known, sizes)
            return bool(_outcome(on_host(self.func, (data,), {}) if self.func is not _TO_COPY else data) == self.outcome)
        except Exception:
            return False


def are_the_same(readings: Sequence[ValueReading], inputs: Sequence[torch.Tensor], sizes: Mapping[int, int] | None = None) -> bool:
    """Would a call with these arguments read the same values?"""
    if not any(reading.origin is not None for reading in readings):
        return True
    known: dict[int, Any] = {}
    with without_modes():
        return all(reading.is_the_same(inputs, known, sizes or {}) for reading in readings)


class Readings(TorchDispatchMode):
    """Sees which values are read while it is on.

    ``are_unclear``: one was read whose origin cannot be told, or data of the host were worked on. Tensors that a call makes of
    Python's own numbers are no such data: ``x[:, [-1]]`` makes one.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.are_unclear = False
        self.found: list[ValueReading] = []
        self._of_numbers: list[weakref.ref[torch.Tensor]] = []
        self._inputs = inputs

    def __enter__(self) -> Any:
        for place, tensor in enumerate(self._inputs):
            if host_data_of(tensor) is not None:
                setattr(tensor, _ORIGIN, _Input(place))
        return super().__enter__()  # type: ignore[no-untyped-call, unused-ignore]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call, unused-ignore]
        for tensor in self._inputs:
            vars(tensor).pop(_ORIGIN, None)

    @classmethod
    def is_infra_mode(cls) -> bool:
        """To torch it is as if it were not there: compilers go on."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is device_query or self.are_unclear:
            return func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_of_numbers = not tensors or func is torch.ops.aten.lift_fresh.default
        self.are_unclear = not is_of_numbers and any(self._is_data(tensor) for tensor in tensors)
        is_followed = any(_ORIGIN in vars(tensor) for tensor in tensors)
        asks = bool(tensors) and _asks_for_values(func, args, kwargs)
        if asks:
            origin = vars(tensors[0]).get(_ORIGIN)
            self.are_unclear |= is_followed and (origin is None or len(tensors) > 1)
        result = func(*args, **kwargs)
        if asks:
            self.found.append(ValueReading(_outcome(result), origin, func))
        if is_of_numbers and isinstance(result, torch.Tensor):
            self._of_numbers.append(weakref.ref(result))
        if is_followed:
            self._follow(func, args, kwargs, result)
        return result

    def _follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        parts = list(enumerate(result)) if isinstance(result, (tuple, list)) else [(None, result)]
        tensors = [(place, part) for place, part in parts if isinstance(part, torch.Tensor)]
        known = [(place, part) for place, part in tensors if host_data_of(part) is not None]
        for _, part in tensors:
            if vars(part).get(CONSTANT) is not None and host_data_of(part) is None:
                setattr(part, _ORIGIN, None)
        if not known:
            return
        try:
            operands = tree_map(_origin_of, args), tree_map(_origin_of, kwargs)
        except LookupError:
            self.are_unclear = True
            return
        for place, part in known:
            if func._schema.is_mutable and (part._base is not None or part is not args[0]):
                self.are_unclear = True  # others look at the same data
            setattr(part, _ORIGIN, _OperatorResult(func, *operands, place))

    def _is_data(self, tensor: torch.Tensor) -> bool:
        is_on_host = tensor.dim() > 0 and tensor.device.type == "cpu"
        return is_on_host and not any(known() is tensor for known in self._of_numbers)


def _origin_of(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if _ORIGIN not in vars(value):
        return operand(value)
    origin = vars(value)[_ORIGIN]
    if origin is None:
        raise LookupError
    return origin


def _outcome(result: Any) -> Any:
    """What was read: a number; of tensors whose shapes follow from values the shapes; of a copy on the host its data."""
    if isinstance(result, torch.Tensor):
        if type(result) is not FakeTensor and result.device.type == "cpu" and not result.is_meta:
            return (tuple(result.shape), result.dtype, result.contiguous().numpy().tobytes() if result.dtype.itemsize else b"")
        return tuple(result.shape)
    if isinstance(result, (tuple, list)):
        return tuple(_outcome(part) for part in result)
    return (type(result), result)


def _asks_for_values(func: Any, args: Any, kwargs: Any) -> bool:
    if func is torch.ops.aten.index.Tensor:  # of positions, the shapes tell; of a mask, only its values do
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    if func is _TO_COPY:
        device = kwargs.get("device")
        return device is not None and device.type == "cpu" and args[0].device.type == "cuda"
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
