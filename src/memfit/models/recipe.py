"""How a model is trained: everything that a prediction needs to know, in words that a command line can carry."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from memfit.errors import ConfigError
from memfit.models.catalog import find_model
from memfit.reading import read_regular

STRATEGIES: Final = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard")
ENGINES: Final = ("fsdp2", "fsdp1", "ddp")
PREFETCHES: Final = ("backward_pre", "backward_post", "none")
CHECKPOINTINGS: Final = ("none", "selective", "full")
OFFLOADS: Final = ("none", "params")
PRECISIONS: Final = ("bf16-mixed", "fp16-mixed", "bf16", "fp32")
OPTIMIZERS: Final = ("adamw", "adamw-fused", "sgd", "sgd-momentum", "adafactor")

LONGEST_DEFAULT: Final = 8192
"""A longer context is trained only by those who ask for it."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One way to train a model on some GPUs."""

    model: str = ""
    """A name that memfit knows: ``llama3-8b``."""
    hf: str = ""
    """Or the path of a Hugging Face ``config.json``."""
    strategy: str = ""
    """Left out: ``full_shard`` on several GPUs, none on one."""
    engine: str = ""
    """Left out: FSDP2, or DDP for ``no_shard``."""
    mesh: tuple[int, ...] = ()
    """(replicas, GPUs that shard) for hybrid strategies. Left out: GPUs of a node shard."""
    batch: int = 1
    """Sequences a GPU and step."""
    seq: int = 0
    """Tokens a sequence. Left out: the model's context, but no more than 8192."""
    precision: str = ""
    """Left out: ``bf16-mixed``, or ``fp16-mixed`` on a GPU without bfloat16: weights in float32, computed in 16 bits, by FSDP's
    mixed precision or by autocast. ``bf16``: everything in bfloat16, optimizer state too. ``fp32``: everything in float32."""
    checkpointing: str = "none"
    """What each block's backward computes again: nothing, all but matrix products and attention (``selective``), or all."""
    offload: str = "none"
    """``params``: sharded parameters, gradients and optimizer state in host memory."""
    prefetch: str = "backward_pre"
    optimizer: str = "adamw"
    """``adamw`` as torch makes it, which is foreach; ``adamw-fused`` needs no temporaries."""

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.hf):
            raise ConfigError("name a model (model='llama3-8b'), or give the path of a Hugging Face config (hf='config.json')")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                known = ", ".join(each for each in allowed if each)
                raise ConfigError(f"{name} {getattr(self, name)!r} is not known: say one of {known}")
        if self.model:
            object.__setattr__(self, "model", find_model(self.model).name)
        elif not Path(self.hf).is_file():
            raise ConfigError(f"there is no file {self.hf}: --hf takes the path of a Hugging Face config.json")
        if not self.seq:
            object.__setattr__(self, "seq", min(self.context, LONGEST_DEFAULT))
        self._check_sizes()

    def _check_sizes(self) -> None:
        for name in ("batch", "seq"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(f"{name} takes a whole number of at least 1, not {getattr(self, name)!r}")
        if self.seq > self.context and not self.hf:
            raise ConfigError(f"{self.model} was made for sequences of up to {self.context} tokens, not {self.seq}")

    @property
    def context(self) -> int:
        """The longest sequence the model was made for."""
        return find_model(self.model).context if self.model else _context_of(Path(self.hf))

    @property
    def name(self) -> str:
        """Of the model, for people."""
        return self.model or self.hf

    def settled(self, world_size: int, *, has_bf16: bool) -> Recipe:
        """With everything spelt out that was left to the GPUs."""
        precision = self.precision or ("bf16-mixed" if has_bf16 else "fp16-mixed")
        strategy = self.strategy or ("full_shard" if world_size > 1 else "")
        engine = self.engine or {"": "", "no_shard": "ddp"}.get(strategy, "fsdp2")
        return replace(self, strategy=strategy, engine=engine, precision=precision)

    def build(self) -> Callable[[], Any]:
        """Makes model, optimizer and data on ``"cuda"``; gives the function that does one training step."""
        from memfit.models.training import build_step

        return build_step(self)


CHOICES: Final[dict[str, Sequence[str]]] = {
    "precision": ("", *PRECISIONS),
    "optimizer": OPTIMIZERS,
    "checkpointing": CHECKPOINTINGS,
    "strategy": ("", *STRATEGIES),
    "engine": ("", *ENGINES),
    "offload": OFFLOADS,
    "prefetch": PREFETCHES,
}
"""The words that some fields are limited to."""

RECIPE_FIELDS: Final = tuple(field.name for field in fields(Recipe))

_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_target_positions")
_WITHOUT_CONTEXT = 512
"""Where a config has none, as T5's."""


def read_config(path: Path) -> dict[str, Any]:
    """A Hugging Face ``config.json``."""
    try:
        config = json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}): give the config.json of a Hugging Face model") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ConfigError(f"{path} has no model_type: give the config.json of a Hugging Face model")
    return config


def _context_of(path: Path) -> int:
    config = read_config(path)
    nested = [part for part in (config.get("text_config"), config.get("decoder")) if isinstance(part, dict)]
    for part in (config, *nested):
        found = [part[name] for name in _CONTEXT_NAMES if isinstance(part.get(name), int) and part[name] > 0]
        if found:
            return int(found[0])
    return _WITHOUT_CONTEXT
