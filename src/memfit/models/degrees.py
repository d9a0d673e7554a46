"""How many GPUs share what: the axes of a mesh, and what a model cannot do with them.

::

    dp=8,tp=8,pp=8        pp   stages of a pipeline, the slowest axis: its GPUs are furthest apart
                          dp   GPUs with different data, which share parameters, gradients and optimizer state
                          cp   GPUs with different parts of the same sequences
                          tp   GPUs with different parts of the same layers, the fastest axis
                          ep   GPUs with different experts, among those of dp, cp and tp: no axis of its own
                          replicate   copies of the dp axis, for hybrid strategies

A mistake is refused when a recipe is made, or when the number of GPUs is known; nothing is built before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from memfit.choices import PRECISIONS, SCHEDULES, STRATEGIES, Split
from memfit.errors import ConfigError
from memfit.models.catalog import find_model

DEGREES: Final = ("tp", "pp", "cp", "ep")
"""The axes that a recipe has fields for."""

LEFT_OUT: Final = -1
"""A number that depends on others, until it is known."""

_AXES: Final = ("replicate", "dp", *DEGREES)
_PART: Final = re.compile(r"([a-z]+)=(\d+)")


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """The part of a recipe that says how many GPUs share what; and what must go together with it."""

    model: str = ""
    """A name that memfit knows: ``llama3-8b``."""
    hf: str = ""
    """Or the path of a Hugging Face ``config.json``."""
    strategy: str = ""
    """Left out: ``full_shard`` on several GPUs, none on one."""
    engine: str = ""
    """Left out: FSDP2, or DDP for ``no_shard``."""
    mesh: tuple[int, ...] | str = ()
    """``"dp=8,tp=8,pp=8"``: the GPUs on each axis; or (replicas, GPUs that shard) for hybrid strategies. Left out: GPUs of a node
    shard."""
    tp: int = 1
    """GPUs that share every layer."""
    pp: int = 1
    """GPUs in a row that share the layers out."""
    cp: int = 1
    """GPUs that share every sequence."""
    ep: int = 1
    """GPUs that share the experts, among those that share data, sequences and layers."""
    schedule: str = ""
    """Left out: ``1f1b`` in pipelines."""
    microbatches: int = 0
    """Parts of a batch that follow one another: through a pipeline, or, without one, forward and backward before the optimizer's
    step (gradient accumulation). Left out: the batch is not cut; in a pipeline, one for each sequence of the batch, and without a
    batch either, as many as it has stages."""
    batch: int = LEFT_OUT
    """Sequences per GPU and step; with tensor, context or pipeline parallelism, of all GPUs that share them. Left out: 1, or one
    for each microbatch."""
    seq: int = 0
    """Tokens per sequence. Left out: the model's context, but no more than 8192."""
    precision: str = ""
    """Left out: ``bf16-mixed``, or ``fp16-mixed`` on a GPU without bfloat16: weights in float32, computed in 16 bits, by FSDP's
    mixed precision or by autocast. ``bf16``: everything in bfloat16, optimizer state too. ``fp32``: everything in float32."""
    checkpointing: str = "none"
    """What each block's backward computes again: nothing, all but matrix products and attention (``selective``), or all."""
    compile: str = "none"
    """``torch.compile`` for each block (``blocks``), for the whole model (``model``), or not at all."""
    float8: str = "none"
    """Matrix products of the linear layers in 8 bits, as torchao does it."""
    offload: str = "none"
    """``params``: sharded parameters, gradients and optimizer state in host memory."""

    @property
    def num_stages(self) -> int:
        """Of the pipeline; 1 where there is none."""
        return self.pp * SCHEDULES[self.schedule].stages_a_rank if self.schedule else self.pp

    @property
    def is_parallel(self) -> bool:
        """Is there anything but data parallelism?"""
        return any(getattr(self, name) > 1 for name in DEGREES) or self.float8 != "none"


