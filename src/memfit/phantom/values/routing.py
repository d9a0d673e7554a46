"""How much of a mask is set, where its making says so: balanced routing, and others who choose.

::

    topk, argmax, ...    over E experts          indices with E choices
    indices % E          one after another       the same
    indices == 3                                 a mask, 1/E of it set
    one_hot, scatter_    n values into zeros     a mask, n of its elements set
    histc, bincount      of such indices         each expert's tokens: an even share. Known data from there on: sums and lists of
    sum                  of a mask, by column    them, and what the other ranks of expert parallelism send
    permute, index, ...                          as before
    known[unknown]       picked from known ones  indices with as many choices as there are different numbers, none of them larger
    floor, clamp         whole, from a to b      indices with b - a + 1 choices: the level of a pyramid that a region is cut from
    softmax > 0.05       shares of one whole     a mask: no more than 20 of them are so large

A mixture of experts sends each token to a few experts. Which ones only data can tell; that each gets its share is the assumption
that its training works for. Where the user says how much more than the mean the busiest expert receives, that is the first one, and
the others share the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from memfit.phantom.tensors.tensor_annotations import ADDS_UP, CHOICES, CONSTANT, EXPERTS, IS_WHOLE, LARGEST, SHARE
from memfit.phantom.values.host_data import host_data_of, keep_host_data, keep_range
from memfit.torch_compat.dispatch import tree_leaves
from memfit.torch_compat.distributed import collectives_that_hand_on
from memfit.torch_compat.fake_tensors import FakeTensor

aten = torch.ops.aten


MOST_COUNTED = 2**18
"""Known numbers that something is picked from are counted up to this many."""


class MaskShare(float):
    """How much of a mask is set, and why, in words."""

    why: str

    @classmethod
    def because(cls, value: float, why: str) -> MaskShare:
        share = cls(value)
        share.why = why
        return share


class Routing:
    """What is known of routed tokens, given that the busiest expert receives ``imbalance`` times the mean."""

    def __init__(self, imbalance: float = 1.0, tell: Callable[[], Any] = lambda: None) -> None:
        """``tell`` is called where tokens are counted: how many an expert has is assumed from there on."""
        self._imbalance, self._tell = imbalance, tell
        self._noters = _NOTERS | {
            aten.eq.Scalar: self._compare,
            aten.eq.Tensor: self._compare_with_each,
            aten.select.int: self._select,
            aten.unbind.int: self._select_each,
            aten.histc.default: self._count,
            aten.sum.dim_IntList: self._add_up,
        }

    def note(self, func: Any, args: Any, result: Any) -> None:
        """Keeps what an operator says about its result, if it says anything."""
        noter = self._noters.get(func)
        if noter is not None:
            noter(args, result)
        elif args and result is args[0] and type(result) is FakeTensor:
            _forget(result)

    def counts(self, indices: torch.Tensor, num_bins: int) -> torch.Tensor | None:
        """How often each expert is chosen, ``None`` where the indices are not known to be choices among experts."""
        if getattr(indices, CHOICES, None) is None or num_bins < 1:
            return None
        return self._shares(indices.numel(), num_bins)

    def _shares(self, total: int, num_experts: int) -> torch.Tensor:
        """What each expert receives of ``total`` tokens."""
        self._tell()
        busiest = [min(total, round(total / num_experts * self._imbalance))] if self._imbalance > 1 and num_experts > 1 else []
        rest, num_others = total - sum(busiest), num_experts - len(busiest)
        bounds = [rest * number // num_others for number in range(num_others + 1)]
        return torch.tensor(busiest + [after - before for before, after in pairwise(bounds)], dtype=torch.int64, device="cpu")

    def _share_of(self, expert: int, num_experts: int) -> float:
        busiest = min(1.0, self._imbalance / num_experts)
        return busiest if expert == 0 else (1 - busiest) / max(1, num_experts - 1)

    def _count(self, args: Any, result: Any) -> None:
        """Bins that are 1 wide count whole numbers: choices, also where a compiled kernel has made them numbers of another type."""
        counts = self.counts(args[0], result.numel())
        if counts is None and len(args) > 3 and args[3] - args[2] == args[1] > 0:
            counts = self._shares(args[0].numel(), args[1])
        if counts is not None:
            keep_host_data(result, counts)

    def _add_up(self, args: Any, result: Any) -> None:
        """A mask, summed: how many of each column are set, at most all of them."""
        num_set = expected_count(args[0])
        if num_set is not None and result.numel():
            keep_host_data(result, self._shares(num_set, result.numel()).view(result.shape))
        elif args[0].dtype is torch.bool and result.numel():
            setattr(result, LARGEST, args[0].numel() // result.numel())

    def _compare(self, args: Any, result: Any) -> None:
        choices = getattr(args[0], CHOICES, None)
        if choices:
            is_known = len(args) > 1 and isinstance(args[1], int)
            setattr(result, SHARE, self._share_of(args[1], choices) if is_known else 1 / choices)

    def _compare_with_each(self, args: Any, result: Any) -> None:
        for side, other in (args[:2], args[1::-1]):
            self._compare((side,), result)
            choices, data = getattr(side, CHOICES, None), host_data_of(other)
            if choices is not None and data is not None and data.numel() == choices == len(data.unique()):
                setattr(result, EXPERTS, choices)  # with each of them

    def _select(self, args: Any, result: Any) -> None:
        """One expert's part of a mask that has one for each."""
        _pass_on(args, result)
        mask, dim, expert = args
        num_experts, share = getattr(mask, EXPERTS, None), getattr(mask, SHARE, None)
        if share is not None and num_experts is not None and mask.shape[dim] == num_experts:
            setattr(result, SHARE, min(1.0, share * num_experts * self._share_of(expert, num_experts)))
            delattr(result, EXPERTS)

    def _select_each(self, args: Any, result: Any) -> None:
        for number, part in enumerate(result):
            self._select((args[0], args[1] if len(args) > 1 else 0, number), part)


