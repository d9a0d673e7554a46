"""Values that only data can tell: known where possible, otherwise assumed and named.

A tensor without data still has to answer ``.item()``, ``if tensor:`` and ``nonzero``. What is sensible depends on where it came
from: a check for infinities finds none, a tensor filled with a constant holds that constant, a mask selects everything unless its
making says how much (``routing.py``) or the user does (``assumptions.py``).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import numpy as np
import torch

from memfit.phantom.tensors.tensor_annotations import CHOICES, CONSTANT
from memfit.phantom.values.assertions import asserted
from memfit.phantom.values.assumptions import Assumptions, Expected
from memfit.phantom.values.constants import Likely, note_constant
from memfit.phantom.values.host_data import count_set, follow, host_data_of, keep_copied, keep_host_data
from memfit.phantom.values.routing import Routing, expected_count, why_so_many
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches
from memfit.units import MIB, format_bytes

aten = torch.ops.aten

LARGE_BYTES: Final = 64 * MIB
"""Host tensors above this are not filled with what is assumed of their elements."""


class Values:
    """Answers for operators whose result depends on data."""

    def __init__(self, assumptions: Assumptions, expected: Expected) -> None:
        self.assumptions = assumptions
        self._expected = expected
        self._imbalance = float(expected.by_name.get("imbalance", 1))
        self._routing = Routing(self._imbalance, self._tell_shares)

    def answers(self) -> dict[Any, Callable[..., Any]]:
        return {
            aten._local_scalar_dense.default: self.scalar,
            aten.equal.default: self._equal,
            aten.allclose.default: lambda a, b, *args: self._assume(True, "two tensors compared as a whole", "close"),
            aten.nonzero.default: self._nonzero,
            aten.argwhere.default: self._nonzero,
            aten._to_sparse.default: self._to_sparse,
            aten._to_sparse.sparse_dim: lambda x, dims: self._to_sparse(x) if dims == x.dim() else NotImplemented,
            aten.masked_select.default: self._masked_select,
            aten.index.Tensor: self._index,
            aten._unique.default: lambda x, *args, **kwargs: self._unique(x)[:2],
            aten._unique2.default: self._unique,
            aten.unique_consecutive.default: self._unique_consecutive,
            aten.unique_dim.default: self._unique_dim,
            aten.unique_dim_consecutive.default: self._unique_dim,
            aten.bincount.default: self._bincount,
            aten.repeat_interleave.Tensor: self._repeat_interleave,
            aten.copy_.default: self._copy_to_host,
            torch.ops._c10d_functional.all_to_all_single.default: self._exchange,
        }

    def note(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Keeps what is known of a result."""
        self._routing.note(func, args, result)
        note_constant(func, args, result)
        follow(func, args, kwargs, result)

    def to_host(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A real host tensor with the data, if they are known, or else what is assumed of every element.

        A large one of which nothing is known is zeros, which take no memory of this machine until they are written to.
        """
        data = host_data_of(x)
        if data is not None:
            return data.to(dtype, copy=True)
        size_bytes = x.numel() * dtype.itemsize
        is_unknown = getattr(x, CONSTANT, None) is None and self._expected.value("number", _caller()) is None
        if size_bytes > LARGE_BYTES and is_unknown:
            self._assume(0, f"{format_bytes(size_bytes)} of data copied to the host", "zeros")
            return torch.from_numpy(np.zeros(size_bytes, np.uint8)).view(dtype).view(x.shape)
        return self.on_host(x).to(dtype).clone()

    def on_host(self, x: torch.Tensor) -> torch.Tensor:
        """The same to be read only: it takes the memory of one element, however large it is."""
        data = host_data_of(x)
        if data is not None:
            return data
        return torch.tensor(self._copied(x), dtype=x.dtype, device="cpu").expand(x.shape)

    def scalar(self, x: torch.Tensor, what: str = "read from the GPU") -> Any:
        """What ``x.item()`` says."""
        data, known = host_data_of(x), getattr(x, CONSTANT, None)
        if data is not None:
            return data.item()
        if known is not None and not isinstance(known, Likely):
            return torch.tensor(known, dtype=x.dtype, device="cpu").item()
        kind = str(x.dtype).removeprefix("torch.")
        expected = self._expected.value("number", _caller())
        if expected is not None:
            value: Any = torch.tensor(expected, device="cpu").to(x.dtype).item()
            return self._assume(value, f"a {kind} {what}", f"{value}, as expected")
        passing = asserted(_asking_frame()) if x.dtype == torch.bool else None
        if passing is not None and (known is None or bool(known) != passing):
            return self._assume(passing, "what is asserted of data on the GPU", "true")
        if known is not None:
            value = torch.tensor(float(known), dtype=x.dtype, device="cpu").item()
            return self._assume(value, f"a {kind} {what}", f"{value}, as of a batch without padding and without errors")
        value = False if x.dtype == torch.bool else 1.0 if x.dtype.is_floating_point else 1 + 0j if x.dtype.is_complex else 1
        return self._assume(value, f"a {kind} {what}", str(value))

    def _copied(self, x: torch.Tensor) -> Any:
        """What torch itself copies to the host (to save it, to offload it) is not read by the script, so it is no assumption."""
        return 1 if _torch_asks() and getattr(x, CONSTANT, None) is None else self.scalar(x, "copied to the host")

    def _assume(self, value: Any, what: str, as_what: str) -> Any:
        self.assumptions.add(f"{_caller()}: {what} was taken to be {as_what}")
        return value

    def count(self, kind: str, what: str, largest: int) -> int:
        """How many elements there are, at most ``largest``, where only data could tell."""
        return self._size(kind, what, largest)

    def _size(self, kind: str, what: str, largest: int, likely: int | None = None, why: str = "an even share") -> int:
        """How many elements there are, at most ``largest``: what the user expects, what is likely, or all of them."""
        expected = self._expected.count(kind, _caller(), largest)
        if expected is not None:
            return int(self._assume(expected, what, f"{expected:,} of {largest:,} elements, as expected"))
        if likely is not None:
            return int(self._assume(likely, what, f"{likely:,} of {largest:,} elements, {why}"))
        return int(self._assume(largest, what, f"all {largest:,} elements"))

    @property
    def _how_shared(self) -> str:
        return "an even share" if self._expected.imbalance == 1 else f"the busiest expert having {self._imbalance:g} times the mean"

    def _tell_shares(self) -> None:
        self._assume(None, "how many tokens each expert receives", self._how_shared)

    def _set_in(self, mask: torch.Tensor, kind: str, what: str) -> int:
        data, known = host_data_of(mask), getattr(mask, CONSTANT, None)
        if data is not None:
            return count_set(data)
        if isinstance(known, bool):
            return mask.numel() if known else 0
        return self._size(kind, what, mask.numel(), expected_count(mask), why_so_many(mask, self._how_shared))

    # -- operators -----------------------------------------------------------------------------------------------------------

    def _equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        left, right = _data_of(one), _data_of(other)
        if left is not None and right is not None:
            return torch.equal(left, right)
        if one.dtype == torch.bool == other.dtype and one.dim() == other.dim() == 0:  # as torch itself asks in istft's check
            return bool(self.scalar(one) == self.scalar(other))
        return one.shape == other.shape and bool(self._assume(True, "two tensors compared as a whole", "equal"))

    def _nonzero(self, x: torch.Tensor) -> torch.Tensor:
        count = self._set_in(x, "nonzero", "nonzero's result")
        return x.new_empty((x.dim(), count), dtype=torch.int64).t()

    def _to_sparse(self, x: torch.Tensor, *, layout: Any = None, blocksize: Any = None, dense_dim: int | None = None) -> Any:
        if layout not in (None, torch.sparse_coo) or blocksize or dense_dim:
            return NotImplemented
        count = self._set_in(x, "nonzero", "the number of elements of a sparse tensor")
        indices = x.new_empty((x.dim(), count), dtype=torch.int64)
        return torch.sparse_coo_tensor(indices, x.new_empty((count,)), x.shape, is_coalesced=True)

    def _masked_select(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shape = torch.broadcast_shapes(x.shape, mask.shape)
        count = self._set_in(mask, "mask", "what a mask selects")
        return x.new_empty((count * math.prod(shape) // max(mask.numel(), 1),))

    def _index(self, x: torch.Tensor, indices: Any) -> Any:
        if not any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
            return NotImplemented
        plain: list[Any] = []
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                count = self._set_in(index, "mask", "what a mask selects")
                plain += [index.new_empty((count,), dtype=torch.int64)] * index.dim()
            else:
                plain.append(index)
        return aten.index.Tensor(x, plain)

    def _unique(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        data = host_data_of(x)
        count = len(data.unique()) if data is not None else self._num_different(x)
        return x.new_empty((count,)), x.new_empty(x.shape, dtype=torch.int64), x.new_empty((count,), dtype=torch.int64)

    def _num_different(self, x: torch.Tensor) -> int:
        choices = getattr(x, CHOICES, None)
        likely = None if choices is None else min(choices, x.numel())
        return self._size("unique", "the number of unique elements", x.numel(), likely, "as many as there are to choose from")

    def _unique_consecutive(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        data = host_data_of(x)
        if data is None or x.dim() > 1:
            return self._unique(x)
        count = len(data.unique_consecutive())
        return x.new_empty((count,)), x.new_empty(x.shape, dtype=torch.int64), x.new_empty((count,), dtype=torch.int64)

    def _unique_dim(self, x: torch.Tensor, dim: int, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        data, length = host_data_of(x), x.shape[dim]
        count = data.unique(dim=dim).shape[dim] if data is not None else self._size("unique", "the number of unique slices", length)
        shape = [*x.shape]
        shape[dim] = count
        return x.new_empty(shape), x.new_empty((length,), dtype=torch.int64), x.new_empty((count,), dtype=torch.int64)

    def _bincount(self, x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
        data, expected = host_data_of(x), self._expected.value("bins", _caller())
        dtype = torch.int64 if weights is None else torch.float64
        if data is not None:
            return x.new_empty((max(minlength, int(data.max()) + 1 if data.numel() else 0),), dtype=dtype)
        likely = getattr(x, CHOICES, None) or 1
        length = max(minlength, likely) if expected is None else max(minlength, round(expected))
        self._assume(length, "the number of bins of bincount", f"{length:,}")
        counted = x.new_empty((length,), dtype=dtype)
        counts = self._routing.counts(x, length) if weights is None else None
        if counts is not None:
            keep_host_data(counted, counts)
        return counted

    def _exchange(self, x: torch.Tensor, output_splits: Any, input_splits: Any, group: Any) -> Any:
        data = host_data_of(x)
        if data is None or x.dim() == 0 or sum(output_splits) != x.shape[0]:
            return NotImplemented
        received = x.new_empty(x.shape)
        self.exchange(received, x)
        return received

    def exchange(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        """How many tokens a rank sends to each expert, told to the others: they send as many as this one does, or as expected."""
        data = host_data_of(sent)
        if data is None or type(received) is not FakeTensor or received.shape != sent.shape:
            return
        times = self._expected.value("experts", _caller())
        how = "an even share" if times is None else "as expected"
        if times is None and self._expected.imbalance > 1:
            times, how = self._imbalance, f"{self._imbalance:g} times an even share"
        if times is not None:
            data = (data * times).round().to(data.dtype)
        total = int(data.sum())
        self._assume(total, "what the experts of this rank receive", f"{total:,} tokens, {how}")
        keep_host_data(received, data)

    def _repeat_interleave(self, repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
        data = host_data_of(repeats)
        if output_size is None and data is not None:
            output_size = int(data.sum())
        if output_size is None:
            known, expected = getattr(repeats, CONSTANT, None), self._expected.value("repeats", _caller())
            each = known if known is not None else 1
            output_size = int(repeats.numel() * each if expected is None else expected)
            self._assume(output_size, "the sum of repeats", f"{output_size:,}")
        return repeats.new_empty((output_size,), dtype=torch.int64)

    def _copy_to_host(self, to: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(to) is FakeTensor:
            keep_copied(to, source)
            return NotImplemented
        if type(source) is not FakeTensor:
            return NotImplemented
        data = host_data_of(source)
        return to.copy_(data) if data is not None else to.fill_(self._copied(source))


def install(patches: Patches, values: Values) -> None:
    """Reading a whole tensor back gives what is assumed, in the right shape."""

    def tolist(x: torch.Tensor) -> Any:
        return values.to_host(x, x.dtype).tolist()

    def numpy(x: torch.Tensor, *, force: bool = False) -> Any:
        if x.is_cuda and not force:
            raise TypeError(f"a tensor on {x.device} cannot become a numpy array: copy it to the host first, with .cpu()")
        return values.to_host(x, x.dtype).numpy(force=force)

    def array(x: torch.Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
        return numpy(x) if dtype is None else numpy(x).astype(dtype)

    def format_(x: torch.Tensor, spec: str) -> str:
        return format(x.item(), spec) if x.dim() == 0 and spec else repr(x)

    # torch.tensor([scalar, ...]) reads each scalar in C++, past every mode.
    patches.implement("PrivateUse1", "_local_scalar_dense", values.scalar)
    patches.replace(FakeTensor, "tolist", tolist)
    patches.replace(FakeTensor, "numpy", numpy)
    patches.replace(FakeTensor, "__array__", array)
    patches.replace(FakeTensor, "__format__", format_)


def _data_of(x: torch.Tensor) -> torch.Tensor | None:
    return host_data_of(x) if isinstance(x, FakeTensor) else x


def _torch_asks() -> bool:
    """Is the nearest frame outside memfit one of torch?"""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("memfit."):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("torch.")


def _caller() -> str:
    """The line outside torch and memfit that asked: ``train.py:31``."""
    frame = _asking_frame()
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _asking_frame() -> FrameType:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("torch", "memfit"):
            break
        frame = frame.f_back
    return frame
