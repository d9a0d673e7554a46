"""One forward of each unit, written down: which operators ran, what they made, how long they take, and what backward will need.

::

    unit.forward ──> a dispatch mode: operators, their storages, who changes what of whom
                └──> saved_tensors_hooks: which storages autograd keeps, and after which operator it kept the last one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from memfit.hardware import Gpu
from memfit.phantom.clock.describe import describe
from memfit.plan.applying.running_statistics import Statistics
from memfit.plan.checkpointing.recorded import RecordedCall, RecordedUnit
from memfit.record.tensors import PLAIN_TYPES, plain_tensors
from memfit.timing.operators.calls import Cost
from memfit.timing.operators.prices import KernelSettings, price
from memfit.torch_compat.dispatch import TorchDispatchMode, tree_leaves
from memfit.torch_compat.fake_tensors import FakeTensor

BLOCK: Final = 512
"""The allocator rounds sizes up to this."""

_STATISTICS: Final = ("batch_norm",)
"""Operators that change running statistics which they are given, and whose schemas do not all say so."""

_COLLECTIVES: Final = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class _RecordedCall:
    """One call, while it is not known what comes after it."""

    def __init__(self, func: Any, call: int, cost: Cost, made: dict[int, int], written: set[int], read: set[int]) -> None:
        self.func, self.call, self.cost = func, call, cost
        self.made, self.written, self.read = made, written, read
        """Storages by identity; with their bytes those it made."""
        self.is_random = False
        self.statistics: set[int] = set()
        """Running statistics that it changes, which its schema may not say."""


class Capture(TorchDispatchMode):
    """Around one forward of a unit."""

    def __init__(self, gpu: Gpu, inputs: Iterable[Tensor], spared: Iterable[Tensor] = ()) -> None:
        """``spared`` are not changed when the unit is computed again."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._gpu = gpu
        self._settings = KernelSettings(
            allow_tf32=bool(torch.backends.cuda.matmul.allow_tf32), convolution_tf32=bool(torch.backends.cudnn.allow_tf32)
        )
        self._alive: list[Any] = []
        """Storages are told apart by identity: none may die while others are made."""
        self._counts: dict[Any, int] = {}
        self._calls: list[_RecordedCall] = []
        self._inputs, self._spared = set(self._storages(inputs)), set(self._storages(spared))
        self._saved: set[int] = set()
        self._num_calls_at_last_save = 0
        self.has_collectives = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(not (kind in PLAIN_TYPES or issubclass(kind, FakeTensor)) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if getattr(func, "_schema", None) is not None:
            self._note(func, args, kwargs or {}, result)
        return result

    def save(self, tensor: Tensor) -> Tensor:
        """Autograd keeps this."""
        self._saved.update(self._storages([tensor]))
        self._num_calls_at_last_save = len(self._calls)
        return tensor.detach()

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        count = self._counts.get(func, 0)
        self._counts[func] = count + 1
        self.has_collectives |= func.namespace in _COLLECTIVES
        read = self._storages(_tensors((args, kwargs)))
        known = set(read) | self._inputs
        made = {key: size for key, size in self._storages(_tensors(result)).items() if key not in known}
        written = set(self._storages(_written(func, args, kwargs)))
        if not made and not written:
            return  # it only looks at something in another way
        noted = _RecordedCall(func, count, price(describe(func, args, result), self._gpu, self._settings), made, written, set(read))
        noted.is_random = _is_random(func, args, kwargs)
        if any(word in str(func) for word in _STATISTICS):
            noted.statistics = set(self._storages(_running(func, args, kwargs)))
        self._calls.append(noted)

    def _storages(self, tensors: Iterable[Tensor]) -> dict[int, int]:
        found = {}
        for tensor in tensors:
            for plain in plain_tensors(tensor):
                storage = plain.untyped_storage()
                self._alive.append(storage)
                found[id(storage)] = -(-int(storage.nbytes()) // BLOCK) * BLOCK if plain.device.type != "cpu" else 0
        return found

    # -- what became of it -----------------------------------------------------------------------------------------------------

    def unit(self, name: str, module: nn.Module, num_forwards: int, is_compiled: bool, order: int = 0) -> RecordedUnit:
        maker = {key: number for number, call in enumerate(self._calls) for key in call.made}
        sizes = {key: size for call in self._calls for key, size in call.made.items()}
        return RecordedUnit(
            name=name,
            kind=type(module).__name__,
            calls=tuple(self._recorded(number, maker) for number in range(len(self._calls))),
            saved_bytes=sum(sizes.get(key, 0) for key in self._saved),
            num_forwards=num_forwards,
            is_compiled=is_compiled,
            refusal=self._refusal(maker),
            order=order,
        )

    def _recorded(self, number: int, maker: dict[int, int]) -> RecordedCall:
        call = self._calls[number]
        own = [maker[key] for key in call.written if key in maker and maker[key] != number]
        outside = {key for key in call.written if key not in maker}
        last_write = max(
            (later for later in range(number, len(self._calls)) if self._calls[later].written & set(call.made)), default=0
        )
        readers = (other for other in range(number + 1, last_write) if not self._calls[other].written & set(call.made))
        is_whole = not any(self._calls[other].read & set(call.made) for other in readers)
        return RecordedCall(
            operator=str(call.func),
            call=call.call,
            seconds=call.cost.seconds,
            size_bytes=sum(call.made.values()),
            is_run_again=number < self._num_calls_at_last_save,
            is_random=call.is_random,
            is_product=bool(call.cost.flops),
            base=own[0] if own else None,
            must_keep=bool((outside | call.statistics) - self._spared),
            can_keep=is_whole and len(own) <= 1 and bool(call.made or own or outside),
        )

    def _refusal(self, maker: dict[int, int]) -> str:
        for number, call in enumerate(self._calls):
            outside = call.written - set(maker)
            if outside & self._inputs:
                return f"it changes its own input with {call.func}"
            others = (other for place, other in enumerate(self._calls) if place != number)
            if any(outside & other.read for other in others):
                return f"it changes with {call.func} what it also reads"
        return ""


def capture_forward(module: nn.Module, gpu: Gpu, args: Any, kwargs: Any, forward: Callable[..., Any]) -> tuple[Any, Capture]:
    """The result of a forward, and what it did."""
    capture = Capture(gpu, _tensors((args, kwargs)), Statistics(module).tensors())
    with saved_tensors_hooks(capture.save, lambda saved: saved), capture:
        return forward(*args, **kwargs), capture


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """The schema's arguments with what was given for them."""
    for place, argument in enumerate(func._schema.arguments):
        if place < len(args):
            yield argument, args[place]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    for argument, value in _arguments(func, args, kwargs):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(value)


def _is_random(func: Any, args: Any, kwargs: Any) -> bool:
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    chances = [value for argument, value in _arguments(func, args, kwargs) if argument.name in ("dropout_p", "p", "dropout")]
    if any(argument.name in ("train", "training") and value is False for argument, value in _arguments(func, args, kwargs)):
        return False
    if not chances and any(argument.name in ("dropout_p", "dropout") for argument in func._schema.arguments):
        return False  # left out: no dropout
    return not chances or any(chance != 0 for chance in chances)


def _running(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The running statistics that a norm changes: those it is given while it trains."""
    given = {argument.name: value for argument, value in _arguments(func, args, kwargs)}
    if bool(given.get("training", given.get("train", True))) and "backward" not in str(func):
        yield from _tensors((given.get("running_mean"), given.get("running_var")))
