"""The dispatch mode of the phantom GPU: decides which tensors hold data.

Tensors on the phantom GPU have a shape, a type and a storage of the right size, and no data. Host tensors are real, so that data
loaders, tokenizers and counters work as they do anywhere, apart from those too large to be worth it: a model built on the host
costs no more than one built on the GPU. Whatever is computed from a tensor without data has none either.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import torch

from memfit.errors import NeedsGpuError, PredictionError
from memfit.phantom.device.device_alias import INNER, OUTER, outer, own
from memfit.phantom.device.memory import mark_pinned
from memfit.phantom.kernels import RULES
from memfit.phantom.tensors.dispatch_cache import DispatchCache
from memfit.phantom.tensors.modified_views import ModifiedViews
from memfit.phantom.tensors.sparse import SPARSE_FACTORIES, SparseAnswers, is_sparse
from memfit.phantom.tensors.unknown_operators import UnknownOperators, unknown_operator
from memfit.phantom.values.answers import Values
from memfit.phantom.values.host_data import follow, host_data_of, keep_host_data
from memfit.phantom.values.host_draws import FILLING as DRAWING
from memfit.phantom.values.host_draws import HostDraws
from memfit.torch_compat.dispatch import HigherOrderOperator, tree_map_only
from memfit.torch_compat.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    device_handlers,
    device_query,
    is_unknown_shape,
    make_nested_int,
)
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
"""In-place operators that change only data: they do nothing here."""

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_PLAIN_OR_FAKE = _PLAIN | {FakeTensor}
_TO_COPY = aten._to_copy.default

_UPDATING = ("aten::_foreach_", "aten::_fused_", "fsdp::split_with_sizes_copy", "fsdp::chunk_cat")
"""Optimizers update whole lists of tensors in place with them, and FSDP2 copies into tensors that it has made; without data there
is nothing to update."""

LARGEST_REAL_BYTES = MIB
"""Largest host tensor that is allocated for real when it is created from a shape."""
LARGEST_WHOLE_BYTES = 256 * MIB
"""The same for whole numbers and truth values: lengths, indices and edges of graphs decide what batches are like."""

_EMPTY = torch.ops.aten.empty.memory_format
_SIZE_FIRST = frozenset(("empty", "zeros", "ones", "full", "rand", "randn", "randint", "normal", "empty_strided", "empty_permuted"))


_WITH_RANDOM_STATE: dict[str, Callable[..., Any]] = {
    "graphsafe_run_with_rng_state": lambda func, *args, rng_state=None, **kwargs: func(*args, **kwargs),
    "run_with_rng_state": lambda rng_state, func, *args, **kwargs: func(*args, **kwargs),
    "run_and_save_rng_state": lambda func, *args, **kwargs: (torch.cuda.get_rng_state(), func(*args, **kwargs)),
}
"""Compiled code with recomputation calls random operators through these. The inner operator decides the memory."""


class PhantomMode(FakeTensorMode):
    """The dispatch mode under which tensors of the phantom GPU exist."""

    supports_higher_order_operators = True
    looks_into_compiled_graphs = True

    def __init__(self, values: Values) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._allow_unsafe_data_ptr_access = False  # a compiled module that asks for data gets an error, not a null pointer
        self._cache = DispatchCache(self._dispatch_odd)
        self._note, self._to_host = values.note, values.to_host
        self.largest_real_bytes = LARGEST_REAL_BYTES
        self._answers = RULES.returns_beside(values.answers())
        self._num_jagged = 0
        self._jagged: dict[bytes, Any] = {}
        self._sparse = SparseAnswers(values.assumptions)
        self._draws = HostDraws()
        self.modified_views = ModifiedViews()
        self._unknown = UnknownOperators(values)

    @property
    def avoid_device_init(self) -> bool:
        """Always true: there is no device to initialise."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would otherwise wrap the method below in two more calls an operator."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Lets torch compile while this mode is active; torch disables it meanwhile."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is device_query:
            return device_handlers[device_query](args)
        if isinstance(func, HigherOrderOperator):
            return self._dispatch_higher_order(func, types, args, kwargs or {})
        kwargs = dict(kwargs) if kwargs else {}
        if kwargs.pop("pin_memory", None):  # there is no device to pin it for
            return mark_pinned(self.__torch_dispatch__(func, types, args, kwargs))
        device, on_gpu = kwargs.get("device"), False
        if device is not None:
            if device.type == INNER:
                device = kwargs["device"] = outer(device)
            on_gpu = device.type == OUTER
            if device.index == 0:
                device = kwargs["device"] = own(device)
        if not on_gpu and FakeTensor not in types:
            if not self._is_large(func, args, kwargs):
                # A tensor made of others is asked first.
                return func(*args, **kwargs) if _PLAIN.issuperset(types) else NotImplemented
            self._draws.make(func, args, kwargs)
        if func in _FILLING and type(args[0]) is FakeTensor:
            if func in DRAWING and args[0].fake_device.type == "cpu":
                self._draws.fill(func, args[0], args[1:], kwargs)
            self._note(func, args, kwargs, args[0])
            return args[0]
        if not func._schema.returns and func._schema.name.startswith(_UPDATING) and FakeTensor in types:
            return None
        if func is _TO_COPY and device is not None and device.type == "cpu" and args[0].device.type == OUTER:
            copied = self._copied_to_host(types, args, kwargs)
            # aten/src/ATen/native/TensorConversions.cpp, _to_copy: pin_out.
            return mark_pinned(copied) if kwargs.get("non_blocking") and copied.layout is torch.strided else copied
        answer = self._answers.get(func)
        if answer is not None:
            with self:
                answered = answer(*args, **kwargs)
            if answered is not NotImplemented:
                follow(func, args, kwargs, answered)
                return answered
        source = args[0] if func is _TO_COPY and on_gpu and FakeTensor not in types else None
        result = self._cache.copy(args[0], kwargs) if func is _TO_COPY and _PLAIN_OR_FAKE.issuperset(types) else None
        if result is None:
            if on_gpu and FakeTensor not in types:
                args = tree_map_only(torch.Tensor, self._without_data, args)
            result = self._asked(func, types, args, kwargs)
        self._note(func, args, kwargs, result)
        if args and result is args[0] and func._schema.is_mutable and torch.is_grad_enabled() and result._base is not None:
            self.modified_views.note(result)
        if source is not None:
            keep_host_data(result, source)
        elif func is _TO_COPY and result.dtype is torch.int64:
            _keep_jagged(result, args[0])
        return result

    def _asked(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        try:
            return self._cache.answer(self.dispatch, func, types, args, kwargs)
        except RuntimeError as error:
            if not is_unknown_shape(error):
                raise
            again = functools.partial(self.dispatch, func, types, args, kwargs)
            return self._unknown.answer(again, self, func, args, kwargs)

    def _copied_to_host(self, types: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        if _is_real_on_host(args[0]):
            return self._to_host(args[0], kwargs.get("dtype") or args[0].dtype)
        copied: torch.Tensor = self._cache.answer(self.dispatch, _TO_COPY, types, args, kwargs)
        self._note(_TO_COPY, args, kwargs, copied)
        return copied

    def _dispatch_higher_order(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        run = _WITH_RANDOM_STATE.get(func.name())
        if run is not None:
            with self:
                return run(*args, **kwargs)
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except AttributeError as error:
            if "_schema" not in str(error):
                raise
            raise NeedsGpuError(
                f"the higher-order operator {func}", "Switch to ordinary control flow in Python for the prediction."
            ) from None

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> Any:
        """The length of a jagged dimension, as without fake tensors: nothing is symbolic here."""
        self._num_jagged += 1
        return make_nested_int(self._num_jagged, 1)

    def name_jagged(self, offsets: torch.Tensor) -> None:
        """Offsets that are known to be the same are of the same dimension: below the alias of the device, C++ copies them."""
        data = host_data_of(offsets)
        if data is not None and offsets.nested_int_memo is None:  # type: ignore[attr-defined]
            key = data.numpy().tobytes()
            if key not in self._jagged:
                self._jagged[key] = self.create_symbolic_nested_int()
            offsets.nested_int_memo = self._jagged[key]  # type: ignore[attr-defined]

    def _dispatch_odd(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Dispatches calls with arguments that are not plain tensors."""
        if any(is_sparse(value) for value in args):
            with self:
                answered = self._sparse.answer(func, args, kwargs)
            if answered is not NotImplemented:
                return answered
        result = self.dispatch(func, types, args, kwargs)
        if (
            isinstance(result, torch.Tensor)
            and is_sparse(result)
            and func.namespace == "aten"
            and not result._values().shape[0]
            and func not in SPARSE_FACTORIES
        ):
            raise unknown_operator(func)  # torch forgets the elements, and says nothing
        return result

    def answer_by(self, function: Callable[..., Any], operator: Any) -> None:
        """Calls a function in the place of an operator: what happens inside it is seen."""
        self._answers[operator] = function

    def share(self, turn: Any) -> None:
        """Prepares for operators of several threads, each of which takes the lock ``turn``."""
        entered = self.enter_stack
        self.__class__ = _SharedMode
        assert isinstance(self, _SharedMode)
        self.begin(turn, entered)

    def switch_off(self) -> None:
        """Called when the world is left: later work of other threads is real, on the host."""
        self.__class__ = _LeftMode

    def stay_behind(self) -> None:
        """Called in a forked child: host tensors are real there."""
        self.__class__ = _ChildsMode

    def _is_large(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """True if the call would create a host tensor too large to allocate."""
        if not args or func.namespace != "aten" or func._schema.name.removeprefix("aten::") not in _SIZE_FIRST:
            return False
        device = kwargs.get("device")
        if device is not None and device.type != "cpu":
            return False
        size = next((value for value in args if isinstance(value, (list, tuple))), ())
        dtype = kwargs.get("dtype") or _type_made(func._schema.name, args)
        is_whole = self.largest_real_bytes > 0 and not (dtype.is_floating_point or dtype.is_complex)
        return math.prod(size) * dtype.itemsize > (LARGEST_WHOLE_BYTES if is_whole else self.largest_real_bytes)

    def _without_data(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) not in _PLAIN:
            if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
                return tensor  # it answers operators itself
            tensor = tensor.as_subclass(torch.Tensor)
        return self.from_tensor(tensor, static_shapes=True)


class _SharedMode(PhantomMode):
    """The mode once a second thread has entered it.

    Fake tensors keep two per-thread values on their mode: how often it was entered, and whether a kernel runs.
    """

    def begin(self, turn: Any, entered: list[Any]) -> None:
        """``entered`` is the stack of the first thread."""
        self._turn, self._of_thread = turn, _OfThread()
        self._of_thread.entered = entered

    @property
    def enter_stack(self) -> Any:
        return self._of_thread.entered

    @enter_stack.setter
    def enter_stack(self, value: list[Any]) -> None:
        self._of_thread.entered = value

    @property
    def in_kernel_invocation(self) -> bool:
        return self._of_thread.in_kernel

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self._of_thread.in_kernel = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self._turn:
            return PhantomMode.__torch_dispatch__(self, func, types, args, kwargs)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.entered: list[Any] = []
        self.in_kernel = False


class _LeftMode(_SharedMode):
    """The mode of a thread that outlives the world."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = (kwargs or {}).get("device")
        if FakeTensor in types or (device is not None and device.type in (INNER, OUTER)):
            raise WorldIsOverError()
        return func(*args, **(kwargs or {}))


class _ChildsMode(PhantomMode):
    """The mode in a forked child: it does nothing."""

    def from_tensor(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class WorldIsOverError(PredictionError, RuntimeError):
    """A thread used the phantom GPU after the prediction had ended."""

    def __init__(self) -> None:
        super().__init__("the prediction is over, and its GPU with it: end this thread before the last step ends")


def _type_made(name: str, args: Any) -> torch.dtype:
    """The type of a new tensor for which none was asked."""
    if name == "aten::randint":
        return torch.int64
    filled_with = {bool: torch.bool, int: torch.int64}.get(type(args[1])) if name == "aten::full" else None
    return filled_with or torch.get_default_dtype()


def _keep_jagged(copied: torch.Tensor, offsets: torch.Tensor) -> None:
    """A jagged dimension is known by its offsets, also by a copy of them."""
    if isinstance(offsets, FakeTensor) and offsets.nested_int_memo is not None:
        copied.nested_int_memo = offsets.nested_int_memo  # type: ignore[attr-defined]


def _is_real_on_host(tensor: torch.Tensor) -> bool:
    """True if a copy of the tensor to the host gets real data, so that readers find ordinary numbers."""
    return tensor.numel() * tensor.dtype.itemsize <= LARGEST_REAL_BYTES or host_data_of(tensor) is not None
