"""How much of a mask is set, where its making says so: balanced routing.

::

    topk, argmax, ...    over E experts          indices with E choices
    indices % E          one after another       the same
    indices == 3                                 a mask, 1/E of it set
    one_hot, scatter_    n values into zeros     a mask, n of its elements set
    histc, bincount      of such indices         each expert's tokens: an even share. Known data from there on: sums and lists of
    sum                  of a mask, by column    them, and what the other ranks of expert parallelism send
    permute, index, ...                          as before

A mixture of experts sends each token to a few experts. Which ones only data can tell; that each gets its share is the assumption
that its training works for.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from memfit.phantom.tensors.notes import CHOICES, SHARE
from memfit.phantom.values.host_data import host_data_of, keep_host_data, keep_range
from memfit.torch_compat.distributed import collectives_that_hand_on

aten = torch.ops.aten


def note_routing(func: Any, args: Any, result: Any) -> None:
    """Keeps what an operator says about its result, if it says anything."""
    noter = _NOTERS.get(func)
    if noter is not None:
        noter(args, result)


def expected_count(mask: torch.Tensor) -> int | None:
    """How many elements of a mask are set, ``None`` where nothing is known of it."""
    share = getattr(mask, SHARE, None)
    return None if share is None else max(1, round(mask.numel() * share))


def even_counts(indices: torch.Tensor, num_bins: int) -> torch.Tensor | None:
    """How often each of so many experts is chosen, ``None`` where the indices are not known to be choices among them."""
    if getattr(indices, CHOICES, None) is None or num_bins < 1:
        return None
    return _even(indices.numel(), num_bins)


def _even(total: int, num_parts: int) -> torch.Tensor:
    bounds = [total * number // num_parts for number in range(num_parts + 1)]
    return torch.tensor([after - before for before, after in pairwise(bounds)], dtype=torch.int64, device="cpu")


def _count(args: Any, result: Any) -> None:
    """Bins that are 1 wide count whole numbers: choices, also where a compiled kernel has made numbers of another type of them."""
    counts = even_counts(args[0], result.numel())
    if counts is None and len(args) > 3 and args[3] - args[2] == args[1] > 0:
        counts = _even(args[0].numel(), args[1])
    if counts is not None:
        keep_host_data(result, counts)


def _add_up(args: Any, result: Any) -> None:
    """A mask, summed: how many of each column are set."""
    num_set = expected_count(args[0])
    if num_set is not None and result.numel():
        keep_host_data(result, _even(num_set, result.numel()).view(result.shape))


def _pass_data(args: Any, result: Any) -> None:
    data = host_data_of(args[0])
    if data is not None and result is not args[0]:
        keep_host_data(result, data)


def _choose(dim_at: int, indices_at: int | None) -> Callable[[Any, Any], None]:
    """For an operator that picks along the dimension its argument number ``dim_at`` names."""

    def note(args: Any, result: Any) -> None:
        dim = args[dim_at] if len(args) > dim_at and args[dim_at] is not None else -1
        indices = result if indices_at is None else result[indices_at]
        setattr(indices, CHOICES, args[0].shape[dim])

    return note


def _wrap_around(args: Any, result: Any) -> None:
    """Numbers that start again after so many: experts that take turns."""
    divisor = args[1]
    if not result.is_floating_point() and isinstance(divisor, int) and divisor > 1:
        setattr(result, CHOICES, divisor)


def _compare(args: Any, result: Any) -> None:
    choices = getattr(args[0], CHOICES, None)
    if choices:
        setattr(result, SHARE, 1 / choices)


def _compare_with_each(args: Any, result: Any) -> None:
    for side in args[:2]:
        _compare((side,), result)


def _scatter(args: Any, result: Any) -> None:
    target, index = args[0], args[2]
    if target.numel():
        setattr(result, SHARE, min(1.0, index.numel() / target.numel()))


def _pass_on(args: Any, result: Any) -> None:
    for name in (CHOICES, SHARE):
        known = getattr(args[0], name, None)
        if known is not None:
            setattr(result, name, known)


_PASSING = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.unsqueeze.default,
    aten.expand.default,
    aten.clone.default,
    aten.detach.default,
    aten._to_copy.default,
    aten.index.Tensor,
    aten.gt.Scalar,
    aten.ne.Scalar,
)

_NOTERS: dict[Any, Callable[[Any, Any], None]] = (
    dict.fromkeys(_PASSING, _pass_on)
    | dict.fromkeys(collectives_that_hand_on(), _pass_data)
    | {
        aten.topk.default: _choose(dim_at=2, indices_at=1),
        aten.argmax.default: _choose(dim_at=1, indices_at=None),
        aten.max.dim: _choose(dim_at=1, indices_at=1),
        aten.multinomial.default: _choose(dim_at=3, indices_at=None),
        aten.remainder.Scalar: _wrap_around,
        aten.eq.Scalar: _compare,
        aten.eq.Tensor: _compare_with_each,
        aten.scatter.value: _scatter,
        aten.scatter_.value: _scatter,
        aten.histc.default: _count,
        aten.sum.dim_IntList: _add_up,
        aten.arange.default: keep_range,
        aten.arange.start: keep_range,
        aten.arange.start_step: keep_range,
    }
)
