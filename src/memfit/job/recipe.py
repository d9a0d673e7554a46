"""One way to train a model: a flat list of options that a command line can carry, checked when it is made.

::

    dp=8,tp=8,pp=8        pp   stages of a pipeline, the slowest axis: its GPUs are furthest apart
                          dp   GPUs with different data, which share parameters, gradients and optimizer state
                          cp   GPUs with different parts of the same sequences
                          tp   GPUs with different parts of the same layers, the fastest axis
                          ep   GPUs with different experts, among those of dp, cp and tp: no axis of its own
                          replicate   copies of the dp axis, for hybrid strategies

A mistake is refused when a recipe is made, or by ``settled``, when the number of GPUs is known; nothing is built before. The words
and what they cost are rows of ``memfit.choices``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from memfit.choices import AXES, PRECISIONS, SCHEDULES, STRATEGIES, Split, check_choice
from memfit.engines import ENGINES, find_engine
from memfit.errors import ConfigError
from memfit.models import find_model
from memfit.models.config import context_of

DEGREES: Final = ("tp", "pp", "cp", "ep")
"""The axes of a mesh that a recipe has fields for."""

LEFT_OUT: Final = -1
"""Placeholder for a number that depends on others."""

LONGEST_DEFAULT: Final = 8192
"""The default length of sequences is at most this."""

_AXES: Final = ("replicate", "dp", *DEGREES)
_PART: Final = re.compile(r"([a-z]+)=(\d+)")


_MOST_TOKENS: Final = 10**11
"""Larger sizes would overflow 64 bits in a tensor's bytes."""

