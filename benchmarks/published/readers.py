"""Rows of public tables as cases that memfit can predict; where it cannot, why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

GIB = 2**30
OLDEST = "2.6+cu126"
MOST_MICROBATCHES = 2
"""Further ones take as long as the second: they are left out, and the published figure is a rate."""


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    gpu: str
    torch: str = ""
    """As the source says it."""
    num_gpus: int = 1
    kind: str = ""
    """``model`` (by name), ``mpt``, ``timm`` or ``bert``."""
    words: Mapping[str, Any] = field(default_factory=dict)
    """What the kind needs."""
    units_per_step: float = 0.0
    """Tokens or images that one GPU is given in a predicted step."""
    per_second: float = 0.0
    """Published: tokens or images a second of one GPU."""
    memory_bytes: int = 0
    memory_kind: str = ""
    """``allocated``, ``reserved``, or ``used`` as nvidia-smi says it."""
    fits: bool | None = None
    steps: int = 2
    torch_version: str = ""
    """Whose kernels are predicted; empty: the default. The oldest that memfit knows stands for older ones."""
    source: str = ""
    why_not: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        return cls(**json.loads(text))

    def asked(self) -> dict[str, Any]:
        """Arguments of ``memfit.predict``."""
        if self.kind == "model":
            return dict(self.words)
        return {"build": partial(BUILDS[self.kind], **self.words)}


def read_row(file: str, number: int, row: Mapping[str, str]) -> Case:
    """By the columns that a file has."""
    if "MicroBatchSize" in row:
        return _llm_foundry(number, row)
    if "train_step_time" in row:
        return _timm(number, row)
    if "framework_config" in row:
        return _fms(file, number, row)
    if "testable" in row:
        return _measurement(row)
    return Case(name=f"{file} {number + 1}", gpu="", why_not="its columns are not known here")


# -- llm-foundry --------------------------------------------------------------------------------------------------

_FOUNDRY_GPUS = {"a100_40gb": "A100-40GB", "a100_80gb": "A100-80GB", "h100_80gb": "H100-80GB"}


def _llm_foundry(number: int, row: Mapping[str, str]) -> Case:
    gpu, size, seq = _FOUNDRY_GPUS[row["GPU"]], row["Model"], int(row["SeqLen (T)"])
    name = f"llm-foundry {size} {seq} {gpu} x{row['# GPUs']} #{number + 1}"
    torch, source = "2.0 or older", "github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md"
    why = ""
    if "fp8" in row["Precision"]:
        why = "float8 by Transformer Engine, which is not at hand"
    if why:
        return Case(name=name, gpu=gpu, torch=torch, source=source, why_not=why)
    batch, microbatches = int(row["MicroBatchSize"]), min(int(row["GradAccum"]), MOST_MICROBATCHES)
    words = {
        "size": size,
        "seq": seq,
        "batch": batch,
        "microbatches": microbatches,
        "pure": row["MP Mode"] == "PURE",
        "checkpointing": row["Activation Checkpointing"] == "True",
        "reshard": row["Sharding Strategy"] == "FULL_SHARD",
    }
    return Case(
        name=name,
        gpu=gpu,
        torch=torch,
        num_gpus=int(row["# GPUs"]),
        kind="mpt",
        words=words,
        torch_version=OLDEST,
        units_per_step=batch * seq * microbatches,
        per_second=float(row["Throughput (T/s/GPU)"]),
        fits=True,
        source=source,
    )


def build_mpt(**words: Any) -> Any:
    from benchmarks.published.mpt import build

    return build(**words)


# -- timm ----------------------------------------------------------------------------------------------------------------------


def _timm(number: int, row: Mapping[str, str]) -> Case:
    batch = int(row["train_batch_size"])
    return Case(
        name=f"timm {row['model']} RTX-3090",
        gpu="RTX-3090",
        torch="1.12",
        kind="timm",
        torch_version=OLDEST,
        words={"model": row["model"], "batch": batch, "size": int(row["train_img_size"])},
        units_per_step=batch,
        per_second=float(row["train_samples_per_sec"]),
        fits=True,
        source="github.com/huggingface/pytorch-image-models, results/benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv",
    )


def build_timm(model: str, batch: int, size: int) -> Any:
    import contextlib

    import torch
    import torch.nn.functional as F

    # Of torchvision timm needs no kernel; those that a CPU build lacks are only named, so that it can be imported.
    arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            torch.library.define(f"torchvision::{name}", arguments)
    import timm

    made = timm.create_model(model, num_classes=1000).cuda().train()
    optimizer = torch.optim.SGD(made.parameters(), lr=1e-4, momentum=0.9)
    images = torch.randn(batch, 3, size, size, device="cuda")
    classes = torch.randint(0, 1000, (batch,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            out = made(images)
            loss = F.cross_entropy(out[0] if isinstance(out, tuple) else out, classes)
        loss.backward()
        optimizer.step()

    return step


# -- fms-acceleration --------------------------------------------------------------------------------------------------

_FMS_MODELS = {"mistralai/Mistral-7B-v0.1": "mistral-7b"}


def _fms(file: str, number: int, row: Mapping[str, str]) -> Case:
    name = f"{file} {number + 1} {row['model_name_or_path'].rpartition('/')[2]}"
    source = f"github.com/foundation-model-stack/fms-acceleration, scripts/benchmarks/refs/{file.removeprefix('fms_')}.csv"
    model, gpus, batch = _FMS_MODELS.get(row["model_name_or_path"]), int(row["num_gpus"]), int(row["per_device_train_batch_size"])
    why = ""
    if model is None:
        why = "its model is none that memfit knows by name, and its config is not at hand"
    elif row["framework_config"] != "none" or row["peft_method"] not in ("", "none"):
        why = "adapters, quantized weights or kernels of other libraries"
    elif not row["train_tokens_per_second"]:
        why = "it ran out of memory, and its sequences are not said"
    if why:
        return Case(name=name, gpu="A100-80GB", torch="2.4", source=source, why_not=why)
    # Tokens over samples are the sequence's length, divided among the GPUs.
    seq = round(float(row["train_tokens_per_second"]) / float(row["train_samples_per_second"]) * gpus)
    words = {"model": model, "batch": batch, "seq": seq, "precision": "bf16", "checkpointing": "full"}
    return Case(
        name=name,
        gpu="A100-80GB",
        torch="2.4",
        num_gpus=gpus,
        kind="model",
        words=words,
        torch_version=OLDEST,
        units_per_step=batch * seq,
        per_second=float(row["train_tokens_per_second"]),
        memory_bytes=int(float(row["mem_peak_torch_mem_alloc_in_bytes"])),
        memory_kind="allocated",
        fits=True,
        source=source,
    )


# -- single measurements -------------------------------------------------------------------------------------------------------

_LLAMA = {"model": "llama3-8b", "optimizer": "adamw-fused"}
_SAC = {**_LLAMA, "batch": 1, "seq": 8192, "checkpointing": "selective", "compile": "blocks"}
_BERT = {"batch": 4, "accumulate": 1, "checkpointing": False, "optimizer": "adamw", "half": False}
SINGLE: dict[str, tuple[str, str, dict[str, Any], float]] = {
    # id: GPU, kind, words, tokens or samples of a step
    "2": ("H100-96GB", "model", {**_SAC, "float8": "tensorwise"}, 8192),
    "4": ("MI300X", "model", _SAC, 8192),
    "5": ("MI300X", "model", {**_SAC, "float8": "tensorwise"}, 8192),
    "7": ("MI300X", "model", {**_SAC, "float8": "rowwise"}, 8192),
    "8": ("B200", "model", _SAC, 8192),
    "12": ("H100-96GB", "model", _SAC, 8192),
    "14": ("H100-96GB", "model", {**_SAC, "float8": "tensorwise"}, 8192),
    "20": ("H100-96GB", "model", {**_SAC, "seq": 4096, "checkpointing": "full", "float8": "tensorwise"}, 4096),
    "21": ("B200", "model", {**_SAC, "batch": 32, "seq": 2048, "checkpointing": "none"}, 65536),
    "24": ("H100-96GB", "model", {**_SAC, "seq": 32768, "checkpointing": "full", "float8": "tensorwise"}, 32768),
    "118": ("V100-16GB", "bert", _BERT, 4),
    "120": ("V100-16GB", "bert", {**_BERT, "batch": 1, "accumulate": 4, "checkpointing": True}, 4),
    "123": ("V100-16GB", "bert", {**_BERT, "optimizer": "adafactor"}, 4),
    "124": (
        "V100-16GB",
        "bert",
        {**_BERT, "batch": 1, "accumulate": 4, "checkpointing": True, "optimizer": "adafactor", "half": True},
        4,
    ),
}
WHY_NOT: tuple[tuple[str, str], ...] = (
    ("Megatron", "Megatron's own engine, of versions that its containers have"),
    ("torchtune", "torchtune's recipes and its data (alpaca, packed) are not at hand"),
    ("litgpt", "LoRA of litgpt's own model code, on data whose lengths are not at hand"),
    ("PEFT", "PEFT's methods, on data whose lengths are not at hand"),
    ("own train_gpt", "kernels of its own (FA3, float8, Muon)"),
    ("QLoRA", "weights of four bits by bitsandbytes under FSDP"),
    ("torchtitan", "parallelism or data beyond what models by name have"),
    ("llm-foundry", "is in llm_foundry.csv"),
    ("timm", "is in timm_rtx3090_nchw.csv"),
    ("SFTTrainer", "is in the files of fms-acceleration"),
    ("DeepSpeed", "see benchmarks/blind/deepspeed_blind.py for that engine"),
)


def _measurement(row: Mapping[str, str]) -> Case:
    name, source, torch = f"measurement {row['id']} {row['model']} {row['gpu']}", row["source"], row["torch"]
    if row["id"] not in SINGLE:
        said = f"{row['engine']} {row['config']}"
        why = next((why for word, why in WHY_NOT if word in said), "its script or its data are not at hand")
        return Case(name=name, gpu=row["gpu"], torch=torch, source=source, why_not=why)
    gpu, kind, words, units = SINGLE[row["id"]]
    rate = re.match(r"[\d.]+", row["throughput"])
    return Case(
        name=name,
        gpu=gpu,
        torch=torch,
        num_gpus=int(row["gpus"]),
        kind=kind,
        words=words,
        units_per_step=units,
        per_second=float(rate[0]) if rate else 0.0,
        memory_bytes=_bytes(row["memory"]),
        torch_version=OLDEST if kind == "bert" else "",
        memory_kind="used" if "nvidia-smi" in row["metric"] else "reserved" if "reserved" in row["metric"] else "allocated",
        source=source,
    )


def _bytes(text: str) -> int:
    match = re.match(r"([\d.]+) (GiB|GB|MiB)", text)
    return round(float(match[1]) * {"GiB": GIB, "GB": 10**9, "MiB": 2**20}[match[2]]) if match else 0


def build_bert(batch: int, accumulate: int, checkpointing: bool, optimizer: str, half: bool) -> Any:
    """bert-large for classification with HF's Trainer of 2022: sequences of 512, AdamW in a loop over tensors."""
    import contextlib

    import torch
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    model = BertForSequenceClassification(config).cuda().train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    stepper = (
        torch.optim.AdamW(model.parameters(), foreach=False) if optimizer == "adamw" else torch.optim.Adafactor(model.parameters())
    )
    scaler = torch.amp.GradScaler("cuda", enabled=half)

    def step() -> None:
        for _ in range(accumulate):
            ids = torch.randint(0, 30522, (batch, 512), device="cuda")
            with torch.autocast("cuda", torch.float16) if half else contextlib.nullcontext():
                loss = model(input_ids=ids, labels=torch.zeros(batch, dtype=torch.long, device="cuda")).loss
            scaler.scale(loss).backward()
        scaler.step(stepper)
        scaler.update()
        stepper.zero_grad()

    return step


BUILDS: dict[str, Callable[..., Any]] = {"mpt": build_mpt, "timm": build_timm, "bert": build_bert}
