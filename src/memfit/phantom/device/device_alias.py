"""One device with two names.

Python code, torch's own included, must see ``cuda:0``. Autograd, written in C++, must not: without a driver it cannot even ask
which stream a CUDA tensor belongs to. So the same tensors are ``cuda`` to Python and a device of torch's PrivateUse1 kind to C++:

::

    Python   tensor.device, is_cuda, device= ──────> cuda:0
                      │  outer                         │ inner
    C++      autograd, autocast, dispatch keys ──────> phantom:0

Registering that device kind is the one thing that lasts as long as the process; torch has no way back. It answers "not available"
outside the phantom world.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from memfit.errors import ConfigError
from memfit.torch_compat.autograd import run_engine
from memfit.torch_compat.devices import BackendGuard, BackendHooks, DefaultDevice, private_backend_name, register_python_backend
from memfit.torch_compat.fake_tensors import FAKE_TENSOR_MODULE, FakeTensor, device_handlers, device_query
from memfit.torch_compat.patches import Patches
from memfit.torch_compat.tensors import TensorBase, make_tensor_subclass, make_wrapper_subclass

INNER = "phantom"
OUTER = "cuda"

_REAL_DEVICE = torch.device
_inner_names: dict[torch.device, torch.device] = {}
_is_open = False
_own_index = 0
"""The number of this process's GPU on its node."""


class _Hooks(BackendHooks):  # type: ignore[misc]
    """What C++ asks about the device kind."""

    def is_available(self) -> bool:
        return _is_open


class Guard(BackendGuard):  # type: ignore[misc]
    """Asked by C++ for the device's kind, also on the way out of a backward pass in which a hook has raised.

    The error is then pending, and torch would abort the process on meeting it here. It is taken aside; ``with_errors`` raises it.
    """

    lost: ClassVar[list[BaseException]] = []

    def type_(self) -> Any:
        try:
            _raise_pending()
        except BaseException as error:
            self.lost.append(error)
        return super().type_()


_raise_pending = ctypes.pythonapi.PyErr_Occurred
_raise_pending.restype, _raise_pending.argtypes = None, ()
"""Python's C functions, called this way, raise what is pending."""


def with_errors(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """The engine, which in place of a lost error says that there was none."""

    @functools.wraps(run_backward)
    def run(*args: Any, **kwargs: Any) -> Any:
        Guard.lost.clear()
        try:
            return run_backward(*args, **kwargs)
        except SystemError:
            if not Guard.lost:
                raise
            raise Guard.lost.pop() from None

    return run


class _DeviceType(type):
    """Makes devices, and knows them when it sees them."""

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        device = outer(_REAL_DEVICE(*args, **kwargs))
        return own(device) if device.index == 0 else device

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _REAL_DEVICE)


class _Device(metaclass=_DeviceType):
    """``torch.device``, for which ``torch.device(0)`` is a GPU."""


class _Module:
    """``torch.phantom``: the little that torch itself asks of a backend's module."""

    def is_available(self) -> bool:
        return _is_open

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_device(self) -> int:
        return int(torch.cuda.current_device()) if _is_open else 0

    def device_count(self) -> int:
        return int(torch.cuda.device_count()) if _is_open else 0

    def manual_seed_all(self, seed: int) -> None: ...

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]


def register() -> None:
    """Makes the device kind known to torch, once a process."""
    name = private_backend_name()
    if name == INNER:
        return
    if name != "privateuseone":
        raise ConfigError(f"this process already uses torch's PrivateUse1 device for {name!r}: predict in a process of its own")
    register_python_backend(INNER, backend_module=_Module(), hook=_Hooks(), device_guard=Guard())


def inner(device: torch.device) -> torch.device:
    """The device as C++ must see it: asked several times for every operator."""
    found = _inner_names.get(device)
    if found is None:
        found = _inner_names[device] = _REAL_DEVICE(INNER, device.index or 0) if device.type == OUTER else device
    return found


def outer(device: torch.device) -> torch.device:
    """The device as Python must see it."""
    return _REAL_DEVICE(OUTER, device.index or 0) if device.type == INNER else device


def own(device: torch.device) -> torch.device:
    """What a process means by ``cuda:0``: its own GPU, the only one that many launchers let it see."""
    return device if _own_index == 0 or device.type != OUTER else _REAL_DEVICE(OUTER, _own_index)