def read_mesh(text: str) -> dict[str, int]:
    """``dp=8,tp=8,pp=8``."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip().lower())
        if match is None or match[1] not in _AXES or match[1] in found or int(match[2]) < 1:
            raise ConfigError(f"cannot read {text!r} as a mesh: write it like dp=8,tp=8,pp=8, with {', '.join(_AXES)}")
        found[match[1]] = int(match[2])
    return found


def hybrid_mesh(text: str) -> tuple[int, ...]:
    """What a mesh says about replicas: (replicas, GPUs that shard), or nothing."""
    axes = read_mesh(text)
    return (axes["replicate"], axes.get("dp", 1)) if "replicate" in axes else ()


def dp_of(recipe: Degrees, world_size: int) -> int:
    """GPUs with different data."""
    return world_size // (recipe.tp * recipe.pp * recipe.cp)


# -- what the number of GPUs tells -----------------------------------------------------------------------------------------------


def check_world(recipe: Degrees, world_size: int) -> None:
    """Does the mesh have as many GPUs as the world?"""
    shared = recipe.tp * recipe.pp * recipe.cp
    if world_size % shared:
        said = " x ".join(f"{name} {getattr(recipe, name)}" for name in ("pp", "cp", "tp") if getattr(recipe, name) > 1)
        raise ConfigError(f"{said}: that takes a multiple of {shared} GPUs, but the world has {world_size}")
    axes = read_mesh(recipe.mesh) if isinstance(recipe.mesh, str) else {}
    if axes:
        named = axes.get("dp", 1) * axes.get("replicate", 1) * shared
        if "dp" in axes and named != world_size:
            raise ConfigError(f"the mesh {recipe.mesh} has {named} GPUs, but the world has {world_size}: say --world-size {named}")
    if isinstance(recipe.mesh, tuple) and recipe.mesh and recipe.is_parallel:
        shape = recipe.mesh
        if len(shape) != 2 or shape[0] * shape[1] != dp_of(recipe, world_size):
            raise ConfigError(
                f"the mesh {'x'.join(map(str, shape))} must share out the {dp_of(recipe, world_size)} GPUs that tp, pp and cp "
                "leave: replicas x GPUs that shard"
            )
    mixed = not recipe.precision or PRECISIONS[recipe.precision].computes
    if recipe.pp > 1 and not SCHEDULES[recipe.schedule].shards and (mixed or world_size > recipe.tp * recipe.pp):
        raise ConfigError(
            f"{recipe.schedule} loses gradients where stages are sharded or compute in mixed precision: use another one, or say "
            f"--precision bf16 --world-size {recipe.tp * recipe.pp}"
        )
    sharing = world_size // recipe.pp
    if recipe.ep > 1 and sharing % recipe.ep:
        raise ConfigError(f"ep={recipe.ep} must divide the {sharing} GPUs of a stage of the pipeline")


# -- what the model tells ----------------------------------------------------------------------------------------------------------


def check_numbers(recipe: Degrees) -> None:
    for name, least in dict.fromkeys(DEGREES, 1).items() | {("microbatches", 0)}:
        if not isinstance(getattr(recipe, name), int) or getattr(recipe, name) < least:
            raise ConfigError(f"{name} takes a whole number of at least 1, not {getattr(recipe, name)!r}")


def check_degrees(recipe: Degrees) -> None:
    """Refuses what cannot be, with a way out."""
    for problem in (*_about_pipelines(recipe), *_about_engines(recipe), *_about_models(recipe)):
        raise ConfigError(problem)


def _about_pipelines(recipe: Degrees) -> Iterator[str]:
    if recipe.pp == 1:
        if recipe.schedule:
            yield "a schedule is a pipeline's: say --pp with the number of its stages, or leave it out"
        if recipe.microbatches and recipe.batch % recipe.microbatches:
            yield _uneven(recipe)
        return
    if recipe.batch % recipe.microbatches:
        yield _uneven(recipe)
    if SCHEDULES[recipe.schedule].stages_a_rank > 1 and recipe.microbatches % max(1, recipe.microbatches // recipe.pp):
        yield f"{recipe.schedule} takes a multiple of pp={recipe.pp} microbatches, not {recipe.microbatches}"
    if SCHEDULES[recipe.schedule].is_v and recipe.microbatches < recipe.num_stages:
        yield f"{recipe.schedule} takes at least {recipe.num_stages} microbatches, one for each stage, not {recipe.microbatches}"
    if recipe.precision and PRECISIONS[recipe.precision].scales_loss:
        yield f"{recipe.precision} scales the loss, which a pipeline's schedule does not: use bf16-mixed"


def _uneven(recipe: Degrees) -> str:
    return f"a batch of {recipe.batch} sequences cannot be cut into {recipe.microbatches} microbatches of equal size"


def _about_engines(recipe: Degrees) -> Iterator[str]:
    if not recipe.is_parallel:
        return
    if recipe.engine not in ("", "fsdp2"):
        yield f"tp, pp, cp, ep and float8 go together with fsdp2, not with {recipe.engine}: leave --engine out"
    if recipe.strategy and STRATEGIES[recipe.strategy].split is Split.NOTHING:
        yield f"tp, pp, cp, ep and float8 go together with a strategy that shards, not with {recipe.strategy}: leave --strategy out"
    if recipe.offload != "none":
        yield "offloading goes together with data parallelism alone: leave out tp, pp, cp, ep and float8, or --offload"
    if recipe.compile == "model" and recipe.pp > 1:
        yield "a stage of a pipeline is compiled block by block: say --compile blocks"


def _about_models(recipe: Degrees) -> Iterator[str]:
    if not recipe.is_parallel:
        return
    if recipe.hf:
        yield "memfit knows how to split its own models: for a Hugging Face config leave out tp, pp, cp, ep and float8"
        return
    model = find_model(recipe.model)
    if recipe.tp > 1:
        for what, size in {
            "heads": model.heads,
            "heads of keys and values": model.kv_heads,
            "tokens a sequence": recipe.seq,
        }.items():
            if size % recipe.tp:
                yield f"{model.name} has {size} {what}, which tp={recipe.tp} does not divide"
    if model.tied and (recipe.tp > 1 or recipe.pp > 1):
        yield f"the head of {model.name} is its embedding: it cannot be split by tp, nor be on two stages of a pipeline"
    if model.gpt2 and (recipe.tp > 1 or recipe.cp > 1):
        yield f"{model.name} learns its positions, and drops parts of its attention: tp and cp need a model with rotary positions"
    if recipe.pp > 1 and model.layers + 2 < 2 * recipe.num_stages:
        yield (
            f"{model.name} has {model.layers} layers, too few for {recipe.num_stages} stages of a pipeline: the first and the last "
            "have the embedding and the head beside at least one layer"
        )
    if recipe.cp > 1 and recipe.seq % (2 * recipe.cp * recipe.tp):
        parts = 2 * recipe.cp * recipe.tp
        yield f"cp={recipe.cp} cuts a sequence into {parts} equal parts, two for each GPU: {recipe.seq} tokens cannot be"
    if recipe.cp > 1 and model.latent is not None:
        yield f"{model.name} has values of another size than its keys, which context parallelism does not take: leave out cp"
    if recipe.ep > 1 and (not model.num_experts or model.num_experts % recipe.ep):
        has = f"has {model.num_experts} experts, which ep={recipe.ep} does not divide" if model.num_experts else "has no experts"
        yield f"{model.name} {has}: leave out ep"
    if recipe.ep > 1 and recipe.ep % recipe.tp:
        yield f"the GPUs that share experts are those of whole tp groups: ep={recipe.ep} is no multiple of tp={recipe.tp}"
