"""Which tensors hold data and which do not.

Tensors on the phantom GPU have a shape, a type and a storage of the right size, and no data. Host tensors are real, so that data
loaders, tokenizers and counters work as they do anywhere, apart from those too large to be worth it: a model built on the host
costs no more than one built on the GPU. Whatever is computed from a tensor without data has none either.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from memfit.phantom import shapes
from memfit.phantom.device import INNER, OUTER, outer
from memfit.phantom.torch_private import FakeTensor, FakeTensorMode, device_handlers, device_query
from memfit.phantom.values import Values
from memfit.units import MIB

aten = torch.ops.aten

_FILLING = frozenset(
    (
        aten.uniform_.default,
        aten.normal_.default,
        aten.fill_.Scalar,
        aten.zero_.default,
        aten.random_.default,
        aten.bernoulli_.float,
    )
)
"""They change nothing that a tensor without data has."""

_UPDATING = ("aten::_foreach_", "aten::_fused_")
"""Optimizers update whole lists of tensors in place with them; without data there is nothing to update."""

LARGEST_REAL_BYTES = MIB
"""A host tensor made from nothing but a shape is real up to this size."""

_SIZE_FIRST = frozenset(("empty", "zeros", "ones", "full", "rand", "randn", "randint", "normal", "empty_strided", "empty_permuted"))


class PhantomMode(FakeTensorMode):
    """The dispatch mode under which tensors of the phantom GPU exist."""

    supports_higher_order_operators = True

    def __init__(self, values: Values) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._note = values.note
        self._answers = values.answers() | shapes.answers()

    @property
    def avoid_device_init(self) -> bool:
        """There is no device to initialise, whatever ``torch.cuda`` says."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would otherwise wrap the method below in two more calls an operator."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is device_query:
            return device_handlers[device_query](args)
        if isinstance(func, torch._ops.HigherOrderOperator):
            return super().__torch_dispatch__(func, types, args, kwargs or {})  # type: ignore[arg-type]
        kwargs = dict(kwargs) if kwargs else {}
        kwargs.pop("pin_memory", None)  # there is nobody to pin it for
        device = kwargs.get("device")
        if device is not None and device.type == INNER:
            device = kwargs["device"] = outer(device)
        on_gpu = device is not None and device.type == OUTER
        if not on_gpu and FakeTensor not in types and not _is_large(func, args, kwargs):
            return func(*args, **kwargs)
        if func in _FILLING and type(args[0]) is FakeTensor:
            self._note(func, args, args[0])
            return args[0]
        if not func._schema.returns and func._schema.name.startswith(_UPDATING) and FakeTensor in types:
            return None
        answer = self._answers.get(func)
        if answer is not None:
            with self:
                answered = answer(*args, **kwargs)
            if answered is not NotImplemented:
                return answered
        if on_gpu and FakeTensor not in types:
            args = tree_map_only(torch.Tensor, self._without_data, args)
        result = self.dispatch(func, types, args, kwargs)
        self._note(func, args, result)
        return result

    def _without_data(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.from_tensor(tensor, static_shapes=True) if type(tensor) in (torch.Tensor, torch.nn.Parameter) else tensor


def _is_large(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Would this make a host tensor that nobody should have to pay for?"""
    if not args or func.namespace != "aten" or func._schema.name.removeprefix("aten::") not in _SIZE_FIRST:
        return False
    device = kwargs.get("device")
    if device is not None and device.type != "cpu":
        return False
    size = next((value for value in args if isinstance(value, (list, tuple))), ())
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return math.prod(size) * dtype.itemsize > LARGEST_REAL_BYTES
