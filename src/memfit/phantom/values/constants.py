"""Tensors without data of which a value is known all the same: all their elements are this.

::

    zeros, full, fill_            the constant
    isnan(x), x == inf, x != x    no tensor here holds a nan or an infinity
    cholesky_ex, lu_factor_ex     no factorization fails
    all, any, sum of a mask       a mask of which nothing is known hides nothing; nothing is amiss
    and, or, not, clone, view     what follows from their operands
    add_, copy_, ...              what was known is known no longer

A truth value (``True``) is certain, as far as anything is here; a number (``1.0``) may be true of a part no longer. ``Likely``
numbers are assumed: a normal run would have them, and reading one is an assumption.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from memfit.phantom.tensors.tensor_annotations import CONSTANT, HOST_DATA, LARGEST, SHARE
from memfit.torch_compat.fake_tensors import FakeTensor

aten = torch.ops.aten


class Likely(float):
    """What a normal run would have: a batch without padding, a check that finds nothing."""


def note_constant(func: Any, args: Any, result: Any) -> None:
    """Keeps what an operator says about its result, if it says anything."""
    if type(result) is not FakeTensor:
        if getattr(func, "overloadpacket", None) in _FACTORIZATIONS and type(result[-1]) is FakeTensor:
            setattr(result[-1], CONSTANT, Likely(0))
        return
    noter = _NOTERS.get(func)
    if noter is not None:
        setattr(result, CONSTANT, noter(args))
    elif not args or result is not args[0]:
        return
    else:
        setattr(result, CONSTANT, None)
    if args and result is args[0] and result._base is not None:
        setattr(result._base, CONSTANT, None)  # a part of it has changed
        if result.__dict__.get(HOST_DATA) is None:
            setattr(result._base, HOST_DATA, None)


def known(value: Any) -> Any:
    """The number that an operand stands for, ``None`` if only data can tell."""
    return getattr(value, CONSTANT, None) if isinstance(value, torch.Tensor) else value


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda args: value


def _argument(index: int) -> Callable[[Any], Any]:
    return lambda args: known(args[index])


def _filled_with(args: Any) -> Any:
    """A number, also for a mask: of a mask that was filled, a part may be written later; only checks make truth values."""
    value = known(args[1])
    return float(value) if isinstance(value, bool) else value


def _largest(args: Any) -> Any:
    """Where nothing else is known, what no element is larger than."""
    value, bound = known(args[0]), getattr(args[0], LARGEST, None)
    return Likely(bound) if value is None and bound is not None else value


def _any(args: Any) -> Any:
    """Checks find nothing; numbers that nothing is known of are not all zero."""
    value = known(args[0])
    return Likely(args[0].dtype is not torch.bool) if value is None else value


def _first_or(likely: bool) -> Callable[[Any], Any]:
    """For ``all``: what is known of the elements, or else what a check hopes for."""

    def note(args: Any) -> Any:
        value = known(args[0])
        return Likely(likely) if value is None else value

    return note


def _as_likely(value: Any, *operands: Any) -> Any:
    """A result is only likely where an operand is."""
    return Likely(value) if any(isinstance(operand, Likely) for operand in operands) else value


def _compare(compare: Callable[[Any, Any], bool]) -> Callable[[Any], Any]:
    def note(args: Any) -> Any:
        left, right = args[0], args[1]
        if left is right:
            return compare(1, 1)
        left, right = known(left), known(right)
        if _is_extreme(right) and left is None:
            left = 1.0
        return None if left is None or right is None else _as_likely(compare(left, right), left, right)

    return note


def _is_extreme(value: Any) -> bool:
    """An infinity or a nan: what is compared with it is an ordinary number."""
    return isinstance(value, float) and not math.isfinite(value)


def _combine(combine: Callable[[Any, Any], Any], decisive: bool) -> Callable[[Any], Any]:
    """For ``and`` and ``or``: one operand that is ``decisive`` decides, whatever the other is."""

    def note(args: Any) -> Any:
        left, right = known(args[0]), known(args[1])
        if left is None or right is None:
            value = left if right is None else right
            is_certain = value is not None and not isinstance(value, Likely) and bool(value) is decisive
            return float(value) if is_certain and args[0].dtype is torch.bool else None
        value = combine(bool(left), bool(right))
        return value if isinstance(left, bool) and isinstance(right, bool) else _as_likely(float(value), left, right)

    return note


def _product(args: Any) -> Any:
    """Of truth values only, as ``isfinite`` has it; numbers change too easily for a guess to be worth keeping."""
    left, right = known(args[0]), known(args[1])
    return left and right if isinstance(left, bool) and isinstance(right, bool) else None


def _sum(args: Any) -> Any:
    """A mask of ones hides nothing, which is what counting them is for."""
    value = known(args[0])
    if value is None:
        share = getattr(args[0], SHARE, 1.0)
        return Likely(round(share * args[0].numel())) if args[0].dtype is torch.bool else None
    return _as_likely(float(value) * args[0].numel(), value)


def _add(args: Any) -> Any:
    """A count to which nothing is added stays what it was: so checks for infinities are counted. Other sums are not followed,
    but for a whole number added to what is likely: the largest index and 1."""
    left, right = known(args[0]), known(args[1])
    if isinstance(left, Likely) and isinstance(right, int):
        return Likely(left + right)
    return left if right is not None and not right else None


def _negate(args: Any) -> Any:
    value = known(args[0])
    return None if value is None else not value if isinstance(value, bool) else _as_likely(float(not value), value)


_FACTORIZATIONS = (
    aten.linalg_cholesky_ex,
    aten.linalg_inv_ex,
    aten.linalg_ldl_factor_ex,
    aten.linalg_lu_factor_ex,
    aten._linalg_solve_ex,
)
"""Their last result says where they failed: they do not."""

_COMPARISONS = {
    aten.eq: operator.eq,
    aten.ne: operator.ne,
    aten.lt: operator.lt,
    aten.le: operator.le,
    aten.gt: operator.gt,
    aten.ge: operator.ge,
}
_PASSING = (
    aten.amin.default,
    aten.min.default,
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.unsqueeze.default,
    aten.expand.default,
    aten.view.default,
    aten._to_copy.default,
)

_NOTERS: dict[Any, Callable[[Any], Any]] = (
    dict.fromkeys(_PASSING, _argument(0))
    | {packet.Scalar: _compare(compare) for packet, compare in _COMPARISONS.items()}
    | {packet.Tensor: _compare(compare) for packet, compare in _COMPARISONS.items()}
    | {
        aten.amax.default: _largest,
        aten.max.default: _largest,
        aten.sum.default: _sum,
        aten.isnan.default: _always(False),
        aten.isinf.default: _always(False),
        aten.isfinite.default: _always(True),
        aten.zeros.default: _always(0.0),
        aten.zeros_like.default: _always(0.0),
        aten.zero_.default: _always(0.0),
        aten.new_zeros.default: _always(0.0),
        aten.ones.default: _always(1.0),
        aten.ones_like.default: _always(1.0),
        aten.new_ones.default: _always(1.0),
        aten.scalar_tensor.default: _argument(0),
        aten.full.default: _filled_with,
        aten.full_like.default: _filled_with,
        aten.fill_.Scalar: _filled_with,
        aten.copy_.default: _argument(1),
        aten._amp_update_scale_.default: _argument(0),  # nothing is ever infinite, and a prediction is short
        aten.all.default: _first_or(True),
        aten.all.dim: _first_or(True),
        aten.any.default: _any,
        aten.any.dim: _any,
        aten._is_all_true.default: _first_or(True),
        aten._is_any_true.default: _any,
        aten.mul.Tensor: _product,
        aten.add.Tensor: _add,
        aten.add_.Tensor: _add,
        aten.bitwise_and.Tensor: _combine(operator.and_, False),
        aten.bitwise_and.Scalar: _combine(operator.and_, False),
        aten.bitwise_or.Tensor: _combine(operator.or_, True),
        aten.bitwise_or.Scalar: _combine(operator.or_, True),
        aten.logical_and.default: _combine(operator.and_, False),
        aten.logical_or.default: _combine(operator.or_, True),
        aten.logical_or_.default: _combine(operator.or_, True),
        aten.bitwise_not.default: _negate,
        aten.logical_not.default: _negate,
    }
)
