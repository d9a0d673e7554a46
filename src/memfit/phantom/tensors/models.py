"""Models and parameters without data: moved and cast, initialised, made into classes of libraries, or built before the world.

``Module.to`` must leave every parameter the object it was, or tied weights come apart and optimizers made earlier lose theirs.
Torch does that by exchanging the insides of two tensors, which it refuses while weak references exist, as they do for
recorders. Here the references are ours, and the exchange is harmless. ``tensor.data = other`` moves a tensor from one device to
another where FSDP1 offloads; torch allows that between devices of its own, and would not between the host and ours.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memfit.phantom.target import Target
from memfit.phantom.tensors.mode import PhantomMode
from memfit.phantom.tensors.tensor_annotations import PREFIX
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.devices import INITIALISATION, TRUNCATED_NORMAL, clipping_foreach_types, optimizer_foreach_types
from memfit.torch_compat.dispatch import tree_leaves, without_subclass_functions
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches
from memfit.torch_compat.tensors import TensorBase, UninitializedTensor, mark_as_parameter, swap_insides
from memfit.torch_versions import TorchVersion


def install_parameters(patches: Patches, mode: PhantomMode) -> None:
    """Parameters made from now on hold no data; optimizers treat them as they treat any others."""
    make_parameter, swap_tensors = nn.Parameter.__new__, torch.utils.swap_tensors
    patches.replace(nn.Parameter, "__new__", staticmethod(_without_data(make_parameter, mode)))
    patches.replace(torch.utils, "swap_tensors", _despite_references(swap_tensors))
    patches.replace(FakeTensor, "__deepcopy__", _deepcopy)
    patches.wrap(FakeTensor, "get_nested_int", functools.partial(_naming_jagged, mode))
    patches.replace(torch.Tensor, "data", _across_devices(patches, mode))
    _allow_data_across_devices(patches)
    patches.append(optimizer_foreach_types, FakeTensor)
    patches.append(clipping_foreach_types, FakeTensor)


def _without_data(make_parameter: Callable[..., Any], mode: PhantomMode) -> Callable[..., Any]:
    def __new__(cls: type, data: Any = None, requires_grad: bool = True, **attributes: Any) -> Any:
        if attributes and "fake_mode" not in attributes:  # accelerate hands on all that is written onto a parameter
            raise TypeError(f"nn.Parameter takes data and requires_grad, not {min(attributes)}")
        if cls is nn.Parameter and type(data) in (torch.Tensor, nn.Parameter):
            data = mode.from_tensor(data.detach(), static_shapes=True)
        if type(data) is not FakeTensor and isinstance(data, FakeTensor) and isinstance(data, cls):
            with without_subclass_functions():
                return data.requires_grad_(requires_grad)  # of a class of its own, which it keeps
        if cls is not nn.Parameter and isinstance(data, FakeTensor):
            return of_class(data, cls, requires_grad)
        return make_parameter(cls, data, requires_grad)

    return __new__


def _despite_references(swap_tensors: Callable[..., None]) -> Callable[..., None]:
    def swap(kept: torch.Tensor, given: torch.Tensor) -> None:
        if kept is given:
            return
        if isinstance(kept, FakeTensor) and isinstance(given, FakeTensor):
            if type(kept) is FakeTensor or type(given) is not FakeTensor:  # otherwise a class of its own stays
                kept.__class__, given.__class__ = given.__class__, kept.__class__
            _keep_attributes(kept, given)
            kept.__dict__, given.__dict__ = given.__dict__, kept.__dict__
            swap_insides(kept, given)
        else:
            swap_tensors(kept, given)

    return swap


def _keep_attributes(kept: torch.Tensor, given: torch.Tensor) -> None:
    """What libraries have written onto a tensor stays with it when its insides are exchanged, as where only ``.data`` is set."""
    own = {name: value for name, value in kept.__dict__.items() if not name.startswith(PREFIX)}
    given.__dict__ = own | given.__dict__


def _deepcopy(tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """A copy with memory of its own, made by operators that recorders see: averages and best weights are kept this way.

    As torch does it, a parameter is copied by itself; of other tensors the whole storage is, once for all that share it.
    """
    if id(tensor) not in memo:
        is_parameter, requires_grad = isinstance(tensor, nn.Parameter), tensor.requires_grad
        copied = tensor.detach().clone() if is_parameter else _copied_with_storage(tensor.detach(), memo)
        memo[id(tensor)] = nn.Parameter(copied, requires_grad) if is_parameter else copied.requires_grad_(requires_grad)
        if tensor.is_leaf and tensor.grad is not None:
            memo[id(tensor)].grad = _deepcopy(tensor.grad, memo)
    return memo[id(tensor)]  # type: ignore[no-any-return]


def _copied_with_storage(tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.clone()
    storage, copies = tensor.untyped_storage(), memo.setdefault("torch", {})
    if storage._cdata not in copies:
        whole = tensor.new_empty(0).set_(storage, 0, (storage.nbytes() // tensor.itemsize,), (1,))
        copied = tensor.clone() if tensor.is_contiguous() and whole.numel() == tensor.numel() else whole.clone()
        copies[storage._cdata] = copied.untyped_storage()
        if copied.shape == tensor.shape:
            return copied
    return tensor.new_empty(()).set_(copies[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())


def _naming_jagged(mode: PhantomMode, get_nested_int: Callable[..., Any]) -> Callable[..., Any]:
    def get(offsets: torch.Tensor, *, coeff: int = 1) -> Any:
        mode.name_jagged(offsets)
        return get_nested_int(offsets, coeff=coeff)

    return get


def _across_devices(patches: Patches, mode: PhantomMode) -> property:
    data: Any = TensorBase.data  # a descriptor, whatever its stub says

    def set_data(tensor: torch.Tensor, given: torch.Tensor) -> None:
        if isinstance(given, FakeTensor) and type(tensor) in (torch.Tensor, nn.Parameter):
            adopt_tensor(patches, tensor, given)
            return
        if isinstance(tensor, FakeTensor) and type(given) in (torch.Tensor, nn.Parameter):
            given = mode.from_tensor(given.detach(), static_shapes=True)
        data.__set__(tensor, given)
        if isinstance(tensor, FakeTensor) and isinstance(given, FakeTensor):
            tensor.fake_device = given.fake_device

    return property(data.__get__, set_data)


def _allow_data_across_devices(patches: Patches) -> None:
    patches.implement("AutogradPrivateUse1", "_has_compatible_shallow_copy_type", lambda kept, given: True)


# -- weights are initialised as the torch that is predicted does it ----------------------------------------------------------
#
# Since 2.13 ``trunc_normal_`` draws again what lies outside, and holds masks as large as the weight while it does. Before,
# everything happened in place (seen on an H200 with 2.11). The masks are gone when training begins, but the segments that they
# lay in are not: for an 8B model that is two gibibytes of what is reserved.

DRAWN_AGAIN_SINCE = (2, 13)

DRAWN_ONCE = (
    "numbers of trunc_normal_ on the host that lie outside are drawn again in a real run, as often as it takes: shuffled data may "
    "come in another order (a torch.manual_seed after the model is made settles it)"
)

Truncate = Callable[..., torch.Tensor]


def install_initialisation(patches: Patches, target: Target, assumptions: Assumptions) -> None:
    if not hasattr(INITIALISATION, TRUNCATED_NORMAL):
        return
    if target.torch < DRAWN_AGAIN_SINCE:
        patches.replace(INITIALISATION, TRUNCATED_NORMAL, _truncated_in_place)
        return
    if TorchVersion.parse(torch.__version__).release < DRAWN_AGAIN_SINCE:
        patches.replace(INITIALISATION, TRUNCATED_NORMAL, _truncated_with_masks)

    def say(original: Truncate) -> Truncate:
        def truncate(tensor: torch.Tensor, *args: float, generator: torch.Generator | None = None) -> torch.Tensor:
            if tensor.device.type == "cpu":
                assumptions.add(DRAWN_ONCE)
            return original(tensor, *args, generator=generator)

        return truncate

    patches.wrap(INITIALISATION, TRUNCATED_NORMAL, say)


def _truncated_in_place(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Takes no memory, and draws one number for each element, as torch did."""
    with torch.no_grad():
        return tensor.uniform_(-1, 1, generator=generator).clamp_(min=a, max=b)


