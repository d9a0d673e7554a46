"""fms-acceleration's benchmarks: HF's trainer with FlashAttention and checkpointing on A100s, each with 100 steps."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.published.cases import OLDEST, Case

SHAPES: dict[str, dict[str, object]] = {
    "mistralai/Mistral-7B-v0.1": {
        "kind": "mistral",
        "hidden": 4096,
        "ffn": 14336,
        "layers": 32,
        "heads": 32,
        "kv": 8,
        "vocab": 32000,
    },
    "meta-llama/Meta-Llama-3-8B": {
        "kind": "llama",
        "hidden": 4096,
        "ffn": 14336,
        "layers": 32,
        "heads": 32,
        "kv": 8,
        "vocab": 128256,
    },
    "NousResearch/Llama-2-70b-hf": {
        "kind": "llama",
        "hidden": 8192,
        "ffn": 28672,
        "layers": 80,
        "heads": 64,
        "kv": 8,
        "vocab": 32000,
    },
    "ibm/PowerLM-3b": {"kind": "granite", "hidden": 2304, "ffn": 9216, "layers": 40, "heads": 36, "kv": 36, "vocab": 49152},
}
"""config.json of each, as its maker publishes it."""


def read_fms(file: str, number: int, row: Mapping[str, str]) -> Case:
    model, config = row.get("model_name_or_path", ""), row["framework_config"]
    batch, gpus, peft = int(row["per_device_train_batch_size"]), int(row["num_gpus"]), row.get("peft_method", "") or "none"
    source = f"github.com/foundation-model-stack/fms-acceleration, scripts/benchmarks/refs/{file.removeprefix('fms_')}.csv"
    name = f"{file} {number + 1} {model.rpartition('/')[2]} {config} {peft} batch {batch} x{gpus}"
    why = ""
    if model not in SHAPES:
        why = f"{model or 'its model'}: its layers are not written here (GPTQ's kernels, experts, gpt_bigcode)"
    elif config not in ("none", "baseline-peft-bnb"):
        why = f"{config}: fused kernels, padding-free batches or quantized layers of its own plugins"
    elif config == "baseline-peft-bnb" and gpus > 1:
        why = "weights of four bits by bitsandbytes under FSDP1"
    elif not row["train_tokens_per_second"]:
        why = "it ran out of memory, and the lengths of its sequences are not said"
    if why:
        return Case(name=name, gpu="A100-80GB", torch="2.4", source=source, why_not=why)
    # Tokens over samples are the sequence's length, divided among the GPUs.
    seq = round(float(row["train_tokens_per_second"]) / float(row["train_samples_per_second"]) * gpus)
    words = {"shape": model, "batch": batch, "seq": seq, "lora": peft == "lora", "four_bit": config == "baseline-peft-bnb"}
    words |= {"half": "float16" if row["torch_dtype"] == "float16" else "bfloat16", "sharded": gpus > 1}
    if halves := [half for flag, half in (("bf16", "bfloat16"), ("fp16", "float16")) if row.get(flag, "").upper() == "TRUE"]:
        words["autocast"] = halves[0]  # of the trainer, beside the weights' own type
    allocated = row["mem_peak_torch_mem_alloc_in_bytes"]
    return Case(
        name=name,
        gpu="A100-80GB",
        torch="2.4",
        num_gpus=gpus,
        kind="trainer",
        words=words,
        torch_version=OLDEST,
        units_per_step=batch * seq,
        per_second=float(row["train_tokens_per_second"]),
        memory={"allocated": int(float(allocated))} if allocated else {},
        fits=True,
        source=source,
    )
