"""Operators of which fake tensors cannot tell what they return: two more ways to learn it, before one is refused.

::

    new_dynamic_size() in a register_fake    the size is what the user expects of the operator, or as large as its first argument
    no register_fake, but a kernel for the   it is run there, on numbers that are made up: what it returns has these shapes on the
    host                                     GPU, too. What it takes meanwhile is not known
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from memfit.errors import NeedsGpuError
from memfit.phantom.tensors.tensor_annotations import forget_data
from memfit.phantom.values.answers import Values
from memfit.phantom.values.host_data import host_data_of
from memfit.torch_compat.dispatch import has_kernel, tree_leaves, tree_map, tree_map_only
from memfit.torch_compat.fake_tensors import FakeTensor, dynamic_sizes, is_unknown_shape, outside_modes
from memfit.units import MIB

MOST_BYTES: Final = 256 * MIB
"""Arguments that are made up on the host take no more than this together."""

_HOST_KEYS: Final = ("CPU", "CompositeExplicitAutograd")


class UnknownOperators:
    """The other ways, in the order in which they are tried."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def answer(self, dispatch: Callable[[], Any], mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What the operator returns; ``dispatch`` asks fake tensors again. Raises ``NeedsGpuError`` where nobody can tell."""
        try:
            with dynamic_sizes(lambda least, most: self._size(func, args, least, most)):
                return dispatch()
        except RuntimeError as error:
            if not is_unknown_shape(error):
                raise
        if _runs_on_host(func) and _size_of((args, kwargs)) <= MOST_BYTES:
            return self._as_on_the_host(mode, func, args, kwargs)
        raise unknown_operator(func)

    def _size(self, func: Any, args: Any, least: int, most: int | None) -> int:
        sizes = [max(value.shape, default=1) for value in tree_leaves(args) if isinstance(value, torch.Tensor)]
        largest = max(least, min(sizes[0] if sizes else 1, most if most is not None else 2**62))
        return max(least, self._values.count(func._schema.name, f"what {func._schema.name} finds", largest))

    def _as_on_the_host(self, mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, FakeTensor)]
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), torch.device("cpu"))
        options = {name: torch.device("cpu") if name == "device" else value for name, value in kwargs.items()}
        with outside_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            try:
                found = func(*tree_map(_made_up, args), **tree_map(_made_up, options))
            except Exception:
                raise unknown_operator(func) from None
        self._values.assumptions.add(
            f"{func._schema.name} has a compiled kernel that says nothing of what it returns: its shapes are those that the kernel "
            "for the host gives for made-up numbers, and what it takes while it runs is not counted"
        )
        with mode:
            results = tree_map_only(torch.Tensor, lambda result: _like(result, device), found)
        return _handed_back(func, args, results)


def unknown_operator(func: Any) -> NeedsGpuError:
    """Error for an operator without a shape function."""
    name = f"{func.namespace}::{func._opname}"
    if func.namespace in ("aten", "prims"):
        return NeedsGpuError(f"the operator {name}", "Neither torch nor memfit knows what it returns: please report it.")
    return NeedsGpuError(
        f"the operator {name}",
        f'Tell torch what it returns, with @torch.library.register_fake("{name}"), or switch to an implementation in plain '
        "PyTorch for the prediction.",
    )


def _runs_on_host(func: Any) -> bool:
    return any(has_kernel(func.name(), key) for key in _HOST_KEYS)


def _size_of(arguments: Any) -> int:
    return sum(value.numel() * value.dtype.itemsize for value in tree_leaves(arguments) if isinstance(value, torch.Tensor))


def _made_up(value: Any) -> Any:
    """An argument on the host: what is known of it, ones for numbers, the first index for whole numbers."""
    if not isinstance(value, FakeTensor):
        return value
    known = host_data_of(value)
    if known is not None:
        return known
    is_whole = not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype is torch.bool)
    return torch.full(value.shape, 0 if is_whole else 1, dtype=value.dtype, device="cpu")


def _like(result: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=device)


def _handed_back(func: Any, args: Any, results: Any) -> Any:
    """What an operator writes to an argument and returns is that argument."""
    written = [i for i, argument in enumerate(func._schema.arguments) if argument.alias_info and argument.alias_info.is_write]
    forget_data(*(args[i] for i in written if i < len(args)))
    returned = func._schema.returns
    if len(returned) == 1 and returned[0].alias_info and written and written[0] < len(args):
        return args[written[0]]
    return results
