"""accelerate's config file: how GPUs share a model, with FSDP2; the batch is the script's."""

from __future__ import annotations

from typing import Any, Final

from memfit.choices import Split
from memfit.hardware import GPUS_PER_NODE
from memfit.plan.emit.asking import Asked

_PRECISIONS: Final = {"bf16-mixed": "bf16", "fp16-mixed": "fp16", "fp32": "no", "bf16": "no"}


def write(asked: Asked) -> str:
    recipe, strategy = asked.recipe, asked.strategy
    asked.refuse_unless_usual("tp", "pp", "cp", "ep", "float8", "lora", "quantize")
    is_full = asked.one_of("checkpointing", {"none": False, "full": True})
    nodes = max(1, -(-asked.world_size // GPUS_PER_NODE))
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO",
        "mixed_precision": asked.one_of("precision", _PRECISIONS),
        "num_machines": nodes,
        "num_processes": asked.world_size,
        "machine_rank": 0,
    }
    if strategy is not None and strategy.split is Split.NOTHING:
        found["distributed_type"] = "MULTI_GPU"
    elif strategy is not None:
        found["distributed_type"] = "FSDP"
        found["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": strategy.reshards,
            "fsdp_offload_params": asked.one_of("offload", {"none": False, "params": True}),
            "fsdp_activation_checkpointing": is_full,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        if strategy.split is Split.NODE:
            found["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": asked.num_copies,
                "parallelism_config_dp_shard_size": asked.num_data_ranks // asked.num_copies,
            }
    if asked.one_of("compile", {"none": False, "blocks": True, "model": True}):
        regional = recipe.compile == "blocks"
        found["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_use_regional_compilation": regional}
    lines = ["# accelerate launch --config_file plan.yaml train.py", *_for_the_script(asked, is_full)]
    return "\n".join([*lines, *_yaml(found)]) + "\n"


def _for_the_script(asked: Asked, is_full: bool) -> list[str]:
    """What accelerate leaves to the script."""
    recipe, size = asked.recipe, asked.recipe.batch // asked.passes
    lines = [f"# in train.py: batches of {size} sequences of {recipe.seq} tokens on each GPU; optimizer {recipe.optimizer}"]
    if asked.passes > 1:
        parts = f"Accelerator(gradient_accumulation_steps={asked.passes})"
        lines.append(f"# in train.py: {parts}, and with accelerator.accumulate(model) around each of them")
    if recipe.precision == "bf16":
        lines.append("# in train.py: model.to(torch.bfloat16) before accelerator.prepare")
    if is_full and (asked.strategy is None or asked.strategy.split is Split.NOTHING):
        lines.append("# in train.py: model.gradient_checkpointing_enable() before accelerator.prepare")
    return lines


def _yaml(values: dict[str, Any], indent: str = "") -> list[str]:
    lines: list[str] = []
    for key, value in values.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *_yaml(value, indent + "  ")]
        else:
            said = str(value).lower() if isinstance(value, bool) else f"'{value}'" if isinstance(value, str) else str(value)
            lines.append(f"{indent}{key}: {said}")
    return lines
