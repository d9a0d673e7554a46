"""transformers' ``TrainingArguments``."""

from __future__ import annotations

from typing import Any, Final

from memfit.choices import Split
from memfit.plan.emit.asking import Asked

_OPTIMIZERS: Final = {
    "adamw": "adamw_torch",
    "adamw-fused": "adamw_torch_fused",
    "adamw8bit": "adamw_bnb_8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
_PRECISIONS: Final[dict[str, dict[str, bool]]] = {
    "bf16-mixed": {"bf16": True},
    "fp16-mixed": {"fp16": True},
    "fp32": {},
    "bf16": {},
}


def write(asked: Asked) -> str:
    recipe, strategy = asked.recipe, asked.strategy
    asked.refuse_unless_usual("tp", "pp", "cp", "ep", "float8", "lora", "quantize")
    is_full = asked.one_of("checkpointing", {"none": False, "full": True})
    is_sharded = strategy is not None and strategy.split is not Split.NOTHING
    found: dict[str, Any] = {
        "output_dir": "out",
        "per_device_train_batch_size": recipe.batch // asked.passes,
        "gradient_accumulation_steps": asked.passes,
        "optim": asked.one_of("optimizer", _OPTIMIZERS),
        **asked.one_of("precision", _PRECISIONS),
    }
    if is_sharded and strategy is not None:
        if strategy.split is Split.NODE:
            asked.refuse("strategy")  # its copies are accelerate's to make
        found["fsdp"] = True
        found["fsdp_config"] = {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": strategy.reshards,
            "cpu_offload": asked.one_of("offload", {"none": False, "params": True}),
            "activation_checkpointing": is_full,
        }
    elif is_full:
        found["gradient_checkpointing"] = True
    if asked.one_of("compile", {"none": False, "model": True}):
        found["torch_compile"] = True
    lines = [f"# {asked.torchrun('train.py')}", f"# sequences of {recipe.seq} tokens"]
    if recipe.precision == "bf16":
        lines.append("# the model is loaded with dtype=torch.bfloat16")
    lines += ["from transformers import TrainingArguments", "", "arguments = TrainingArguments("]
    return "\n".join([*lines, *(f"    {key}={value!r}," for key, value in found.items()), ")"]) + "\n"
