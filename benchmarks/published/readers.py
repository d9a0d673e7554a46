"""Rows of public tables as cases, by the columns that a file has."""

from __future__ import annotations

import re
from collections.abc import Mapping

from benchmarks.published.cases import OLDEST, Case
from benchmarks.published.fms import read_fms
from benchmarks.published.measurements import read_measurement
from benchmarks.published.peft_methods import read_peft
from benchmarks.published.scripts import read_golden, read_record


def read_row(file: str, number: int, row: Mapping[str, str]) -> Case:
    """A case that says ``why_not`` where it cannot be predicted."""
    if "MicroBatchSize" in row:
        return _llm_foundry(number, row)
    if "train_step_time" in row:
        return _timm(file, row)
    if "framework_config" in row:
        return read_fms(file, number, row)
    if "testable" in row:
        return read_measurement(row)
    if "allocated_last" in row:
        return read_golden(row)
    if {"peak", "reserved", "path"} <= set(row):
        return read_record(row)
    if "trainable" in row:
        return read_peft(row)
    if "memory_gb" in row:
        name, cards = f"{row['repo'].rpartition('/')[2]} {row['config'].rpartition('/')[2]}", row["resources"]
        why = "torch 1.x: shown elsewhere if at all; its images have many sizes, or its crops need mmcv's kernels"
        return Case(name=name, gpu=cards, torch="1.x", source=f"github.com/{row['repo']}, {row['metafile']}", why_not=why)
    return Case(name=f"{file} {number + 1}", gpu="", why_not="its columns are not known here")


# -- llm-foundry --------------------------------------------------------------------------------------------------

MOST_MICROBATCHES = 2
"""Further ones take as long as the second: they are left out, and the published figure is a rate."""
_FOUNDRY_GPUS = {"a100_40gb": "A100-40GB", "a100_80gb": "A100-80GB", "h100_80gb": "H100-80GB"}


def _llm_foundry(number: int, row: Mapping[str, str]) -> Case:
    gpu, size, seq = _FOUNDRY_GPUS[row["GPU"]], row["Model"], int(row["SeqLen (T)"])
    batch, microbatches = int(row["MicroBatchSize"]), min(int(row["GradAccum"]), MOST_MICROBATCHES)
    what = f"{size} seq {seq} batch {batch}x{row['GradAccum']} {row['MP Mode']} {row['Sharding Strategy']}"
    what += f" AC {row['Activation Checkpointing']}"
    name = f"llm-foundry {what} {gpu} x{row['# GPUs']} {row['Precision']}"
    torch, source = "2.0 or older", "github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md"
    if "fp8" in row["Precision"]:
        return Case(name=name, gpu=gpu, torch=torch, source=source, why_not="float8 recipes of Transformer Engine are refused")
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
        interconnect=_network(row["section"], gpu, int(row["# GPUs"])),
        units_per_step=batch * seq * microbatches,
        per_second=float(row["Throughput (T/s/GPU)"]),
        fits=True,
        source=source,
    )


def _network(section: str, gpu: str, num_gpus: int) -> str:
    """``A100 80GB with 1600 Gbps node-node interconnect (RoCE)``: eight GPUs share it. One node needs none."""
    found = re.search(r"(\d+) Gbps", section)
    return f"8x{gpu}-NVLink+{int(found[1]) // 8}G" if found and num_gpus > 8 else ""


# -- timm ----------------------------------------------------------------------------------------------------------------------


def _timm(file: str, row: Mapping[str, str]) -> Case:
    """Its script halves a batch that does not fit, from 512 on: the published one fits."""
    batch, layout = int(row["train_batch_size"]), "nhwc" if "nhwc" in file else "nchw"
    return Case(
        name=f"timm {row['model']} {layout} RTX-3090",
        gpu="RTX-3090",
        torch="1.12",
        kind="timm",
        torch_version=OLDEST,
        words={"model": row["model"], "batch": batch, "size": int(row["train_img_size"]), "channels_last": layout == "nhwc"},
        units_per_step=batch,
        per_second=float(row["train_samples_per_sec"]),
        fits=True,
        source=f"github.com/huggingface/pytorch-image-models, results/benchmark-train-amp-{layout}-pt112-cu113-rtx3090.csv",
    )
