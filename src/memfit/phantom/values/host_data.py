"""Small tensors that came from the host keep their data.

::

    torch.tensor(shape, device="cuda")      the same tensor is kept on the host
    x[None], x.max(), ...                   what follows from it is computed on the host as well
    all_reduce, all_gather, broadcast       as if every rank had what this one has
    .item(), .tolist(), .cpu()              the real values

Frameworks tell their ranks apart and together with such tensors: how long a batch is, whether to stop, how much to pad. A guess
would send a script down a path that it never takes. Anything larger is data, and nothing is known of data here.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from memfit.phantom.tensors.notes import CONSTANT, HOST_DATA
from memfit.torch_compat.dispatch import tree_map
from memfit.torch_compat.fake_tensors import FakeTensor

aten = torch.ops.aten

LARGEST_SOURCE = 64
"""A tensor of the host with at most so many elements is remembered."""
LARGEST_BYTES = 2**20
"""The same for one-dimensional tensors of bytes: states of generators, objects that were pickled."""
LARGEST_RESULT = 2**20
"""The most elements of a tensor that is computed from them: a gathered one has those of every rank."""

_EXACT = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64))


class _NotKnown(Exception):
    """The data of an operand are not known."""


def host_data_of(tensor: Any) -> torch.Tensor | None:
    """The data of a tensor without data, if they are known."""
    found: torch.Tensor | None = tensor.__dict__.get(HOST_DATA) if type(tensor) is FakeTensor else None
    return found


def keep_host_data(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """``tensor`` of the GPU was just made from ``source`` of the host."""
    is_bytes = source.dtype == torch.uint8 and source.dim() == 1
    largest = LARGEST_BYTES if is_bytes else LARGEST_SOURCE
    if source.numel() <= largest and tensor.dtype in _EXACT and source.layout == torch.strided:
        setattr(tensor, HOST_DATA, source.detach().to(tensor.dtype).expand(tensor.shape).clone())


def follow(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """What an operator makes of known data is known of its result."""
    first = args[0] if args else None
    if type(first) in (list, tuple) and first:
        first = first[0]
    if host_data_of(first) is None:
        return
    followed: Any = None
    if torch.Tag.nondeterministic_seeded not in func.tags:
        with contextlib.suppress(Exception):
            real = {name: value for name, value in kwargs.items() if name not in ("device", "layout")}
            followed = func(*tree_map(_real, args), **tree_map(_real, real))
    _attach(result, followed)


def _real(value: Any) -> Any:
    """An operand on the host."""
    if type(value) is not FakeTensor:
        return value
    known = host_data_of(value)
    if known is None:
        constant = getattr(value, CONSTANT, None)
        if constant is None or value.numel() > LARGEST_SOURCE:
            raise _NotKnown
        return torch.full(value.shape, constant, dtype=value.dtype, device="cpu")
    return known


def _attach(result: Any, followed: Any) -> None:
    if type(result) is FakeTensor:
        fits = isinstance(followed, torch.Tensor) and followed.shape == result.shape and followed.numel() <= LARGEST_RESULT
        setattr(result, HOST_DATA, followed if fits and result.dtype in _EXACT else None)
    elif isinstance(result, (list, tuple)):
        for index, part in enumerate(result):
            _attach(part, followed[index] if isinstance(followed, (list, tuple)) else None)


# -- collectives -------------------------------------------------------------------------------------------------------------


def reduce(tensor: Any, operation: Any, num_ranks: int) -> None:
    """Every rank had the same: a sum is so many times as much, the rest is as it was."""
    factor = num_ranks if operation == torch.distributed.ReduceOp.SUM else 1
    known, constant = host_data_of(tensor), getattr(tensor, CONSTANT, None)
    if known is not None:
        setattr(tensor, HOST_DATA, known * factor)
    if constant is not None and not isinstance(constant, bool):
        setattr(tensor, CONSTANT, constant * factor)


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
