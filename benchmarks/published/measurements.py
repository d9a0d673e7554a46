"""Single figures of many sources: what their words say of a run, by the engine that they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.published.cases import GIB, OLDEST, Case
from benchmarks.published.peft_methods import read_peft
from benchmarks.published.scripts import read_golden, read_record

GPUS = {
    "H100 (96 GB)": "H100-96GB", "H100-80": "H100-80GB", "H100 80GB HBM3": "H100-80GB", "H100": "H100-80GB", "A100-80": "A100-80GB",
    "A100-40": "A100-40GB", "A100": "A100-80GB", "V100-16": "V100-16GB", "RTX 3090": "RTX-3090", "RTX 4090": "RTX-4090",
    "A6000": "RTX-A6000", "RTX 4070 Ti SUPER 16 GB": "RTX-4070-Ti-SUPER", "B200 (power-limited)": "B200",
}  # fmt: skip
"""As rows write them; torchao ran on H100s with 96 GB where it names its H100s at all."""
WHY_NOT = (
    ("Megatron", "needs Transformer Engine's eight-bit recipes, or a release that its container has"),
    ("torchtune", "torchtune's recipes and its data (alpaca, packed) are not at hand"),
    ("own train_gpt", "is in modded_nanogpt.csv"),
    ("fsdp_qlora", "weights of four bits by bitsandbytes under FSDP1"),
    ("LLaMA-Factory", "the version's kernels and the shapes of its batches are not said"),
    ("torchtitan", "parallelism beyond what models by name have"),
    ("SFTTrainer", "is in the files of fms-acceleration, which say the lengths of sequences"),
    ("DeepSpeed", "see benchmarks/blind/deepspeed_blind.py for that engine"),
)
"""By a part of what names the engine and the run."""
LIMITED = "a card slowed down by its owner, by how much is not said"


def read_measurement(row: Mapping[str, str]) -> Case:
    engine = row["engine"]
    name = f"measurement {row['id']} {row['model']} {row['gpu']}"
    plain = Case(
        name=name, gpu=GPUS.get(row["gpu"], row["gpu"]), torch=row["torch"], num_gpus=_number(row["gpus"]), source=row["source"]
    )
    readers: tuple[tuple[str, Callable[[Case, Mapping[str, str]], Case | None]], ...] = (
        ("torchtitan", _torchtitan),
        ("litgpt", _litgpt),
        ("HF Trainer", _trainer),
        ("llm-foundry", _foundry),
        ("timm", _timm),
        ("Megatron-LM", _megatron),
        ("PEFT + transformers", _peft),
        ("own train_gpt", _record),
    )
    for word, read in readers:
        if word in engine and (case := read(plain, row)) is not None:
            return case
    why = next((why for word, why in WHY_NOT if word in f"{engine} {row['config']}"), "its script or its data are not at hand")
    return _with(plain, why_not=why)


def _with(case: Case, **changes: Any) -> Case:
    from dataclasses import replace

    return replace(case, **changes)


def _number(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 1


def _bytes(text: str) -> int:
    if found := re.search(r"\((\d+) B\)", text):
        return int(found[1])
    found = re.match(r"([\d.]+) (GiB|GB|MiB)", text)
    return round(float(found[1]) * {"GiB": GIB, "GB": 10**9, "MiB": 2**20}[found[2]]) if found else 0


def _rate(text: str) -> float:
    found = re.match(r"([\d.]+) (?:tok/s|img/s|samples/s)", text)
    return float(found[1]) if found else 0.0


def _memory(row: Mapping[str, str]) -> dict[str, int]:
    kind = "used" if "nvidia-smi" in row["metric"] else "reserved" if "reserved" in row["metric"] else "allocated"
    found = _bytes(row["memory"])
    return {kind: found} if found else {}


def _said(pattern: str, config: str, otherwise: int) -> int:
    found = re.search(pattern, config)
    return int(found[1]) if found else otherwise


MODELS = {"Llama-3 8B": "llama3-8b", "Llama-3.1 8B": "llama3.1-8b", "Llama-3 70B": "llama3-70b", "Llama-3.1 70B": "llama3.1-70b"}


def _torchtitan(case: Case, row: Mapping[str, str]) -> Case | None:
    """Data parallel alone: FSDP2, AdamW in one kernel. What is not said is as in its llama3_8b.toml, such as selective
    checkpointing. Its run_train.sh asks for segments that grow, which torch for ROCm does not have."""
    config, model = row["config"], MODELS.get(row["model"])
    beyond = re.search(r"\b(TP|PP|EP|HSDP) ?\d|CP [2-9]|every 2nd|mxfp8|nvfp4|bs as in", config)
    if model is None or beyond or "Llama" not in row["model"]:
        return None
    seq, batch = _said(r"seq (\d+)", config, 8192), _said(r"bs (\d+)", config, 1)
    kind = re.search(r"rowwise_with_gw_hp|rowwise|tensorwise", config)
    words: dict[str, Any] = {"model": model, "optimizer": "adamw-fused", "batch": batch, "seq": seq}
    words["checkpointing"] = "full" if "full AC" in config else "none" if "no AC" in config else "selective"
    words |= {"compile": "blocks"} if "compile" in config else {}
    if kind or "float8" in config:
        words["float8"] = {"rowwise_with_gw_hp": "rowwise-gw-hp"}.get(kind[0], kind[0]) if kind else "tensorwise"
    nightly = row["torch"]
    is_old = re.match(r"2\.[0-8]\b|2\.[0-8]\.|late 2024|2\.6 nightly", nightly) is not None
    return _with(
        case,
        kind="model",
        words=words,
        torch="2.8 or older" if is_old else nightly if re.match(r"2\.\d", nightly) else f"2.9 ({nightly})",
        units_per_step=batch * seq,
        per_second=_rate(row["throughput"]),
        memory=_memory(row),
        time_note=LIMITED if "power-limited" in row["gpu"] else "",
        alloc_conf="" if row["gpu"].startswith("MI") else "expandable_segments:True",
    )


_LITGPT = {"LLaMA2-7B": "Llama-2-7b-hf", "Llama 2 7B": "Llama-2-7b-hf", "Llama 2 13B": "Llama-2-13b-hf", "phi-1.5": "phi-1_5"}
_LITGPT |= {"StableLM-3B-alpha": "stablelm-base-alpha-3b"}


def _litgpt(case: Case, row: Mapping[str, str]) -> Case | None:
    """Its configurations by their YAML; their longest sample is cut to max_seq_length. Rates are of data that are not at hand."""
    config, fits = row["config"], row["memory"] != "OOM"
    changes: dict[str, Any] = {"fits": fits, "memory": _memory(row), "torch_version": OLDEST, "kind": "litgpt", "steps": 2}
    if found := re.search(r"config_hub (\S+\.yaml)", config):
        return _with(case, words={"config": found[1]}, **changes)
    seq, batch, name = (
        _said(r"longest sample (\d+)", config, 0),
        _said(r"micro-batch (\d+)", config, 1),
        _LITGPT.get(row["model"], ""),
    )
    if not name or not seq:
        return None
    words = {"name": name, "batch": batch, "seq": seq, "quantize": "bnb.nf4" if "nf4" in config else ""}
    words["lora"] = {"lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "lora_query": True, "lora_value": True}
    return _with(case, words=words, **changes)


def _trainer(case: Case, row: Mapping[str, str]) -> Case | None:
    """The table of Hugging Face's page on training on one GPU: bert-large, sequences of 512."""
    config = row["config"]
    if "bert" not in row["model"]:
        return None
    batch, accumulate = _said(r"bs (\d+)", config, 4), _said(r"accum (\d+)", config, 1)
    optimizer = "adafactor" if "adafactor" in config else "adamw8bit" if "Adam8bit" in config else "adamw"
    words = {
        "batch": batch,
        "accumulate": accumulate,
        "checkpointing": "AC" in config,
        "optimizer": optimizer,
        "half": "fp16" in config,
    }
    units = batch * accumulate
    changes = {"units_per_step": units, "per_second": _rate(row["throughput"]), "memory": _memory(row), "torch_version": OLDEST}
    return _with(case, kind="bert", words=words, torch="1.10", fits=True, **changes)


