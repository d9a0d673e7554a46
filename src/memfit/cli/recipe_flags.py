"""The flags that say what is trained, and how: for one configuration, or several with commas between."""

from __future__ import annotations

import argparse
from typing import Any, Final

from memfit.errors import ConfigError
from memfit.models import MODELS
from memfit.models.recipe import CHECKPOINTINGS, ENGINES, OFFLOADS, OPTIMIZERS, PRECISIONS, PREFETCHES, STRATEGIES

FLAGS: Final = {
    "strategy": (("--strategy",), f"{', '.join(STRATEGIES)}; full_shard by default, nothing on one GPU"),
    "engine": (("--engine",), f"{', '.join(ENGINES)}; fsdp2 by default, ddp for no_shard"),
    "mesh": (("--mesh",), "replicas x GPUs that shard, for hybrid strategies: 8x8; GPUs of a node shard by default"),
    "batch": (("--batch",), "sequences a GPU and step; 1 by default"),
    "seq": (("--seq",), "tokens a sequence; the model's context by default, but no more than 8192"),
    "precision": (("--precision", "--dtype"), f"{', '.join(PRECISIONS)}; bf16-mixed by default"),
    "checkpointing": (("--checkpointing",), f"{', '.join(CHECKPOINTINGS)}; none by default"),
    "offload": (("--offload",), f"to host memory: {', '.join(OFFLOADS)}; none by default"),
    "prefetch": (("--prefetch",), f"{', '.join(PREFETCHES)}; backward_pre by default"),
    "optimizer": (("--optimizer",), f"{', '.join(OPTIMIZERS)}; adamw by default"),
}
NUMBERS: Final = ("batch", "seq")


def add_subject(parser: argparse.ArgumentParser, function_help: str) -> None:
    parser.add_argument("function", nargs="?", default="", metavar="FILE.py:FUNCTION", help=function_help)
    parser.add_argument("--model", default="", metavar="NAME", help=f"a model by name, in place of a function: {', '.join(MODELS)}")
    parser.add_argument("--hf", default="", metavar="CONFIG", help="a Hugging Face config.json, in place of a function; no weights")


def add_recipe(parser: argparse.ArgumentParser, title: str) -> None:
    group = parser.add_argument_group(title)
    for name, (flags, summary) in FLAGS.items():
        group.add_argument(*flags, dest=name, metavar=name.upper(), help=summary)


def given(args: argparse.Namespace) -> dict[str, list[Any]]:
    """The flags that were given, each with its values."""
    return {name: read_values(name, getattr(args, name)) for name in FLAGS if getattr(args, name) is not None}


def read_values(name: str, text: str) -> list[Any]:
    """``full_shard,no_shard`` and ``8,64``."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ConfigError(f"cannot read {text!r} for {name}: write values with commas between, like A,B")
    return [_number(name, word) for word in words] if name in (*NUMBERS, "world_size") else words


def _number(name: str, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ConfigError(f"{name.replace('_', '-')} takes whole numbers, not {word!r}") from None
