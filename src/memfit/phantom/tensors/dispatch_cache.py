"""A cache of operators' results, by the description of their arguments.

A training step asks the same few hundred questions for every layer. Torch remembers the answers, but describing the question and
making the answer is expensive there, because it must allow for symbolic shapes, sparse layouts and tracing. There are none of these
here, so the question is a small tuple and the answer one new tensor:

::

    (operator, shape, stride, dtype, device, offset of each tensor, every other argument) ──> recipe for each output

Only what torch answered from its own memory is remembered, and a few operators of which it is known that they may be, although
torch forgets them: they belong to a library, are made of others, give several views, or numbers beside tensors. Never what depends
on data or changes its arguments' shapes.

Batches of many lengths are copied to the GPU, each of another shape. A copy of a tensor in row-major order is in that order too,
so torch is asked once for all shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final, NamedTuple

import torch

from memfit.phantom.device.device_alias import inner
from memfit.phantom.tensors.tensor_annotations import PREFIX, VALUES
from memfit.torch_compat.distributed import result_by_shape
from memfit.torch_compat.fake_tensors import FakeTensor, num_recalled_by_torch
from memfit.torch_compat.tensors import empty_strided, forbid_writing_by_pointer, make_tensor_subclass

_CONSTANTS: Final = frozenset(
    (int, float, bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format, complex)
)
_NEVER: Final = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view))
_COLLECTIVES: Final = frozenset(result_by_shape())
_BY_DESCRIPTION: Final = frozenset(
    (
        "_c10d_functional::all_to_all_single",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::flatten.using_ints",
        "aten::split_with_sizes",
        "aten::to.dtype",
        "fsdp::all_gather_copy_in",
    )
)
"""Operators that torch works out anew each time; so it does all that give lists of tensors. What is known of values is lost on the
way through the operators that they are made of, so that they are asked about where something is."""
_WITH_LISTS: Final = "aten::_foreach_"
_TO_COPY: Final = torch.ops.aten._to_copy.default
_NOTHING: Final = ((0,), (1,))
"""Shape and stride of a tensor that is about to get another storage."""


class _Unknown(Exception):
    """Raised for arguments that cannot be described."""


class _Same(NamedTuple):
    """The output is an argument, changed in place."""

    argument: int


class _New(NamedTuple):
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    attributes: dict[str, Any]
    """Further attributes that torch sets on the tensor."""
    view_of: int
    """The argument whose storage it shares, -1 if it has its own."""
    offset: int


class _Number(NamedTuple):
    """An output that is a number, such as the length of the longest sequence."""

    value: int


Recipe = _Same | _New | _Number | None


class DispatchCache:
    """Answers operators, asking torch only for new descriptions."""

    def __init__(self, ask_odd: Callable[..., Any] | None = None) -> None:
        """``ask_odd`` answers calls with arguments other than plain tensors."""
        self._ask_odd = ask_odd
        self._recipes: dict[Any, tuple[type | None, tuple[Recipe, ...]]] = {}
        self._recipes_without_values: dict[Any, tuple[type | None, tuple[Recipe, ...]]] = {}
        """Recipes for calls whose arguments have no known values."""
        self._copies: dict[Any, tuple[torch.dtype, torch.device, dict[str, Any]]] = {}
        """Types, devices and attributes of copies in row-major order, by the types of their sources and the arguments."""

    def copy(self, source: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """The copy of a tensor, real or not; ``None`` where torch must be asked."""
        known = self._copies.get(_kind_of_copy(source, kwargs)) if self._copies else None
        if known is None or not _is_row_major(source):
            return None
        dtype, device, attributes = known
        return fake_tensor(empty_strided(source.shape, source.stride(), dtype=dtype, device="meta"), device, attributes)

    def answer(self, ask: Callable[..., Any], func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """The result of ``ask``, from the cache if the description is known."""
        try:
            key = _describe(func, args, kwargs)
        except _Unknown:
            return (self._ask_odd or ask)(func, types, args, kwargs)
        known = self._recipes.get(key)
        if known is None and key in self._recipes_without_values and not _has_known_values(args):
            known = self._recipes_without_values[key]
        if known is not None:
            kind, recipes = known
            if kind is None:
                return _make(recipes[0], args)
            return kind(_make(recipe, args) for recipe in recipes)
        before = num_recalled_by_torch()
        result = ask(func, types, args, kwargs)
        if func is _TO_COPY:
            self._note_copy(args[0], kwargs, result)
        is_recalled = num_recalled_by_torch() > before or func in _COLLECTIVES
        if (is_recalled or _follows_from_description(func, args)) and _NEVER.isdisjoint(func.tags):
            recipe = _write_down(args, result)
            if recipe is not None:
                (self._recipes if is_recalled else self._recipes_without_values)[key] = recipe
        return result

    def _note_copy(self, source: torch.Tensor, kwargs: dict[str, Any], made: torch.Tensor) -> None:
        recipe = _write_down((source,), made)
        if recipe is None or not _is_row_major(source) or made.stride() != source.stride():
            return
        (new,) = recipe[1]
        if type(new) is _New and new.view_of < 0 and kwargs.get("memory_format") in (None, torch.preserve_format):
            self._copies[_kind_of_copy(source, kwargs)] = new.dtype, new.device, new.attributes


def _kind_of_copy(source: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    """What a copy of a tensor in row-major order depends on, but for its shape."""
    return source.dtype, source.device, torch.is_inference_mode_enabled(), *sorted(kwargs.items(), key=itemgetter(0))


def _is_row_major(tensor: torch.Tensor) -> bool:
    """True of a tensor with elements, all of them in order without gaps, and with nothing lazy or known about them."""
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_neg() or not tensor.numel():
        return False
    if type(tensor) is FakeTensor and tensor.constant is not None:
        return False
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if type(size) is not int or stride != step:
            return False
        step *= size
    return True


def _follows_from_description(func: Any, args: Any) -> bool:
    name = func.name()
    return (name in _BY_DESCRIPTION or name.startswith(_WITH_LISTS)) and not _has_known_values(args)


def _has_known_values(args: Any) -> bool:
    tensors = (item for value in args for item in (value if type(value) in (list, tuple) else (value,)) if type(item) is FakeTensor)
    return any(vars(tensor).get(name) is not None for tensor in tensors for name in VALUES)


def _describe(func: Any, args: Any, kwargs: Any) -> Any:
    parts: list[Any] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
    for value in args:
        _describe_one(value, parts)
    for name, value in kwargs.items():
        parts.append(name)
        _describe_one(value, parts)
    return tuple(parts)


def _describe_one(value: Any, parts: list[Any]) -> None:
    kind = type(value)
    if kind is FakeTensor:
        if value.constant is not None or value.layout is not torch.strided or value.is_complex():
            raise _Unknown
        parts += (value.shape, value.stride(), value.dtype, value.fake_device, value.storage_offset())
    elif kind in _CONSTANTS:
        parts += (kind, value)
    elif kind is list or kind is tuple:
        parts += (kind, len(value))
        for item in value:
            _describe_one(item, parts)
    else:
        raise _Unknown


def _write_down(args: Any, result: Any) -> tuple[type | None, tuple[Recipe, ...]] | None:
    """The recipe for making the same result again; ``None`` if there is none."""
    outputs = result if type(result) in (tuple, list) else (result,)
    try:
        recipes = tuple(_recipe(args, output) for output in outputs)
    except _Unknown:
        return None
    own = [output.untyped_storage()._cdata for output, recipe in zip(outputs, recipes, strict=True) if _has_own_storage(recipe)]
    if len(set(own)) < len(own):  # two outputs share what is new
        return None
    return type(result) if type(result) in (tuple, list) else None, recipes


def _has_own_storage(recipe: Recipe) -> bool:
    return type(recipe) is _New and recipe.view_of < 0


def _recipe(args: Any, output: Any) -> Recipe:
    if output is None:
        return None
    if type(output) is int:
        return _Number(output)
    if type(output) is not FakeTensor or output.constant is not None or output.requires_grad or output.is_complex():
        raise _Unknown
    for number, argument in enumerate(args):
        if output is argument:
            return _Same(number)
    return _New(
        output.shape,
        output.stride(),
        output.dtype,
        output.fake_device,
        {name: value for name, value in vars(output).items() if not name.startswith(PREFIX)},
        _storage_owner(args, output),
        int(output.storage_offset()),
    )


def _storage_owner(args: Any, output: torch.Tensor) -> int:
    storage = output.untyped_storage()._cdata
    for number, argument in enumerate(args):
        if type(argument) is FakeTensor and argument.untyped_storage()._cdata == storage:
            return number
        if type(argument) in (list, tuple) and any(
            isinstance(item, FakeTensor) and item.untyped_storage()._cdata == storage for item in argument
        ):
            raise _Unknown
    return -1


def _make(recipe: Recipe, args: Any) -> torch.Tensor | int | None:
    if recipe is None:
        return None
    if type(recipe) is _Same:
        same: torch.Tensor = args[recipe.argument]
        return same
    if type(recipe) is _Number:
        return recipe.value
    assert type(recipe) is _New
    if recipe.view_of >= 0:
        data = empty_strided(*_NOTHING, dtype=recipe.dtype, device="meta")
        data.set_(args[recipe.view_of].untyped_storage(), recipe.offset, recipe.shape, recipe.stride)
    else:
        data = empty_strided(recipe.shape, recipe.stride, dtype=recipe.dtype, device="meta")
    return fake_tensor(data, recipe.device, recipe.attributes)


def fake_tensor(data: torch.Tensor, device: torch.device, attributes: dict[str, Any]) -> torch.Tensor:
    """A tensor on ``device`` as large as ``data``, which is on none; ``attributes`` are those of another there."""
    made: torch.Tensor = make_tensor_subclass(FakeTensor, data, False, dispatch_device=True, device_for_backend_keys=inner(device))
    forbid_writing_by_pointer(made)
    made.__dict__.update(attributes)
    return made