def _truncated_with_masks(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Draws once and looks what lies outside, as torch does first."""
    with torch.no_grad():
        tensor.normal_(mean, std, generator=generator)
        (tensor < a) | (tensor > b)
        return tensor


# -- classes of tensors and parameters that libraries make -------------------------------------------------------------------
#
# A tensor without data is of a class of its own already, and torch gives no tensor two. Here the two classes become one:
#
# ::
#
#     bitsandbytes.nn.Params4bit ─┐
#                                 ├─> Params4bit, without data      isinstance of both; its methods are those of the library's class
#     FakeTensor ─────────────────┘
#
# While an operator runs, such a tensor is of the plain class: the phantom's dispatch mode sees what it knows.

_PLAIN = (torch.Tensor, nn.Parameter)
_classes: dict[type, type] = {}


def install_subclasses(patches: Patches, mode: PhantomMode) -> None:
    patches.wrap(torch.Tensor, "_make_subclass", functools.partial(_making_subclasses, mode))
    patches.wrap(torch.Tensor, "as_subclass", _taking_classes)


def of_class(data: torch.Tensor, cls: type, requires_grad: bool) -> torch.Tensor:
    """A tensor that shares the memory of ``data``, which has none, and is of a library's class."""
    made = data.detach().requires_grad_(requires_grad)  # before it has the class: parameters without a shape allow no method
    if issubclass(cls, nn.Parameter):
        mark_as_parameter(made)
    return _with_class(made, cls)


def _making_subclasses(mode: PhantomMode, make: Callable[..., Any]) -> Callable[..., Any]:
    def _make_subclass(cls: type, data: torch.Tensor, require_grad: bool = False, **kwargs: Any) -> Any:
        if cls is not nn.Parameter and issubclass(cls, (nn.Parameter, UninitializedTensor)) and type(data) in _PLAIN:
            data = mode.from_tensor(data.detach(), static_shapes=True)  # parameters hold no data
        if cls is FakeTensor or cls is nn.Parameter or not isinstance(data, FakeTensor):
            return make(cls, data, require_grad, **kwargs)
        return of_class(data, cls, require_grad)

    return _make_subclass


def _taking_classes(as_subclass: Callable[..., Any]) -> Callable[..., Any]:
    def take(tensor: torch.Tensor, cls: type) -> Any:
        if not isinstance(tensor, FakeTensor):
            return as_subclass(tensor, cls)
        with without_subclass_functions():
            plain = tensor.view_as(tensor)
        return plain if cls is torch.Tensor else _with_class(plain, cls)

    return take


def _with_class(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    tensor.__class__ = _class_without_data(cls)
    return tensor


def _class_without_data(cls: type) -> type:
    """The class of tensors that are both."""
    if issubclass(cls, FakeTensor):
        return cls
    if cls not in _classes:
        body = {"__torch_dispatch__": classmethod(_as_plain), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        kind: Any = type(cls)
        made = _classes[cls] = kind(cls.__name__, (cls, FakeTensor), body)
        # Torch has switched it off, because the class sees operators.
        made.__torch_function__ = inspect.getattr_static(cls, "__torch_function__")
        if issubclass(cls, UninitializedTensor):
            # Torch refuses what they are asked, and recorders ask: they answer as tensors of no elements.
            made.__torch_function__ = inspect.getattr_static(torch.Tensor, "__torch_function__")
            made.shape = property(TensorBase.shape.__get__)
            made.materialize = _with_shape
    return _classes[cls]


def _with_shape(tensor: Any, shape: torch.Size, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
    """A parameter that had no shape becomes a plain one, as torch does it: first its class, so that it may have data."""
    tensor.__class__ = FakeTensor
    tensor.data = torch.empty(shape, device=device or tensor.device, dtype=dtype or tensor.dtype)


def _as_plain(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Asked where all arguments are of such classes: otherwise the phantom's mode has answered."""
    kwargs = kwargs or {}
    odd = [
        (value, type(value))
        for value in tree_leaves((args, kwargs))
        if isinstance(value, FakeTensor) and type(value) is not FakeTensor
    ]
    for value, _ in odd:
        value.__class__ = FakeTensor
    try:
        return func(*args, **kwargs)
    finally:
        for value, kind in odd:
            value.__class__ = kind


# -- models that were built before the world was entered, with data ----------------------------------------------------------
#
# Moving one to the phantom GPU exchanges the insides of its parameters for ones without data; the parameters stay the objects they
# were, so ties and optimizers hold. Leaving the world gives everything back: the model has its data, on the host, as before.


def install_existing_models(patches: Patches) -> None:
    apply: Callable[..., nn.Module] = nn.Module._apply

    def _apply(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        _adopt(patches, module)
        return apply(module, fn, recurse)

    patches.replace(nn.Module, "_apply", _apply)


def _adopt(patches: Patches, module: nn.Module) -> None:
    """Of this module alone: torch asks for those inside it one by one."""
    for param in module._parameters.values():
        if type(param) is nn.Parameter:
            _adopt_parameter(patches, param)
    buffers = {name: buffer for name, buffer in module._buffers.items() if type(buffer) is torch.Tensor}
    if buffers:
        patches.finally_call(lambda: module._buffers.update(buffers))


def _adopt_parameter(patches: Patches, param: nn.Parameter) -> None:
    adopt_tensor(patches, param, param.detach())


def adopt_tensor(patches: Patches, tensor: torch.Tensor, given: torch.Tensor) -> None:
    """``tensor``, which has data, becomes one without until the world is left: it looks like ``given``, and shares its storage."""
    if isinstance(tensor, nn.Parameter):
        other: torch.Tensor = nn.Parameter(given.detach(), tensor.requires_grad)
    else:
        other = given.detach()
    _keep_attributes(tensor, other)
    _exchange(tensor, other)
    reference = weakref.ref(tensor)

    def give_back() -> None:
        adopted = reference()
        if adopted is not None:
            _exchange(adopted, other)

    patches.finally_call(give_back)


def _exchange(one: Any, other: Any) -> None:
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    swap_insides(one, other)