def _foundry(case: Case, row: Mapping[str, str]) -> Case | None:
    config = row["config"]
    seq, batch = _said(r"seq (\d+)", config, 0), _said(r"micro-batch (\d+)", config, 0)
    if "fp8" in config or not seq or not batch:
        return None
    words = {"size": row["model"].split()[-1], "seq": seq, "batch": batch, "microbatches": 1, "pure": "PURE" in config}
    words |= {"checkpointing": "AC True" in config, "reshard": "FULL_SHARD" in config}
    changes = {"units_per_step": batch * seq, "per_second": _rate(row["throughput"]), "torch_version": OLDEST}
    return _with(case, kind="mpt", words=words, torch="2.0 or older", fits=True, **changes)


def _timm(case: Case, row: Mapping[str, str]) -> Case | None:
    config = row["config"]
    if "largest of" not in config:
        return None
    batch, size = _said(r"bs (\d+)", config, 1), _said(r"(\d+) px", config, 224)
    words = {"model": row["model"].split()[-1], "batch": batch, "size": size, "channels_last": "NHWC" in config}
    changes = {"units_per_step": batch, "per_second": _rate(row["throughput"]), "torch_version": OLDEST}
    return _with(case, kind="timm", words=words, torch="1.12", fits=True, **changes)


def _megatron(case: Case, row: Mapping[str, str]) -> Case | None:
    """As its row of megatron_goldens.csv."""
    found = re.search(r"(tests/functional_tests/test_cases/(\w+)/([\w.+-]+)/golden_values_(\w[\w-]*)\.json)", row["source"])
    if found is None:
        return None
    step = re.match(r"([\d.]+) s/step", row["throughput"])
    said = {"path": found[1], "family": found[2], "case": found[3], "gpu": found[4], "fp8": ""}
    golden = read_golden(said | {"max_allocated": str(_bytes(row["memory"])), "step_s": step[1] if step else ""})
    return _with(golden, name=case.name)


def _peft(case: Case, row: Mapping[str, str]) -> Case | None:
    found = re.match(r"([\w-]+) \(([^)]+)\)", row["config"])
    if found is None:
        return None
    path = f"method_comparison/MetaMathQA/results/{found[1]}--{found[2]}.json"
    rate = str(_rate(row["throughput"]) or "")
    said = {"path": path, "torch": row["torch"], "status": "success", "bs": "4", "tps": rate, "max": str(_bytes(row["memory"]))}
    return _with(read_peft(said), name=case.name)


def _record(case: Case, row: Mapping[str, str]) -> Case | None:
    """A folder of modded-nanogpt's logs, of which one figure is given."""
    folder = re.search(r"records/\S+", row["source"])
    peaks = re.match(r"(\d+) MiB / (\d+)", row["memory"])
    if folder is None or peaks is None:
        return None
    step = re.match(r"([\d.]+) ms/step", row["throughput"])
    said = {"path": f"{folder[0]}/all", "peak": peaks[1], "reserved": peaks[2], "torch": row["torch"], "gpu": row["gpu"]}
    return _with(read_record(said | {"n": row["gpus"], "step_ms": step[1] if step else ""}), name=case.name)