def install(patches: Patches, own_index: int = 0) -> None:
    """From now on tensors answer with one name or the other, depending on who asks."""
    global _is_open, _own_index
    _is_open, _own_index = True, own_index
    patches.finally_call(_close)
    _answer_to_cpp(patches)
    _answer_to_python(patches)
    run_backward = with_errors(run_engine)
    for module in (torch.autograd, torch.autograd.graph):
        patches.replace(module, "_engine_run_backward", run_backward)


def _close() -> None:
    global _is_open, _own_index
    _is_open, _own_index = False, 0


def _answer_to_cpp(patches: Patches) -> None:
    make_subclass = make_tensor_subclass
    make_wrapper = make_wrapper_subclass
    dispatch, handler = FakeTensor.__torch_dispatch__, device_handlers[device_query]

    def _make_subclass(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device_for_backend_keys")
        if device is not None:
            kwargs["device_for_backend_keys"] = inner(torch.device(device))
        return make_subclass(*args, **kwargs)

    def _make_wrapper_subclass(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = inner(torch.device(kwargs["device"]))
        return make_wrapper(*(inner(arg) if isinstance(arg, torch.device) else arg for arg in args), **kwargs)

    def __torch_dispatch__(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result: Any = dispatch(func, types, args, kwargs or {})
        return inner(result) if func is device_query else result

    # Not asked by the interpreter: only C++ asks for the device by an operator.
    patches.replace_item(device_handlers, device_query, lambda args: inner(handler(args)))
    patches.replace(FakeTensor, "__torch_dispatch__", classmethod(__torch_dispatch__))
    patches.replace(torch.Tensor, "_make_subclass", staticmethod(_make_subclass))
    patches.replace(torch.Tensor, "_make_wrapper_subclass", staticmethod(_make_wrapper_subclass))
    patches.replace(FAKE_TENSOR_MODULE, "init_gpu_context", lambda device: None)


def _answer_to_python(patches: Patches) -> None:
    base = TensorBase
    ask_device, ask_index = base.device.__get__, base.get_device

    def get_device(tensor: torch.Tensor) -> int:
        device = tensor.device
        return device.index if device.type == OUTER else ask_index(tensor)

    patches.replace(torch.Tensor, "device", property(lambda tensor: outer(ask_device(tensor))))
    patches.replace(torch.Tensor, "is_cuda", property(lambda tensor: tensor.device.type == OUTER))
    patches.replace(torch.Tensor, "get_device", get_device)
    for name in ("to", "new_tensor"):
        patches.replace(torch.Tensor, name, _speaking_inner(getattr(base, name)))
    factories = {name: getattr(torch, name) for name in ("tensor", "as_tensor", "asarray")}
    for name, function in factories.items():
        patches.replace(torch, name, _speaking_inner(function))
    patches.wrap(DefaultDevice, "__torch_function__", functools.partial(_defaulting_to_inner, frozenset(factories.values())))
    patches.replace(torch.Tensor, "cuda", _cuda)
    patches.replace(torch, "device", _Device)


def _speaking_inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """For functions that compare devices in C++, or ask there for the current one: they must be given the inner name."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = _inner_of(kwargs["device"])
        return function(*(_inner_of(arg) if isinstance(arg, (str, torch.device)) else arg for arg in args), **kwargs)

    return call


def _defaulting_to_inner(factories: frozenset[Any], follow: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.set_default_device`` and ``with torch.device(...)`` name a device to the functions below the stand-ins, too."""

    def __torch_function__(context: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in factories and (kwargs or {}).get("device") is None:
            kwargs = {**(kwargs or {}), "device": _inner_of(context.device)}
        return follow(context, func, types, args, kwargs)

    return __torch_function__


def _inner_of(device: Any) -> Any:
    """Also for a device given by name or number; anything else comes back as it is."""
    if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
        return device
    if isinstance(device, str) and not device.startswith(OUTER):
        return device
    device = torch.device(OUTER, device) if isinstance(device, int) else torch.device(device)
    if device.type == OUTER and device.index is None:
        device = torch.device(OUTER, torch.cuda.current_device())
    return inner(device)


def _cuda(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format) -> Any:
    return tensor.to(
        OUTER if device is None else torch.device(OUTER, device) if isinstance(device, int) else device,
        non_blocking=non_blocking,
        memory_format=memory_format,
    )
