"""What a run is about, in one line: the model, the GPUs, and how it is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memfit.choices import AXES
from memfit.ledger import RunInfo

SUBJECTS = ("model", "hf", "function", "script")
"""What can be trained; one of them is given."""


def recipe_line(asked: Mapping[str, Any]) -> str:
    """``llama3-8b on 8 x H100-80GB, full_shard, fsdp2, batch 1, seq 8192, bf16-mixed, adamw``; empty where nothing is known.
    What is as usual is left out."""
    subject = next((str(asked[name]) for name in SUBJECTS if asked.get(name)), "")
    if not subject:
        return ""
    if asked.get("hf") or asked.get("function"):
        subject = _short(subject)
    number, gpu = asked.get("world_size", 1), asked.get("gpu", "")
    place = f" on {f'{number} x ' if number != 1 else ''}{gpu}" if gpu else f" on {number} GPUs" if number != 1 else ""
    return ", ".join((subject + place, *_settings(asked)))


def _short(path: str) -> str:
    """The last two parts: ``Llama-3-8B/config.json``, ``train.py:build``."""
    parts = Path(path).parts
    return "/".join(parts[-2:] if parts[-1] == "config.json" else parts[-1:])


def _settings(asked: Mapping[str, Any]) -> Iterator[str]:
    for name, value in asked.items():
        if name in (*SUBJECTS, "gpu", "world_size") or value in ("", None, [], ()):
            continue
        axis = AXES.get(name)
        if axis is None or axis.usual is None or value != axis.usual:
            yield in_words(name, value)


def in_words(axis: str, value: Any) -> str:
    """``no checkpointing``, ``8 GPUs``, ``batch 4``."""
    match axis, value:
        case ("strategy" | "engine", _):
            return value or "no sharding"
        case ("checkpointing" | "prefetch", _):
            return f"{'no' if value == 'none' else value} {axis}"
        case ("offload", _):
            return "no offload" if value == "none" else f"{value} offloaded"
        case ("precision" | "optimizer", _):
            return str(value)
        case ("lora", _):
            return f"LoRA of rank {value}" if value else "no LoRA"
        case ("lora_modules", _):
            return f"adapters on {value}"
        case ("quantize", _):
            return "no quantization" if value == "none" else f"{value} weights"
        case ("world_size", _):
            return f"{value} GPUs" if value > 1 else "1 GPU"
        case ("mesh", _):
            return (
                f"mesh {'x'.join(map(str, value)) if isinstance(value, list | tuple) else value}" if value else "the default mesh"
            )
    return f"{axis} {value}"


def origin_line(info: RunInfo) -> str:
    """When and by which command a ledger was made; empty where it does not say."""
    made = f"Made {info.made_at}" if info.made_at else ""
    return f"{made} by {info.command}" if made and info.command else made or info.command
