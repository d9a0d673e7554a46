"""One layer, one pass: the kernels that must run, at the clock's own prices.

::

    products, attention          at the clock's prices for their shapes; a ring of GPUs that shares sequences runs a part at a time
    experts                      one grouped product for all of a GPU's; rows that are looked up, weighted and added up by token
    what is done to every        in eager code each operator by itself; in compiled code the least bytes that go from one product to
    element                      the next, however the compiler fuses what is between
    collectives                  of tensor parallelism, with the copies that bring what was gathered into order, and of experts

Only what is known to run is counted, so that the sum is below what a prediction says: ``tests/plan/search/test_bounds.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from memfit.hardware import Gpu
from memfit.models import ModelConfig, find_model
from memfit.plan.search.bounds.shapes import LayerShape, Pass, Product, layer_shape
from memfit.plan.search.bounds.sharing import seconds_of_calls
from memfit.timing import Interconnect, rates_of
from memfit.timing.collectives import all_gather_seconds, all_to_all_seconds, reduce_scatter_seconds
from memfit.timing.operators.attention import BACKWARD_FLOPS, price_attention
from memfit.timing.operators.calls import Call, Operand
from memfit.timing.operators.prices import price
from memfit.timing.operators.products import product_cost

Kernel = Literal["cudnn", "flash"]

"""Of the GPU's peak, for any kernel and any size of a head."""


@dataclass(frozen=True, kw_only=True)
class LayerSeconds:
    """One layer, one pass."""

    forward: float
    backward: float
    recompute: float
    """What is computed again, by the kind of checkpointing."""
    experts_backward: float = 0.0
    """Of backward, the experts' own part, which needs their weights."""
    experts_again: float = 0.0
    """The same of what is computed again."""


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """All that decides how long a layer takes."""

    model: str
    has_experts: bool
    part: Pass
    ep: int
    """GPUs that share the experts."""
    dtype: str
    """Of products."""
    compile: str
    checkpointing: str
    attention: Kernel
    is_frozen: bool = False
    """True if its weights are not trained: backward computes the gradients of what it was given, and none of theirs."""


@lru_cache(maxsize=4096)
def layer_seconds(kind: LayerKind, chip: Gpu, links: Interconnect) -> LayerSeconds:
    """Of a layer of this kind."""
    config, part = find_model(kind.model), kind.part
    shape = layer_shape(config, config.layers - 1 if kind.has_experts else 0, part)
    of_all = shape.products[:-_NUM_OF_A_GATED_MLP] if kind.has_experts else shape.products
    products = [product_seconds(product, chip, kind.dtype, part.item_bytes) for product in of_all]
    gradients = [each for product in of_all for each in product.backward[: 1 if kind.is_frozen else 2]]
    backward = [product_seconds(each, chip, kind.dtype, part.item_bytes) for each in gradients]
    grouped = _grouped(config, kind, chip) if kind.has_experts else []
    products, backward = [*products, *grouped], [*backward, *grouped, *([] if kind.is_frozen else grouped)]
    attention, attention_backward = _attention(shape, part, chip, kind)
    elements = _fused(shape, part, chip) if kind.compile != "none" else _in_eager_code(shape, part, chip, config.qk_norm)
    shared = _shared(shape, part, chip, links, kind)
    if kind.has_experts:
        elements = _with_routing(elements, config, kind, chip)
    sent = _sent_to_experts(config, kind, links)
    # What experts gave first is needed going back, and no policy keeps it: rows are sent to them again.
    again = grouped[0] + sent if kind.has_experts and kind.checkpointing != "none" else 0.0
    sorting, sorting_back = _sorted_by_expert(config, kind, chip)
    recompute = _recompute(kind, products, attention, elements, shared) + (sent if kind.checkpointing == "full" else 0.0)
    return LayerSeconds(
        forward=sum(products) + attention + elements.forward + shared.forward + 2 * sent,
        backward=sum(backward) + attention_backward + elements.backward + shared.backward + 2 * sent,
        recompute=max(again, recompute),
        experts_backward=(1 if kind.is_frozen else 2) * sum(grouped) + 2 * sent + sorting_back,
        experts_again=again + sorting if again else 0.0,
    )