_MOST_RANK: Final = 1 << 20
"""Of adapters. Beyond the width of a layer a rank adds nothing."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One way to train a model on some GPUs. Raises ``ConfigError`` if it is impossible."""

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
    prefetch: str = "backward_pre"
    """When FSDP gathers the next weights in backward: before or after the gradients of the current ones, or not ahead at all."""
    optimizer: str = "adamw"
    """``adamw`` as torch makes it, which is foreach; ``adamw-fused`` needs no temporaries; ``adamw8bit`` is bitsandbytes'."""
    lora: int = 0
    """The rank of LoRA adapters; 0 trains all weights. Frozen weights have the type of the computation, adapters that of
    ``precision``'s weights."""
    lora_modules: str = "query-value"
    """Which layers have adapters."""
    quantize: str = "none"
    """How frozen weights are kept: ``nf4`` is four bits, as bitsandbytes keeps them; weights that it does not quantize are in
    float32, as PEFT prepares such models."""

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.hf):
            raise ConfigError("name a model (model='llama3-8b'), or give the path of a Hugging Face config (hf='config.json')")
        for name, axis in AXES.items():
            if axis.choices is not None:
                check_choice(name, getattr(self, name))
        if self.model:
            self._set("model", find_model(self.model).name)
        elif not Path(self.hf).is_file():
            raise ConfigError(f"there is no file {self.hf}: --hf takes the path of a Hugging Face config.json")
        if not self.seq:
            self._set("seq", min(self.context, LONGEST_DEFAULT))
        check_numbers(self)
        if isinstance(self.mesh, str):
            self._take_degrees(read_mesh(self.mesh))
        if not isinstance(self.batch, int) or (self.batch < 1 and self.batch != LEFT_OUT):
            raise ConfigError(f"batch takes a whole number of at least 1, not {self.batch!r}")
        self._fill_the_pipeline()
        self._check_sizes()
        check_degrees(self)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _take_degrees(self, axes: dict[str, int]) -> None:
        """Takes the degrees that a mesh names; dp and replicas are settled when the world size is known."""
        for axis in DEGREES:
            said = getattr(self, axis)
            if axis in axes and said not in (1, axes[axis]):
                raise ConfigError(f"the mesh {self.mesh} and {axis}={said} say two things: leave one of them out")
            self._set(axis, axes.get(axis, said))

    def _fill_the_pipeline(self) -> None:
        """Fills in defaults for the schedule and its microbatches."""
        if self.pp > 1:
            self._set("schedule", self.schedule or "1f1b")
            self._set("microbatches", self.microbatches or (self.num_stages if self.batch == LEFT_OUT else self.batch))
        if self.batch == LEFT_OUT:
            self._set("batch", max(1, self.microbatches))

    def _check_sizes(self) -> None:
        if not isinstance(self.seq, int) or self.seq < 1:
            raise ConfigError(f"seq takes a whole number of at least 1, not {self.seq!r}")
        if self.seq > self.context and not self.hf:
            raise ConfigError(f"{self.model} was made for sequences of up to {self.context} tokens, not {self.seq}")
        if self.batch * self.seq > _MOST_TOKENS:
            raise ConfigError(f"batch {self.batch} x seq {self.seq} are more than {_MOST_TOKENS:,} tokens in one step of a GPU")

    def _check_attention(self, precision: str, *, has_bf16: bool) -> None:
        """Context parallelism passes keys and values around for fused attention only. Where none takes the call, torch computes it
        by matrix products and raises that tensors are mixed (seen on an H200 with fused attention switched off)."""
        config, row = find_model(self.model), PRECISIONS[precision]
        is_fused_for_groups = has_bf16 and (row.computes or row.weights) in ("bfloat16", "float16")
        if config.kv_heads != config.heads and not is_fused_for_groups:
            raise ConfigError(
                f"cp={self.cp}: torch's context parallelism needs fused attention, and {config.name}'s {config.heads} heads share "
                f"{config.kv_heads} keys and values, for which there is one only in 16 bits and on GPUs with bfloat16 (Ampere and "
                "later): leave cp out, or take another GPU or precision"
            )

    @property
    def context(self) -> int:
        """The longest sequence that the model supports."""
        return find_model(self.model).context if self.model else context_of(Path(self.hf))

    @property
    def name(self) -> str:
        """The model's name, for display."""
        return self.model or self.hf

    def settled(self, world_size: int, *, has_bf16: bool) -> Recipe:
        """A copy in which everything that depends on the GPUs is filled in."""
        precision = self.precision or ("bf16-mixed" if has_bf16 else "fp16-mixed")
        # In a pipeline, weights that were given back would be gathered again for every microbatch.
        usual = "shard_grad_op" if self.pp > 1 else "full_shard" if self.quantize == "none" else "no_shard"
        strategy = self.strategy or (usual if world_size > 1 or self.is_parallel else "")
        engine = self.engine or (STRATEGIES[strategy].engine if strategy else "")
        if self.is_parallel or isinstance(self.mesh, str):
            check_world(self, world_size)
        if self.cp > 1:
            self._check_attention(precision, has_bf16=has_bf16)
        mesh = hybrid_mesh(self.mesh) if isinstance(self.mesh, str) else self.mesh
        return replace(self, strategy=strategy, engine=engine, precision=precision, mesh=mesh)

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages; 1 without a pipeline."""
        return self.pp * SCHEDULES[self.schedule].stages_a_rank if self.schedule else self.pp

    @property
    def is_parallel(self) -> bool:
        """True if there is parallelism beyond data parallelism."""
        return any(getattr(self, name) > 1 for name in DEGREES) or self.float8 != "none"


RECIPE_FIELDS: Final = tuple(field.name for field in fields(Recipe))


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
    """The (replicas, GPUs that shard) of a mesh; empty if it has no replicas."""
    axes = read_mesh(text)
    return (axes["replicate"], axes.get("dp", 1)) if "replicate" in axes else ()


def dp_of(recipe: Recipe, world_size: int) -> int:
    """GPUs with different data."""
    return world_size // (recipe.tp * recipe.pp * recipe.cp)


# -- what the number of GPUs tells -----------------------------------------------------------------------------------------------


def check_world(recipe: Recipe, world_size: int) -> None:
    """Raises ``ConfigError`` if the mesh does not have as many GPUs as the world."""
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


def check_numbers(recipe: Recipe) -> None:
    for name, least in dict.fromkeys(DEGREES, 1).items() | {("microbatches", 0), ("lora", 0)}:
        if not isinstance(getattr(recipe, name), int) or getattr(recipe, name) < least:
            raise ConfigError(f"{name} takes a whole number of at least 1, not {getattr(recipe, name)!r}")


def check_degrees(recipe: Recipe) -> None:
    """Raises ``ConfigError`` for an impossible recipe, with a way out."""
    for problem in (*_about_pipelines(recipe), *_about_engines(recipe), *_about_adapters(recipe), *_about_models(recipe)):
        raise ConfigError(problem)


def _about_pipelines(recipe: Recipe) -> Iterator[str]:
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


def _uneven(recipe: Recipe) -> str:
    return f"a batch of {recipe.batch} sequences cannot be cut into {recipe.microbatches} microbatches of equal size"


def _about_engines(recipe: Recipe) -> Iterator[str]:
    if not recipe.is_parallel:
        return
    if recipe.engine and not find_engine(recipe.engine).goes_with_others:
        able = " or ".join(name for name, engine in ENGINES.items() if engine.is_applied and engine.goes_with_others)
        yield f"tp, pp, cp, ep and float8 go together with {able}, not with {recipe.engine}: leave --engine out"
    if recipe.strategy and STRATEGIES[recipe.strategy].split is Split.NOTHING:
        yield f"tp, pp, cp, ep and float8 go together with a strategy that shards, not with {recipe.strategy}: leave --strategy out"
    if recipe.offload != "none":
        yield "offloading goes together with data parallelism alone: leave out tp, pp, cp, ep and float8, or --offload"
    if recipe.compile == "model" and recipe.pp > 1:
        yield "a stage of a pipeline is compiled block by block: say --compile blocks"


def _about_adapters(recipe: Recipe) -> Iterator[str]:
    if not recipe.lora:
        if recipe.quantize != "none":
            yield f"weights in {recipe.quantize} cannot be trained: say --lora with the rank of adapters that are, or leave it out"
        return
    if recipe.lora > _MOST_RANK:
        yield f"lora takes a rank of at most {_MOST_RANK:,}, not {recipe.lora}: no layer is as wide"
    if recipe.is_parallel or recipe.offload != "none":
        yield "LoRA goes together with data parallelism: leave out tp, pp, cp, ep, float8 and offload"
    if recipe.engine and recipe.engine not in ("fsdp2", "ddp"):
        yield f"frozen weights beside trained ones go together with fsdp2 or ddp, not with {recipe.engine}: leave --engine out"
    model = find_model(recipe.model) if recipe.model else None
    if model is not None and model.latent is not None and recipe.lora_modules == "query-value":
        yield f"PEFT has no layers that it adapts by default for {model.name}: say --lora-modules all-linear"
    if recipe.quantize != "none" and recipe.strategy and STRATEGIES[recipe.strategy].split is not Split.NOTHING:
        yield f"weights in {recipe.quantize} are not sharded here: say --strategy no_shard"
    if recipe.quantize != "none" and model is not None and model.num_experts:
        yield f"the experts of {model.name} are one tensor a layer, which bitsandbytes does not quantize: leave out --quantize"


def _about_models(recipe: Recipe) -> Iterator[str]:
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
