"""Tensors that came from the host keep their data: token ids, masks, lengths, flags.

::

    torch.tensor(shape, device="cuda")      the same tensor is kept on the host
    torch.arange(..., device="cuda")        says itself what it holds
    x[None], x.max(), ...                   what follows from it is computed on the host as well
    all_reduce, all_gather, broadcast       as if every rank had what this one has; zeros that another rank's values replace are a
                                            place for them, and those are not known
    .item(), .tolist(), .cpu()              the real values

Frameworks tell their ranks apart and together with such tensors: how long a batch is, whether to stop, how much to pad; models ask
them whether there is padding at all, and where the image goes. A guess would send a script down a path that it never takes.
Anything larger, and real numbers but for a few, is data, and nothing is known of data here.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memfit.phantom.tensors.tensor_annotations import CONSTANT, HOST_DATA, forget_data
from memfit.phantom.values.constants import Likely
from memfit.torch_compat.dispatch import tree_map
from memfit.torch_compat.fake_tensors import FakeTensor

aten = torch.ops.aten

_UNFILLED = frozenset((aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default))
_COLLECTIVES = frozenset(("c10d", "_c10d_functional"))

LARGEST_KNOWN = 2**22
"""Of tensors of whole numbers and truth values (token ids, masks, lengths) the data are known up to this many elements.

``benchmarks/speed/known_data.py`` says what that costs."""
LARGEST_REAL = 4096
"""The same for real numbers, which decide little, and which more is computed from."""
MOST_BYTES = 2**30
"""All host copies together; beyond it nothing new is kept."""
_COUNTED_FROM = 4096
"""Smaller copies are not counted."""

_SHARED_FROM = 2**14
"""From this many elements on, torch shares work between cores."""

_WHOLE = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
_REAL = frozenset((torch.float32, torch.float64))


class _NotKnown(LookupError):
    """The data of an operand are not known."""


class _Copies:
    """The bytes of host copies that are counted, which fall when one dies."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def admit(self, copy: torch.Tensor) -> bool:
        """Is there room for it? Views of what is there take none."""
        storage = copy.untyped_storage()
        key, size = id(storage), int(storage.nbytes())
        if size <= _COUNTED_FROM or key in self._known:
            return True
        if self.size_bytes + size > MOST_BYTES:
            return False
        self.size_bytes += size

        def forget(reference: Any) -> None:
            del self._known[key]
            self.size_bytes -= size

        self._known[key] = weakref.ref(storage, forget)
        return True


_copies = _Copies()


def host_data_of(tensor: Any) -> torch.Tensor | None:
    """The data of a tensor without data, if they are known."""
    found: torch.Tensor | None = tensor.__dict__.get(HOST_DATA) if type(tensor) is FakeTensor else None
    return found


def may_be_known(dtype: torch.dtype, num_elements: int) -> bool:
    """Is a tensor such that its data are worth knowing?"""
    return num_elements <= (LARGEST_KNOWN if dtype in _WHOLE else LARGEST_REAL if dtype in _REAL else 0)


def keep_host_data(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """``tensor`` of the GPU was just made from ``source`` of the host."""
    if may_be_known(tensor.dtype, tensor.numel()) and source.layout == torch.strided:
        with _one_thread(source):
            copy = source.detach().to(tensor.dtype).expand(tensor.shape).clone()
        if _copies.admit(copy):
            setattr(tensor, HOST_DATA, copy)


def keep_copied(to: torch.Tensor, source: torch.Tensor) -> None:
    """``to`` of the GPU is about to be overwritten as a whole: what is known of the source is known of it."""
    data = host_data_of(source) if isinstance(source, FakeTensor) else source
    if data is not None and host_data_of(to) is None and to._base is None:
        keep_host_data(to, data)


def keep_range(args: Any, result: Any) -> None:
    """``torch.arange`` on the GPU says itself what it holds."""
    if type(result) is FakeTensor and may_be_known(result.dtype, result.numel()):
        setattr(result, HOST_DATA, torch.arange(*args, dtype=result.dtype, device="cpu"))


def count_set(data: torch.Tensor) -> int:
    """How many elements are not zero; dimensions along which a mask was expanded are counted once."""
    repeated = math.prod(size for size, stride in zip(data.shape, data.stride(), strict=True) if stride == 0)
    whole = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in data.stride())
    return int(data[whole].count_nonzero()) * repeated