def gather(gathered: Any, tensor: Any) -> None:
    """Ranks put together, into a list of tensors or one of them all, what each of them has chosen."""
    for part in gathered if isinstance(gathered, list) else [gathered]:
        _pass_on((tensor,), part)


def why_so_many(mask: torch.Tensor, otherwise: str) -> str:
    """Why so much of a mask is taken to be set."""
    return str(getattr(getattr(mask, SHARE, None), "why", otherwise))


def expected_count(mask: torch.Tensor) -> int | None:
    """How many elements of a mask are set, ``None`` where nothing is known of it."""
    share = getattr(mask, SHARE, None)
    return None if share is None else max(1, round(mask.numel() * share))


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
    """Numbers that start again after a fixed count: experts that take turns."""
    divisor = args[1]
    if not result.is_floating_point() and isinstance(divisor, int) and divisor > 1:
        setattr(result, CHOICES, divisor)


def _scatter(args: Any, result: Any) -> None:
    target, dim, index = args[:3]
    if target.numel():
        setattr(result, SHARE, min(1.0, index.numel() / target.numel()))
    if getattr(index, CHOICES, None) == target.shape[dim]:
        setattr(result, EXPERTS, target.shape[dim])


_PASSED = (CHOICES, SHARE, EXPERTS, LARGEST, ADDS_UP)


def _forget(changed: torch.Tensor) -> None:
    """Something was written to it."""
    for name in _PASSED:
        changed.__dict__.pop(name, None)


def _pass_on(args: Any, result: Any) -> None:
    for name in _PASSED:
        known = getattr(args[0], name, None)
        if known is not None:
            setattr(result, name, known)


def _cut(args: Any, result: Any) -> None:
    """A part of a mask that leaves out less than one set element on average has all of them."""
    _pass_on(args, result)
    whole, share = args[0].numel(), getattr(args[0], SHARE, None)
    if share is not None and 0 < result.numel() < whole and (whole - result.numel()) * share < 1:
        setattr(result, SHARE, MaskShare.because(min(1.0, share * whole / result.numel()), getattr(share, "why", "an even share")))


def _pass_on_to_parts(args: Any, result: Any) -> None:
    for part in result:
        _pass_on(args, part)


def _join(args: Any, result: Any) -> None:
    """What is the same of all parts is true of the whole; where parts are set to different shares, the whole is to their mean."""
    parts = [part for part in args[0] if part.numel()]
    for name in (CHOICES, SHARE):
        known = [getattr(part, name, None) for part in parts]
        if not known or None in known:
            continue
        if len(set(known)) == 1:
            setattr(result, name, known[0])
        elif name == SHARE:
            mean = sum(share * part.numel() for share, part in zip(known, parts, strict=True)) / sum(part.numel() for part in parts)
            setattr(result, SHARE, MaskShare.because(mean, getattr(known[0], "why", "an even share")))


def _put(args: Any, result: Any) -> None:
    """A number written to some places of a mask of zeros."""
    target, indices, values = args[:3]
    is_mark = len(indices) == 1 and indices[0] is not None and values.numel() == 1
    _mark(target, 0, indices[0] if is_mark else None, result)