def _recompute(kind: LayerKind, products: Sequence[float], attention: float, elements: LayerSeconds, shared: LayerSeconds) -> float:
    if kind.checkpointing == "none":
        return 0.0
    is_full = kind.checkpointing == "full"
    if kind.compile == "none":
        if is_full:  # the last product is left out: its result is not needed
            return sum(products[:-1]) + attention + elements.recompute + shared.recompute
        return 0.0 if kind.has_experts else elements.recompute
    if kind.compile == "model":  # the compiler sees policies, and what is not needed
        return sum(products[:-1]) + attention if is_full else 0.0
    # A policy sees attention in a block that is compiled by itself, and no other operator of it; and the block runs to its end.
    return sum(products) + elements.recompute + (attention + shared.recompute if is_full else 0.0)


def product_seconds(product: Product, chip: Gpu, dtype: str, item_bytes: int) -> float:
    """At the clock's price; where rows do not begin at good addresses the clock's is higher. Of the smaller the bytes are those of
    16 bits."""
    if not product.rows * product.inner * product.columns:
        return 0.0
    moved = product.rows * product.inner + product.inner * product.columns + product.rows * product.columns
    size = 1 if dtype == "f8" else item_bytes
    sizes = (product.rows, product.columns, product.inner)
    return product_cost("mm", chip, rates_of(chip), dtype, 1, *sizes, float(moved * size)).seconds


# -- experts ----------------------------------------------------------------------------------------------------------------------

_NUM_OF_A_GATED_MLP: Final = 3
"""Products."""


def _rows_to_experts(config: ModelConfig, kind: LayerKind) -> int:
    """Each GPU of tensor parallelism sends its own part of the sequence; where experts are shared, as much arrives as is sent."""
    return kind.part.tokens // kind.part.tp * config.experts_per_token


def _grouped(config: ModelConfig, kind: LayerKind, chip: Gpu) -> list[float]:
    """One product for all experts of a GPU, that of gate and up and that of down; each way of its backward costs as much: it reads
    or writes the same."""
    rows, experts = _rows_to_experts(config, kind), config.num_experts // kind.ep
    dtype = kind.dtype if kind.dtype in ("bf16", "f16") else "f32"

    def seconds(inner: int, columns: int) -> float:
        weights, ends = Operand(dtype, (experts, inner, columns)), Operand("i32", (experts,))
        given, made = Operand(dtype, (rows, inner)), Operand(dtype, (rows, columns))
        return price(Call("_grouped_mm", (given, weights, ends), (made,)), chip).seconds

    return [seconds(config.dim, 2 * config.hidden), seconds(config.hidden, config.dim)]


def _sorted_by_expert(config: ModelConfig, kind: LayerKind, chip: Gpu) -> tuple[float, float]:
    """Rows that arrived at the GPU of their expert, forward and going back: operator by operator, in compiled layers too, since a
    compiler cannot know how many they are."""
    if not kind.has_experts or kind.ep == 1:
        return 0.0, 0.0
    rows, dtype = _rows_to_experts(config, kind), "bf16" if kind.part.item_bytes == 2 else "f32"
    spread, place = Operand(dtype, (rows, config.dim)), Operand("i64", (rows,))
    hidden, both = Operand(dtype, (rows, config.hidden)), Operand(dtype, (rows, 2 * config.hidden))
    forward = [Call("index", (spread, (place,)), (spread,)), Call("silu", (hidden,), (hidden,)), _of_two("mul", hidden)]
    put_back = Call("index_put", (spread, (place,), spread, True), (spread,))
    gate = [
        *[_of_two("mul", hidden)] * 2,
        Call("silu_backward", (hidden, hidden), (hidden,)),
        Call("cat", ((hidden,) * 2,), (both,)),
    ]
    return seconds_of_calls(forward, chip), seconds_of_calls([*[put_back] * 2, *gate], chip)


