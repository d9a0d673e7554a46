"""Sparse tensors without data: a fake tensor of indices and one of values.

::

    embedding(sparse=True)     a gradient with a row for every token
    coalesce                   all rows differ, as far as anybody knows
    sparse_mask, *, +, ...     what holds of the values holds of the result
    to_dense, dense + sparse   a dense tensor

Torch knows shapes of dense tensors; of sparse ones it knows how they are made, forgets their elements when they are copied, and has
no answer for the rest. What is not in this file is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.fake_tensors import FakeTensor

aten = torch.ops.aten

COO = torch.sparse_coo

SPARSE_FACTORIES = frozenset(
    (
        aten._sparse_coo_tensor_with_dims.default,
        aten._sparse_coo_tensor_with_dims_and_tensors.default,
        aten._sparse_coo_tensor_unsafe.default,
        aten.empty.memory_format,
        aten.zeros.default,
    )
)
"""They say themselves how many elements there are."""


class SparseAnswers:
    """What operators return of which an argument is a sparse tensor without data."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._answers: dict[Any, Callable[..., Any]] = {
            aten.clone.default: lambda x, **kwargs: _like(x, x._indices().clone(), x._values().clone()),
            aten.detach.default: lambda x: _like(x, x._indices(), x._values()),
            aten.alias.default: lambda x: _like(x, x._indices(), x._values()),
            aten.t.default: lambda x: _transposed(x, 0, 1),
            aten.transpose.int: _transposed,
            aten._coalesce.default: self._coalesce,
            aten._to_copy.default: _to_copy,
            aten.sparse_mask.default: lambda x, mask: _like(mask, mask._indices().clone(), _values_of(x, mask)),
            aten.zeros_like.default: lambda x, **kwargs: _like(x, x._indices()[:, :0].clone(), x._values()[:0].clone()),
            aten.mul.Tensor: _product,
            aten.mul_.Tensor: _in_place,
            aten.mul_.Scalar: _in_place,
            aten.div_.Tensor: _in_place,
            aten.div_.Scalar: _in_place,
            aten.div.Tensor: _of_values,
            aten.div.Scalar: _of_values,
            aten.mul.Scalar: _of_values,
            aten.neg.default: _of_values,
            aten.sqrt.default: _of_values,
            aten.pow.Tensor_Scalar: _of_values,
            aten.add.Tensor: _sum,
            aten.sub.Tensor: _sum,
            aten.add_.Tensor: _sum_in_place,
            aten.sub_.Tensor: _sum_in_place,
            aten.sum.default: lambda x, **kwargs: x._values().sum(),
            aten.mm.default: lambda a, b: _matrix_product(a, b),
            aten._sparse_addmm.default: lambda into, a, b, **kwargs: _matrix_product(a, b),
            aten.addmm.default: lambda into, a, b, **kwargs: _matrix_product(a, b),
            aten._sparse_mm.default: lambda a, b: _matrix_product(a, b),
            aten._sparse_sum.default: lambda x: x._values().sum(),
        }

    def answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result, or ``NotImplemented`` where torch's own answer is right."""
        known = self._answers.get(func)
        return NotImplemented if known is None else known(*args, **kwargs)

    def _coalesce(self, x: torch.Tensor) -> torch.Tensor:
        self._assumptions.add("the elements of sparse tensors were taken to be all different: none are added up")
        return _like(x, x._indices().clone(), x._values().clone(), is_coalesced=True)


def is_sparse(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.layout is COO


def make_coo(indices: torch.Tensor, values: torch.Tensor, shape: Sequence[int], is_coalesced: bool) -> torch.Tensor:
    made: torch.Tensor = aten._sparse_coo_tensor_with_dims_and_tensors(
        indices.shape[0],
        values.dim() - 1,
        list(shape),
        indices,
        values,
        dtype=values.dtype,
        layout=COO,
        device=values.device,
        is_coalesced=is_coalesced,
    )
    return made


def _like(x: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, is_coalesced: bool | None = None) -> torch.Tensor:
    return make_coo(indices, values, x.shape, x.is_coalesced() if is_coalesced is None else is_coalesced)


def _transposed(x: torch.Tensor, one: int, other: int) -> Any:
    if not is_sparse(x) or max(one % x.dim(), other % x.dim()) >= x.sparse_dim():
        return NotImplemented
    shape = list(x.shape)
    shape[one], shape[other] = shape[other], shape[one]
    return make_coo(x._indices().clone(), x._values(), shape, is_coalesced=False)


def _values_of(dense: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    values = mask._values()
    return values.new_empty(values.shape, dtype=dense.dtype)


def _to_copy(x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    kept = {name: value for name, value in kwargs.items() if name in ("dtype", "device")}
    device = {name: value for name, value in kept.items() if name == "device"}
    return _like(x, aten._to_copy(x._indices(), **device), aten._to_copy(x._values(), **kept))


def _of_values(x: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_sparse(x):
        return NotImplemented
    values = x._values()
    return _like(x, x._indices().clone(), values.new_empty(values.shape))


def _product(one: Any, other: Any) -> Any:
    """With a number, or element by element with a dense tensor: as many elements as there were."""
    return _of_values(one if is_sparse(one) else other)


def _in_place(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return x


def _sum(one: Any, other: Any, **kwargs: Any) -> Any:
    if not (is_sparse(one) and is_sparse(other)):
        dense = other if is_sparse(one) else one
        return dense.new_empty(dense.shape)
    return _like(
        one, torch.cat((one._indices(), other._indices()), 1), torch.cat((one._values(), other._values())), is_coalesced=False
    )


def _sum_in_place(one: torch.Tensor, other: Any, **kwargs: Any) -> Any:
    return one if not is_sparse(one) else NotImplemented


def _matrix_product(one: torch.Tensor, other: torch.Tensor) -> Any:
    if is_sparse(one) and not is_sparse(other):
        return other.new_empty((one.shape[0], other.shape[1]))
    return NotImplemented