def _fill(args: Any, result: Any) -> None:
    """The same, in the words of torch 2.15 for a number that is not a tensor."""
    target, dim, indices = args[:3]
    _mark(target, dim, indices, result)


def _mark(target: Any, dim: int, indices: Any, result: Any) -> None:
    """``indices`` is ``None`` where it is not known how much of the mask is set."""
    share = getattr(target, SHARE, 0.0 if getattr(target, CONSTANT, None) == 0 else None)
    _forget(result)
    is_mark = indices is not None and indices.dtype is torch.int64 and not target.is_floating_point() and target.numel()
    if share is not None and is_mark:
        share = min(1.0, share + indices.numel() / target.shape[dim])
        setattr(result, SHARE, MaskShare.because(share, "as many as were marked"))


def _unite(args: Any, result: Any) -> None:
    """Two masks that have nothing in common, as those of two kinds that are sampled."""
    one, other = (getattr(side, SHARE, None) for side in args[:2])
    if one is not None and other is not None:
        setattr(result, SHARE, MaskShare.because(min(1.0, one + other), "as many as were marked"))


def _pick(args: Any, result: Any) -> None:
    """By indices; where those are not known, each result is still one of the known numbers."""
    _pass_on(args, result)
    data = host_data_of(args[0])
    if data is None or data.dtype.is_floating_point or not 0 < data.numel() <= MOST_COUNTED or not result.numel():
        return
    if all(host_data_of(index) is not None for index in tree_leaves(args[1:]) if isinstance(index, FakeTensor)):
        return  # what is picked is known
    numbers = data.unique()
    setattr(result, CHOICES, len(numbers))
    setattr(result, LARGEST, int(numbers.max()))


def _make_whole(args: Any, result: Any) -> None:
    setattr(result, IS_WHOLE, True)


def _clamp(args: Any, result: Any) -> None:
    """Whole numbers between two others."""
    bounds = args[1:3]
    if len(bounds) == 2 and all(isinstance(bound, (int, float)) and bound == int(bound) for bound in bounds):
        is_whole = not result.is_floating_point() or getattr(args[0], IS_WHOLE, False)
        if is_whole and bounds[1] > bounds[0]:
            setattr(result, CHOICES, int(bounds[1] - bounds[0]) + 1)


def _shift(args: Any, result: Any) -> None:
    """A number added to all of them changes what they are, not how many."""
    choices, largest = getattr(args[0], CHOICES, None), getattr(args[0], LARGEST, None)
    if isinstance(args[1], int) and choices is not None:
        setattr(result, CHOICES, choices)
    if isinstance(args[1], int) and largest is not None and result.dtype is args[0].dtype:
        setattr(result, LARGEST, largest + args[1])


def _share_one(args: Any, result: Any) -> None:
    setattr(result, ADDS_UP, result.shape[args[1]] if result.dim() else 1)


def _exceed(args: Any, result: Any) -> None:
    """Of shares of one whole only so many can be larger than a number."""
    num_shares, bound = getattr(args[0], ADDS_UP, None), args[1]
    if num_shares is None or not isinstance(bound, float) or not 0 < bound < 1:
        _pass_on(args, result)
        return
    most = max(1, int(1 / bound))
    if most < num_shares:
        setattr(
            result, SHARE, MaskShare.because(most / num_shares, f"as {most} of {num_shares} shares of 1 can be above {bound:g}")
        )


_PASSING = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.unsqueeze.default,
    aten.expand.default,
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,  # a slice that leaves nothing out
    aten._to_copy.default,
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
        aten.index.Tensor: _pick,
        aten.slice.Tensor: _cut,
        aten.cat.default: _join,
        aten.split.Tensor: _pass_on_to_parts,
        aten.split_with_sizes.default: _pass_on_to_parts,
        aten.index_put_.default: _put,
        aten.index_fill_.int_Scalar: _fill,
        aten.bitwise_or.Tensor: _unite,
        aten.logical_or.default: _unite,
        aten.floor.default: _make_whole,
        aten.ceil.default: _make_whole,
        aten.round.default: _make_whole,
        aten.trunc.default: _make_whole,
        aten.clamp.default: _clamp,
        aten.add.Tensor: _shift,
        aten.sub.Tensor: _shift,
        aten._softmax.default: _share_one,
        aten.gt.Scalar: _exceed,
        aten.scatter.value: _scatter,
        aten.scatter_.value: _scatter,
        aten.arange.default: keep_range,
        aten.arange.start: keep_range,
        aten.arange.start_step: keep_range,
    }
)