def _with_routing(elements: LayerSeconds, config: ModelConfig, kind: LayerKind, chip: Gpu) -> LayerSeconds:
    """Rows are looked up for each expert that a token goes to; what experts give is weighted, and added up by token."""
    rows, tokens = _rows_to_experts(config, kind), kind.part.tokens // kind.part.tp
    dtype = "bf16" if kind.part.item_bytes == 2 else "f32"
    spread, stream = Operand(dtype, (rows, config.dim)), Operand(dtype, (tokens, config.dim))
    if kind.compile != "none":
        # Both are still written for products to read, and what products give is read; going back the same.
        moved = 3 * spread.size_bytes / (chip.memory_bandwidth * rates_of(chip).compiled.memory_share)
        return replace(elements, forward=elements.forward + moved, backward=elements.backward + moved)
    place, weight = Operand("i64", (rows,)), Operand(dtype, (rows, 1))
    looked_up = Call("index", (stream, (place,)), (spread,))
    weighted = Call("mul", (spread, weight), (spread,))
    forward = [looked_up, weighted, Call("index_add", (stream, 0, place, spread), (stream,))]
    backward = [
        Call("index_select", (stream, 0, place), (spread,)),
        *(weighted, _of_two("mul", spread)),
        Call("index_put", (stream, (place,), spread, True), (stream,)),
        # The halves of what gate and up gave together are put beside one another.
        Call("cat", ((Operand(dtype, (rows, config.hidden)),) * 2,), (Operand(dtype, (rows, 2 * config.hidden)),)),
    ]
    if kind.ep > 1:  # those that arrived are sorted by expert, and sorted back
        sorted_by_expert = Call("index", (spread, (place,)), (spread,))
        forward += [sorted_by_expert] * 2
        backward += [Call("index_put", (spread, (place,), spread, True), (spread,))] * 2
    again = seconds_of_calls([looked_up], chip)
    return LayerSeconds(
        forward=elements.forward + seconds_of_calls(forward, chip),
        backward=elements.backward + seconds_of_calls(backward, chip),
        recompute=elements.recompute + (again if kind.checkpointing == "full" else 0.0),
    )


# -- attention --------------------------------------------------------------------------------------------------------------------


