"""torchtitan 0.2's job file."""

from __future__ import annotations

from typing import Any, Final

from memfit.choices import SCHEDULES
from memfit.plan.emit.asking import Asked
from memfit.plan.handwritten import SELECTIVE_AROUND_EXPERTS

_MODELS: Final = {
    **{f"llama{version}-{size}b": ("llama3", f"{size}B") for version in ("3", "3.1", "3.3") for size in (8, 70, 405)},
    **{f"qwen3-{size}": ("qwen3", size.upper()) for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b", "30b-a3b", "235b-a22b")},
    "deepseek-v3": ("deepseek_v3", "671B"),
}
"""By memfit's name: torchtitan's model and its flavor."""

_PRECISIONS: Final = {
    "bf16-mixed": {"dtype": "float32", "mixed_precision_param": "bfloat16"},
    "bf16": {"dtype": "bfloat16", "mixed_precision_param": "bfloat16"},
    "fp32": {"dtype": "float32", "mixed_precision_param": "float32"},
}
_OPTIMIZERS: Final = {
    "adamw": {"name": "AdamW", "implementation": "foreach"},
    "adamw-fused": {"name": "AdamW", "implementation": "fused"},
}
_CHECKPOINTINGS: Final[dict[str, dict[str, str]]] = {
    "none": {"mode": "none"},
    "selective": {"mode": "selective", "selective_ac_option": "op"},
    "full": {"mode": "full"},
}
_FLOAT8S: Final = {"none": "", "tensorwise": "tensorwise", "rowwise": "rowwise", "rowwise-gw-hp": "rowwise_with_gw_hp"}


def write(asked: Asked) -> str:
    recipe = asked.recipe
    asked.refuse_unless_usual("lora", "quantize")
    name, flavor = asked.one_of("model", _MODELS)
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor},
        "optimizer": asked.one_of("optimizer", _OPTIMIZERS),
        "training": _training(asked),
        "parallelism": _parallelism(asked),
        "activation_checkpoint": asked.one_of("checkpointing", _CHECKPOINTINGS),
    }
    if asked.one_of("compile", {"none": False, "blocks": True}):
        sections["compile"] = {"enable": True, "components": ["model"]}
    if float8 := asked.one_of("float8", _FLOAT8S):
        sections["model"]["converters"] = ["quantize.linear.float8"]
        sections["quantize.linear.float8"] = {
            "recipe_name": float8,
            "enable_fsdp_float8_all_gather": float8 == "tensorwise",
        }
    lines = [f"# {asked.torchrun('-m torchtitan.train --job.config_file plan.toml')}"]
    if recipe.checkpointing == "selective":
        lines.append("# torchtitan's choice by operator computes every second product again, too: less memory than was predicted")
        if recipe.ep > 1:
            lines.append(f"# {SELECTIVE_AROUND_EXPERTS}")
    for section, values in sections.items():
        lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _training(asked: Asked) -> dict[str, Any]:
    """A pipeline cuts its batch itself; elsewhere parts are batches whose gradients are added up."""
    recipe = asked.recipe
    local = recipe.batch if recipe.pp > 1 else recipe.batch // asked.passes
    return {
        "local_batch_size": local,
        "global_batch_size": recipe.batch * asked.num_data_ranks,
        "seq_len": recipe.seq,
        **asked.one_of("precision", _PRECISIONS),
        "enable_cpu_offload": asked.one_of("offload", {"none": False, "params": True}),
    }


def _parallelism(asked: Asked) -> dict[str, Any]:
    recipe, strategy = asked.recipe, asked.strategy
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": asked.num_copies,
        "data_parallel_shard_degree": asked.num_data_ranks // asked.num_copies,
        "fsdp_reshard_after_forward": "always" if strategy is None or strategy.reshards else "never",
        "tensor_parallel_degree": recipe.tp,
        "context_parallel_degree": recipe.cp,
        "expert_parallel_degree": recipe.ep,
        "pipeline_parallel_degree": recipe.pp,
    }
    if recipe.pp > 1:
        found["pipeline_parallel_schedule"] = SCHEDULES[recipe.schedule].torch_name
        found["pipeline_parallel_microbatch_size"] = recipe.batch // asked.passes
    return found


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value) if isinstance(value, int) else f'"{value}"'