def follow(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """What an operator makes of known data is known of its result."""
    first: Any = args[0] if args else None
    if type(first) in (list, tuple):
        first = next((part for part in first if host_data_of(part) is not None), None)
    if host_data_of(first) is None:
        return
    if func.namespace in _COLLECTIVES:
        return  # what they receive is told below
    if func in _UNFILLED:
        return  # they take a shape, not data
    followed: Any = None
    if func.namespace == "aten" and torch.Tag.nondeterministic_seeded not in func.tags and _is_worth_it(func, result):
        with contextlib.suppress(Exception), _one_thread(first):
            followed = on_host(func, tree_map(operand, args), tree_map(operand, kwargs))
    _attach(result, followed)


def on_host(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operator gives for operands on the host."""
    return _ON_HOST.get(func, func)(*args, **{name: value for name, value in kwargs.items() if name not in ("device", "layout")})


def _count_whole(x: torch.Tensor, *how: Any) -> torch.Tensor:
    """``histc``, which takes whole numbers on the GPU alone."""
    counted: torch.Tensor = torch.ops.aten.histc.default(x.double(), *how)
    return counted.to(x.dtype)


_ON_HOST: dict[Any, Callable[..., Any]] = {torch.ops.aten.histc.default: _count_whole}
"""What the host does in the place of operators that it does not have for these types."""


@contextlib.contextmanager
def _one_thread(tensor: Any) -> Iterator[None]:
    """Waking other cores for a million elements takes longer than the work, above all where others use them."""
    num_threads = torch.get_num_threads()
    if num_threads == 1 or tensor.numel() < _SHARED_FROM:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _is_worth_it(func: Any, result: Any) -> bool:
    """Views cost nothing, however large; of the rest the size tells."""
    if type(result) is FakeTensor:
        return may_be_known(result.dtype, result.numel()) or (func.is_view and result.dtype in _WHOLE)
    if isinstance(result, (list, tuple)):
        return all(_is_worth_it(func, part) for part in result)
    return False


def operand(value: Any) -> Any:
    """An operand on the host. Raises ``LookupError`` where its data are not known."""
    if type(value) is not FakeTensor:
        return value
    known = host_data_of(value)
    if known is None:
        constant = getattr(value, CONSTANT, None)
        if constant is None or isinstance(constant, Likely):
            raise _NotKnown
        return torch.tensor(constant, dtype=value.dtype, device="cpu").expand(value.shape)
    return known


def _attach(result: Any, followed: Any) -> None:
    if type(result) is FakeTensor:
        fits = isinstance(followed, torch.Tensor) and followed.shape == result.shape and _copies.admit(followed)
        setattr(result, HOST_DATA, followed if fits else None)
        if not fits and result._base is not None:
            setattr(result._base, HOST_DATA, None)  # a part of it may have changed
    elif isinstance(result, (list, tuple)):
        for index, part in enumerate(result):
            _attach(part, followed[index] if isinstance(followed, (list, tuple)) else None)


# -- collectives -------------------------------------------------------------------------------------------------------------


def reduce(tensor: Any, operation: Any, num_ranks: int) -> None:
    """Every rank had the same: a sum is multiplied by the number of ranks, the rest is unchanged."""
    factor = num_ranks if operation == torch.distributed.ReduceOp.SUM else 1
    known, constant = host_data_of(tensor), getattr(tensor, CONSTANT, None)
    if known is not None:
        setattr(tensor, HOST_DATA, known * factor)
    if constant is not None and not isinstance(constant, bool):
        setattr(tensor, CONSTANT, constant * factor)


def receive(tensor: Any) -> None:
    """Another rank has sent this. Where this one had zeros, it had made room for something else."""
    known, constant = host_data_of(tensor), getattr(tensor, CONSTANT, None)
    if constant == 0 or (known is not None and not known.any()):
        forget_data(tensor)


def gather(gathered: Any, tensor: Any, num_ranks: int) -> None:
    """Into a list of tensors, or one of them all."""
    known, constant = host_data_of(tensor), getattr(tensor, CONSTANT, None)
    for part in gathered if isinstance(gathered, list) else [gathered]:
        if type(part) is not FakeTensor:
            continue
        setattr(part, CONSTANT, constant)
        if known is not None and part.numel() in (known.numel(), known.numel() * num_ranks):
            copies = part.numel() // max(known.numel(), 1)
            setattr(part, HOST_DATA, known.flatten().repeat(copies).view(part.shape).to(part.dtype))