def _attention(shape: LayerShape, part: Pass, chip: Gpu, kind: LayerKind) -> tuple[float, float]:
    """Forward and backward, by the fastest kernel that the GPU has. In a ring, the first turn is about a GPU's own keys, and each
    of the others about half of all pairs: no position looks ahead."""
    dtype = "bf16" if kind.dtype in ("f8", "tf32") else kind.dtype
    if kind.dtype == "tf32":
        flops = 2.0 * part.sequences * shape.heads * (part.seq / part.cp) * part.seq * 2 * shape.head_dim / 2
        cudnn = rates_of(chip).attention.kernels["cudnn"]
        forward = flops / (chip.product_flops(dtype) * max(*cudnn.forward, *cudnn.backward))
        return forward, BACKWARD_FLOPS * forward

    def turn(queries: int, keys: int, is_causal: bool) -> tuple[float, float]:
        query = Operand(dtype, (part.sequences, shape.heads, queries, shape.head_dim))
        key = Operand(dtype, (part.sequences, min(shape.heads, shape.kv_heads), keys, shape.head_dim))
        return _attention_call(query, key, is_causal, chip, kind.attention)

    own = part.seq // part.cp
    turns = [turn(own, own, True)]
    if part.cp > 1:
        ahead, behind = turn(own // 2, own, False), turn(own, own // 2, False)
        turns += [(min(ahead[0], behind[0]), min(ahead[1], behind[1]))] * (part.cp - 1)
    merging = _merging(shape, part, chip) if part.cp > 1 and kind.compile == "none" else (0.0, 0.0)
    return sum(each[0] for each in turns) + merging[0], sum(each[1] for each in turns) + merging[1]


def _attention_call(query: Operand, key: Operand, is_causal: bool, chip: Gpu, kernel: Kernel) -> tuple[float, float]:
    name = f"_scaled_dot_product_{kernel}_attention"
    if kernel == "flash":
        given: tuple[object, ...] = (query, key, key, 0.0, is_causal)
        back: tuple[object, ...] = (query, query, key, key, query, *(None,) * 5, 0.0, is_causal)
    else:
        given = (query, key, key, None, True, 0.0, is_causal)
        back = (query, query, key, key, query, *(None,) * 4, 0, 0, 0, 0, 0.0, is_causal)
    rates = rates_of(chip)
    forward = price_attention(Call(name, given, ()), chip, rates).seconds  # type: ignore[arg-type]
    return forward, price_attention(Call(f"{name}_backward", back, ()), chip, rates).seconds  # type: ignore[arg-type]


def _merging(shape: LayerShape, part: Pass, chip: Gpu) -> tuple[float, float]:
    """What each turn of a ring gives is added to what those before it gave, in float32: at least for half of the queries."""
    whole, half = (Operand("f32", (part.sequences, shape.heads, part.seq // part.cp // parts, shape.head_dim)) for parts in (1, 2))
    weights = Operand("f32", (*half.shape[:-1], 1))
    short = Operand("bf16", half.shape)
    turn = [
        Call("_to_copy", (short,), (half,)),
        *[Call("sub", (half, half), (half,))] * 2,
        Call("mul", (weights, half), (half,)),
    ]
    forward = seconds_of_calls([Call("_to_copy", (Operand("bf16", whole.shape),), (whole,))], chip) + (
        part.cp - 1
    ) * seconds_of_calls(turn, chip)
    backward = part.cp * seconds_of_calls([Call("add_", (half, short), (half,))], chip)
    narrowed = seconds_of_calls([Call("_to_copy", (whole,), (Operand("bf16", whole.shape),))], chip)
    return forward + narrowed, backward + narrowed


# -- what is done to every element ------------------------------------------------------------------------------------------------


def _in_eager_code(shape: LayerShape, part: Pass, chip: Gpu, has_normed_heads: bool) -> LayerSeconds:
    """Operator by operator, as the transformer in ``memfit.models`` has them."""
    kind = "bf16" if part.item_bytes == 2 else "f32"
    stream, gathered, hidden = (Operand(kind, (numbers,)) for numbers in (shape.stream, shape.gathered, shape.hidden))
    silu = Call("silu", (hidden,), (hidden,))
    gate = [silu, _of_two("mul", hidden)] if shape.has_gate else [Call("gelu", (hidden,), (hidden,))]
    gate_backward = [Call("silu_backward", (hidden, hidden), (hidden,)), *[_of_two("mul", hidden)] * 2]
    if not shape.has_gate:
        gate_backward = [Call("gelu_backward", (hidden, hidden), (hidden,))]
    name = "_fused_rms_norm" if shape.has_gate else "native_layer_norm"
    norms = [Call(name, (stream,), (stream,))] * 2
    norms_backward = [Call(f"{name}_backward", (stream, stream), (stream,))] * 2
    turned, turned_back = _turning(shape, part, kind, has_normed_heads) if shape.is_turned else ([], [])
    # Gradients of what several products were given, and of what also went past attention and MLP, are added up.
    added = [_of_two("add", gathered)] * shape.num_sums + [_of_two("add", stream)] * 2
    forward = [*norms, *turned, *gate]
    return LayerSeconds(
        forward=seconds_of_calls([*forward, *[_of_two("add", stream)] * 2], chip),
        backward=seconds_of_calls([*gate_backward, *norms_backward, *turned_back, *added], chip),
        recompute=seconds_of_calls([*forward, _of_two("add", stream)], chip),
    )


def _of_two(name: str, given: Operand) -> Call:
    return Call(name, (given, given), (given,))


def _turning(shape: LayerShape, part: Pass, kind: str, has_normed_heads: bool) -> tuple[list[Call], list[Call]]:
    """Queries and keys by their position: two products, a sign, a copy of both halves and a sum; the same again going back."""
    tokens = part.seq // part.cp
    forward, backward = [], []
    for heads in (shape.heads, shape.kv_heads):
        size = (part.sequences, heads, tokens, shape.head_dim)
        # Heads lie beside one another in what a product gives; a norm puts them in order.
        steps = None if has_normed_heads else (tokens * heads * shape.head_dim, shape.head_dim, heads * shape.head_dim, 1)
        given, plain = Operand(kind, size, steps), Operand(kind, size)
        half = Operand(kind, (*size[:-1], shape.head_dim // 2), (tokens * heads * shape.head_dim, *_steps(given)[1:]))
        angles = Operand(kind, (tokens, shape.head_dim))
        signed = Call("neg", (half,), (Operand(kind, half.shape),))
        halves = Call("cat", ((half, half),), (plain,))
        forward += [Call("mul", (given, angles), (given,)), Call("mul", (plain, angles), (plain,)), signed, halves]
        forward.append(Call("add", (given, plain), (given,)))
        backward += [*[Call("mul", (plain, angles), (plain,))] * 2, signed, halves, _of_two("add", plain)]
    return forward, backward


def _steps(given: Operand) -> tuple[int, ...]:
    if given.stride is not None:
        return given.stride
    _, heads, tokens, width = given.shape
    return heads * tokens * width, tokens * width, width, 1


def _fused(shape: LayerShape, part: Pass, chip: Gpu) -> LayerSeconds:
    """Products read what is in memory, so that something has to write it there: what goes into the MLP's last product, out of the
    norms and the sums, queries and keys that were turned, and the gradients of all that. A kernel that was compiled reads and
    writes each once, however much is fused into it."""

    def moving(numbers: int) -> float:
        return numbers * part.item_bytes / (chip.memory_bandwidth * rates_of(chip).compiled.memory_share)

    turned = 2 * (shape.queries + shape.keys) if shape.is_turned else 0
    # Both norms read and write; the second one and the last sum also read what a product gave.
    forward = moving(shape.hidden * (3 if shape.has_gate else 2) + shape.stream * 8 + turned)
    # Gradients of what went past attention and MLP are read by both norms, too.
    backward = moving(shape.hidden * (5 if shape.has_gate else 3) + shape.stream * 8 + turned)
    return LayerSeconds(forward=forward, backward=backward, recompute=forward - moving(shape.stream * 3))


# -- tensor and expert parallelism ------------------------------------------------------------------------------------------------


def _shared(shape: LayerShape, part: Pass, chip: Gpu, links: Interconnect, kind: LayerKind) -> LayerSeconds:
    """Attention and MLP each gather the sequence and scatter their result, and wait for it; experts are given each GPU's own part
    of it. What comes back lies GPU by GPU, and is put in order."""
    if part.tp == 1:
        return LayerSeconds(forward=0.0, backward=0.0, recompute=0.0)
    size = float(shape.gathered * part.item_bytes)
    gather, scatter = all_gather_seconds(size, part.tp, links), reduce_scatter_seconds(size, part.tp, links)
    if kind.compile == "none":
        dtype = "bf16" if part.item_bytes == 2 else "f32"
        whole = Operand(dtype, (shape.gathered,))
        in_order = seconds_of_calls([Call("cat", ((whole,),), (whole,))], chip)
        gather, scatter = gather + in_order, scatter + in_order
    times = 1 if kind.has_experts else 2
    return LayerSeconds(
        forward=times * (gather + scatter), backward=times * (gather + scatter), recompute=times * gather + (times - 1) * scatter
    )


def _sent_to_experts(config: ModelConfig, kind: LayerKind, links: Interconnect) -> float:
    """Tokens go to the GPUs of their experts, and what those give comes back: each once forward, and once backward."""
    if not kind.has_experts or kind.ep == 1:
        return 0.0
    rows = _rows_to_experts(config, kind)
    return all_to_all_seconds(float(rows * config.dim * kind.part.item_bytes), kind.ep, links)
