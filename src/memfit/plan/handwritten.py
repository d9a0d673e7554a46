"""A plan as handwritten code that uses only torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from memfit.choices import FLOAT8S, KEPT_OPERATORS, OPTIMIZERS, PRECISIONS, STRATEGIES, Split, Strategy
from memfit.hardware import GPUS_PER_NODE
from memfit.plan.policy import CheckpointingPolicy, UnitPolicy

SELECTIVE_AROUND_EXPERTS: Final = (
    "Torch 2.13's own selective contexts stop in backward around experts that FSDP2 shards on a mesh of their own "
    "(github.com/pytorch/pytorch/pull/196862). Those of memfit.parallel and memfit.fsdp do not."
)
"""Written beside configurations that this is so for."""

_HEAD: Final = '''\
import contextlib
import functools

from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


@contextlib.contextmanager
def counted_once(unit, mode):
    """Norms count in forward; what they count when they are computed again is thrown away."""
    norms = [module for module in unit.modules() if getattr(module, "track_running_stats", False) and module.training]
    own = [dict(norm._buffers) for norm in norms]
    for norm in norms:
        norm._buffers.update((name, tensor.clone()) for name, tensor in norm._buffers.items() if tensor is not None)
    try:
        with mode:
            yield
    finally:
        for norm, buffers in zip(norms, own):
            norm._buffers.update(buffers)


def keeping(**calls):
    """Keeps the outputs of these calls of operators, counted in a unit's forward; everything else is computed again."""

    def contexts():
        counts = {}

        def policy(ctx, op, *args, **kwargs):
            key = (str(op), ctx.is_recompute)
            counts[key] = counts.get(key, -1) + 1
            is_kept = counts[key] in calls.get(str(op), ())
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy, allow_cache_entry_mutation=True)

    return contexts


def compute_again(unit, modes=lambda: (contextlib.nullcontext(), contextlib.nullcontext())):
    def contexts():
        forward, again = modes()
        return forward, counted_once(unit, again)

    unit.forward = functools.partial(checkpoint, unit.forward, use_reentrant=False, context_fn=contexts)

