"""Work that torch does once for every rank or for every pair of parameters, done once: with 512 ranks it is most of a prediction.

Results are the same; where the installed torch has no such function there is nothing to shorten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from torch.distributed.tensor import placement_types

from memfit.phantom.tensors.mode import PhantomMode
from memfit.torch_compat.distributed import forget_meshes, sharding_propagation
from memfit.torch_compat.patches import Patches


def install(patches: Patches, mode: PhantomMode) -> None:
    propagation = sharding_propagation()
    patches.finally_call(forget_meshes)
    name = "_propagate_use_strided_shard_flag"
    if hasattr(propagation, name):
        patches.replace(propagation, name, _asked_once(getattr(propagation, name)))
    name, propagator = "_propagate_tensor_meta_non_cached", propagation.ShardingPropagator
    if hasattr(propagator, name):
        patches.replace(propagator, name, _by_shape(getattr(propagator, name), mode))
    name = "_expand_single_dim_strategy_to_mesh"
    if hasattr(propagation, name):
        patches.replace(propagation, name, _one_of_each(getattr(propagation, name), propagation.TupleStrategy))


def _by_shape(propagate: Callable[..., Any], mode: PhantomMode) -> Callable[..., Any]:
    """Runs an operator on tensors of the host to learn a shape: they need no data, however small, and some would not do."""

    def propagate_without_data(*args: Any, **kwargs: Any) -> Any:
        before, mode.largest_real_bytes = mode.largest_real_bytes, -1
        try:
            return propagate(*args, **kwargs)
        finally:
            mode.largest_real_bytes = before

    return propagate_without_data


_WITH_LISTS = ("aten::_foreach_", "aten::_amp_foreach_", "aten::_fused_")
"""They do the same to each tensor of their lists."""


def _one_of_each(expand: Callable[..., Callable[..., Any]], list_kind: Any) -> Callable[..., Any]:
    """How tensors in lists may be sharded: found for one of each kind, where torch does it for every one, and looks at all numbers
    in the lists beside them each time. An optimizer's lists hold every parameter of the model, of a dozen kinds."""

    def expand_one_of_each(mesh: Any, schema: Any, info: Any, metas: Any) -> Callable[..., Any]:
        every = expand(mesh, schema, info, metas)
        lists = [arg.children for arg in schema.args_schema if isinstance(arg, list_kind)]
        if not lists or not schema.op.name().startswith(_WITH_LISTS) or len({len(each) for each in lists}) > 1:
            return every
        firsts: dict[Any, int] = {}
        kinds = [_kinds_of(items, meta) for *items, meta in zip(*lists, metas or [None] * len(lists[0]), strict=True)]
        for index, kind in enumerate(kinds):
            firsts.setdefault(kind, index)
        chosen = list(firsts.values())
        fewer = type(schema)(schema.op, tuple(_only(arg, chosen, list_kind) for arg in schema.args_schema), schema.kwargs_schema)
        some = expand(mesh, fewer, info, metas and [metas[index] for index in chosen])
        numbers = {kind: number for number, kind in enumerate(firsts)}

        def strategy_of_all(*args: Any) -> Any:
            found = some(*args)
            if not isinstance(found, list_kind) or len(found.children) != len(chosen):
                return every(*args)
            return list_kind([found.children[numbers[kind]] for kind in kinds])

        return strategy_of_all

    return expand_one_of_each


def _kinds_of(strategies: Sequence[Any], meta: Any) -> tuple[Any, ...]:
    """What the sharding of the tensors in one place of the lists follows from; of a strategy that is no single one, itself."""
    alone = [getattr(each, "strategies", None) for each in strategies]
    specs = (found[0].output_spec if found and len(found) == 1 else id(each) for found, each in zip(alone, strategies, strict=True))
    return (*specs, meta)


def _only(arg: Any, chosen: Sequence[int], list_kind: Any) -> Any:
    """Some places of a list; numbers say nothing about sharding, so that one is enough."""
    if isinstance(arg, list_kind):
        return list_kind([arg.children[index] for index in chosen])
    is_numbers = isinstance(arg, (list, tuple)) and all(isinstance(item, (int, float)) for item in arg)
    return arg[:1] if is_numbers else arg


def _asked_once(propagate: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Looks for strided shards once an operator, not once for every tensor in its lists."""
    last: list[Any] = [None, None]

    def propagate_once(strategy: Any, schema: Any) -> None:
        if schema is not last[0]:
            last[:] = schema, _strided(schema.args_spec)
        if last[1].args_spec:
            propagate(strategy, last[1])

    return propagate_once


def _strided(specs: Sequence[Any]) -> SimpleNamespace:
    """One of each kind of strided shards: what is asked of them is whether they all say the same."""
    kind = placement_types._StridedShard
    found = [spec for spec in specs if any(isinstance(placement, kind) for placement in spec.placements)]
    return SimpleNamespace(args_spec=tuple({spec.use_strided_shard_as_shard_order: spec for spec in found}.values()))
