"""How a model is trained: everything that a prediction needs to know, in words that a command line can carry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from memfit.choices import AXES, STRATEGIES, check_choice
from memfit.errors import ConfigError
from memfit.models.catalog import find_model
from memfit.models.hf_config import context_of

LONGEST_DEFAULT: Final = 8192
"""A longer context is trained only by those who ask for it."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
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
    """Sequences per GPU and step."""
    seq: int = 0
    """Tokens per sequence. Left out: the model's context, but no more than 8192."""
    precision: str = ""
    """Left out: ``bf16-mixed``, or ``fp16-mixed`` on a GPU without bfloat16: weights in float32, computed in 16 bits, by FSDP's
    mixed precision or by autocast. ``bf16``: everything in bfloat16, optimizer state too. ``fp32``: everything in float32."""
    checkpointing: str = "none"
    """What each block's backward computes again: nothing, all but matrix products and attention (``selective``), or all."""
    compile: str = "none"
    """``torch.compile`` for each block (``blocks``), for the whole model (``model``), or not at all."""
    offload: str = "none"
    """``params``: sharded parameters, gradients and optimizer state in host memory."""
    prefetch: str = "backward_pre"
    optimizer: str = "adamw"
    """``adamw`` as torch makes it, which is foreach; ``adamw-fused`` needs no temporaries."""

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.hf):
            raise ConfigError("name a model (model='llama3-8b'), or give the path of a Hugging Face config (hf='config.json')")
        for name, axis in AXES.items():
            if axis.choices is not None:
                check_choice(name, getattr(self, name))
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
        return find_model(self.model).context if self.model else context_of(Path(self.hf))

    @property
    def name(self) -> str:
        """Of the model, for people."""
        return self.model or self.hf

    def settled(self, world_size: int, *, has_bf16: bool) -> Self:
        """With everything written out that was left to the GPUs."""
        precision = self.precision or ("bf16-mixed" if has_bf16 else "fp16-mixed")
        strategy = self.strategy or ("full_shard" if world_size > 1 else "")
        engine = self.engine or (STRATEGIES[strategy].engine if strategy else "")
        return replace(self, strategy=strategy, engine=engine, precision=precision)