'''


def is_of_model(recipe: Mapping[str, Any]) -> bool:
    """Does a recipe train a model that memfit builds? If not, it has the arguments of a function of the user's."""
    return bool(recipe.get("model") or recipe.get("hf"))


CHANGES_MODEL: Final[dict[str, tuple[Any, ...]]] = {
    "strategy": (None, ""),
    "tp": (None, 1),
    "pp": (None, 1),
    "cp": (None, 1),
    "ep": (None, 1),
    "microbatches": (None, 0, 1),
    "compile": (None, "none"),
    "float8": (None, "none"),
    "offload": (None, "none"),
    "precision": (None, "", *(row.name for row in PRECISIONS.values() if row.weights == "float32")),
}
"""The words of a recipe that ask for more than checkpointing, and with which values they do not."""


def write_code(policy: CheckpointingPolicy | None, recipe: Mapping[str, Any] | None = None, world_size: int = 1) -> str:
    """Python that does to ``model`` what the recipe and the policy say.

    Offloaded activations stay on the GPU, and what cuts the model itself (tp, pp, cp, ep) is named in a comment: both take more
    than a few lines.
    """
    if recipe and not is_of_model(recipe):
        arguments = ", ".join(f"{name}={value!r}" for name, value in recipe.items())
        return f"# Call your function with {_comment(arguments)}.\n" + write_code(policy)
    checkpointing = "".join("\n" + _group(group) for group in policy.groups) if policy is not None else ""
    if not recipe:
        return _HEAD + checkpointing if checkpointing else "# Nothing is computed again: train the model as it is.\n"
    parts = [_summary(recipe, world_size), *_before_sharding(recipe)]
    parts.append(_HEAD + checkpointing if checkpointing else _checkpointed_blocks(recipe))
    parts += [_sharded(recipe, world_size), "model.compile()\n" if recipe.get("compile") == "model" else "", _loop(recipe)]
    return "\n".join(filter(None, parts))


def _comment(text: object) -> str:
    """Text on one line: a plan file may come from a stranger."""
    return " ".join(str(text).split())


def _number(recipe: Mapping[str, Any], name: str) -> int:
    value = recipe.get(name)
    return value if isinstance(value, int) and value > 0 else 1


def _summary(recipe: Mapping[str, Any], world_size: int) -> str:
    start = f"torchrun --nproc-per-node {min(world_size, GPUS_PER_NODE)}" if world_size > 1 else "python"
    nodes = f" --nnodes {-(-world_size // GPUS_PER_NODE)}" if world_size > GPUS_PER_NODE else ""
    gpus = "one GPU" if world_size == 1 else f"{world_size} GPUs"
    lines = [f"# {recipe.get('model') or recipe.get('hf')} on {gpus}, started with {start}{nodes} train.py"]
    cuts = {name: recipe[name] for name in ("tp", "pp", "cp", "ep") if _number(recipe, name) > 1}
    if cuts:
        words = ", ".join(f"{name}={size}" for name, size in (cuts | {"schedule": recipe.get("schedule") or "none"}).items())
        lines.append(
            f"# {words}: NOT written here. These cut the model itself: torch.distributed.tensor.parallel (tp), "
            "torch.distributed.pipelining (pp),"
        )
        lines.append("# context_parallel of torch.distributed.tensor.experimental (cp), a mesh of its own for experts (ep).")
        lines.append("# What follows shards over the GPUs that are left for data.")
    if _number(recipe, "ep") > 1 and recipe.get("checkpointing") == "selective":
        lines.append(f"# {SELECTIVE_AROUND_EXPERTS}")
    return "".join(f"{_comment(line)}\n" for line in lines)


def _before_sharding(recipe: Mapping[str, Any]) -> Iterator[str]:
    yield "import functools\n\nimport torch\n\nblocks = [*model.layers]  # the repeated blocks, as your model calls them\n"
    precision = PRECISIONS.get(str(recipe.get("precision")))
    if precision is not None and precision.weights != "float32":
        yield f"model.to(torch.{precision.weights})\n"
    float8 = FLOAT8S.get(str(recipe.get("float8")))
    if float8 is not None and float8.recipe:
        yield (
            "from torchao.float8 import Float8LinearConfig, convert_to_float8_training\n\n"
            f'convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("{float8.recipe}"))\n'
        )
    if recipe.get("compile") == "blocks":
        yield "for block in blocks:\n    block.compile()\n"


def _checkpointed_blocks(recipe: Mapping[str, Any]) -> str:
    how = recipe.get("checkpointing", "none")
    if how not in ("full", "selective"):
        return "# Nothing is computed again.\n"
    if how == "full":
        return f"from torch.utils.checkpoint import checkpoint\n\n{_BLOCKS_AGAIN})\n"
    kept = "".join(f"    torch.ops.{operator},\n" for operator in KEPT_OPERATORS)
    return (
        "from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts\n\n"
        f"slow = [  # their outputs are kept, everything else is computed again\n{kept}]\n"
        f"{_BLOCKS_AGAIN}, context_fn=functools.partial(create_selective_checkpoint_contexts, slow))\n"
    )


_BLOCKS_AGAIN: Final = "for block in blocks:\n    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False"


def _sharded(recipe: Mapping[str, Any], world_size: int) -> str:
    strategy = STRATEGIES.get(str(recipe.get("strategy")))
    if strategy is None:
        return ""
    engine = recipe.get("engine") or strategy.engine
    precision = PRECISIONS.get(str(recipe.get("precision")))
    dtype = precision.computes if precision is not None else ""
    if engine == "ddp":
        return "from torch.nn.parallel import DistributedDataParallel\n\nmodel = DistributedDataParallel(model.cuda())\n"
    num_sharing = world_size
    for name in ("tp", "pp", "cp"):
        num_sharing //= _number(recipe, name)
    mesh = f"({num_sharing},)"
    if strategy.split is Split.NODE:
        given = [size for size in recipe.get("mesh") or () if isinstance(size, int)]
        mesh = str(tuple(given) or (max(1, num_sharing // GPUS_PER_NODE), min(num_sharing, GPUS_PER_NODE)))
        mesh += ', mesh_dim_names=("replicate", "shard")'
    elif strategy.split is Split.NOTHING and engine == "fsdp2":
        mesh = f'({num_sharing}, 1), mesh_dim_names=("replicate", "shard")'
    offloads = recipe.get("offload") == "params"
    head = f'from torch.distributed.device_mesh import init_device_mesh\n\nmesh = init_device_mesh("cuda", {mesh})\n'
    written = _fsdp1(strategy, dtype, offloads=offloads) if engine == "fsdp1" else _fsdp2(strategy, dtype, offloads=offloads)
    prefetch = _comment(recipe.get("prefetch", "backward_pre"))
    return head + written + ("" if prefetch == "backward_pre" else f"# prefetch={prefetch}: NOT written here.\n")


def _fsdp2(strategy: Strategy, dtype: str, *, offloads: bool) -> str:
    """``fully_shard`` on each block, then on the model, whose inputs are cast."""
    names = ", ".join(
        filter(None, ("CPUOffloadPolicy" if offloads else "", "MixedPrecisionPolicy" if dtype else "", "fully_shard"))
    )
    options = ["mesh=mesh", f"reshard_after_forward={None if strategy.reshards else False}"]
    options += ["offload_policy=CPUOffloadPolicy()"] if offloads else []
    mixed = f"param_dtype=torch.{dtype}, reduce_dtype=torch.float32, cast_forward_inputs="
    of_block, of_model = (f", mp_policy=MixedPrecisionPolicy({mixed}{casts})" for casts in (False, True)) if dtype else ("", "")
    return (
        f"from torch.distributed.fsdp import {names}\n\n"
        f"shard = functools.partial(fully_shard, {', '.join(options)})\n"
        f"for block in blocks:\n    shard(block{of_block})\nshard(model{of_model})\n"
    )


def _fsdp1(strategy: Strategy, dtype: str, *, offloads: bool) -> str:
    """One ``FullyShardedDataParallel`` around each block and around the model."""
    word = "_HYBRID_SHARD_ZERO2" if strategy.name == "hybrid_shard_zero2" else strategy.name.upper()
    options = [
        f"sharding_strategy=ShardingStrategy.{word}",
        "auto_wrap_policy=CustomPolicy(set(blocks).__contains__)",
        "device_mesh=mesh",
        "device_id=torch.cuda.current_device()",
        "use_orig_params=True",
    ]
    options += [f"mixed_precision=MixedPrecision(torch.{dtype}, torch.float32)"] if dtype else []
    options += ["cpu_offload=CPUOffload(offload_params=True)"] if offloads else []
    listed = "".join(f"    {option},\n" for option in options)
    return (
        "from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy\n"
        "from torch.distributed.fsdp.wrap import CustomPolicy\n\n"
        f"model = FullyShardedDataParallel(\n    model,\n{listed})\n"
    )


def _loop(recipe: Mapping[str, Any]) -> str:
    """What belongs to the training loop, in comments: no line of it can stand by itself."""
    precision, row = PRECISIONS.get(str(recipe.get("precision"))), OPTIMIZERS.get(str(recipe.get("optimizer")))
    batch = _number(recipe, "batch")
    lines = [f"each step: {batch} sequence{'' if batch == 1 else 's'} of {recipe.get('seq')} tokens on this GPU"]
    if (parts := _number(recipe, "microbatches")) > 1:
        through = "through the pipeline" if _number(recipe, "pp") > 1 else "forward and backward of each before optimizer.step()"
        lines.append(f"in {parts} microbatches: {through}")
    engine = recipe.get("engine") or getattr(STRATEGIES.get(str(recipe.get("strategy"))), "engine", "")
    if precision is not None and precision.computes and engine in ("", "ddp"):
        lines.append(f'forward: with torch.autocast("cuda", dtype=torch.{precision.computes})')
    if precision is not None and precision.scales_loss:
        lines.append('loss and step: by torch.amp.GradScaler("cuda")')
    if row is not None:
        options = "".join(f", {name}={value!r}" for name, value in row.options.items())
        lines.append(f"optimizer = {row.written or f'torch.optim.{row.torch_name}'}(model.parameters(), lr=...{options})")
    return "".join(f"# {_comment(line)}\n" for line in lines)


def _group(group: UnitPolicy) -> str:
    names = "".join(f"    {name!r},\n" for name in group.units)
    calls: dict[str, list[int]] = {}
    for choice in sorted(group.choices):
        calls.setdefault(choice.operator, []).append(choice.call)
    kept = "".join(f'        "{operator}": {tuple(numbers)},\n' for operator, numbers in calls.items())
    options = f", keeping(**{{\n{kept}    }})" if kept else ""
    note = "# The plan offloads some of these outputs to the host; here they stay on the GPU.\n" if group.offloads else ""
    return f"{note}for name in (\n{names}):\n    compute_again(model.get_submodule(name){options})\n"
