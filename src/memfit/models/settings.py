"""How a model is trained: everything that a prediction needs to know, in words that a command line can carry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from memfit.choices import AXES, PRECISIONS, STRATEGIES, check_choice
from memfit.errors import ConfigError
from memfit.models.catalog import find_model
from memfit.models.degrees import DEGREES, LEFT_OUT, Degrees, check_degrees, check_numbers, check_world, hybrid_mesh, read_mesh
from memfit.models.hf_config import context_of

LONGEST_DEFAULT: Final = 8192
"""A longer context is trained only by those who ask for it."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Degrees):
    """One way to train a model on some GPUs."""

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
            self._set("model", find_model(self.model).name)
        elif not Path(self.hf).is_file():
            raise ConfigError(f"there is no file {self.hf}: --hf takes the path of a Hugging Face config.json")
        if not self.seq:
            self._set("seq", min(self.context, LONGEST_DEFAULT))
        check_numbers(self)
        if isinstance(self.mesh, str):
            self._take_degrees(read_mesh(self.mesh))
        if not isinstance(self.batch, int) or (self.batch < 1 and self.batch != LEFT_OUT):
            raise ConfigError(f"batch takes a whole number of at least 1, not {self.batch!r}")
        self._fill_the_pipeline()
        self._check_sizes()
        check_degrees(self)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _take_degrees(self, axes: dict[str, int]) -> None:
        """What a mesh says about them; the rest of it, dp and replicas, waits for the world."""
        for axis in DEGREES:
            said = getattr(self, axis)
            if axis in axes and said not in (1, axes[axis]):
                raise ConfigError(f"the mesh {self.mesh} and {axis}={said} say two things: leave one of them out")
            self._set(axis, axes.get(axis, said))

    def _fill_the_pipeline(self) -> None:
        """What was left out of a schedule and its microbatches."""
        if self.pp > 1:
            self._set("schedule", self.schedule or "1f1b")
            self._set("microbatches", self.microbatches or (self.num_stages if self.batch == LEFT_OUT else self.batch))
        if self.batch == LEFT_OUT:
            self._set("batch", max(1, self.microbatches))

    def _check_sizes(self) -> None:
        if not isinstance(self.seq, int) or self.seq < 1:
            raise ConfigError(f"seq takes a whole number of at least 1, not {self.seq!r}")
        if self.seq > self.context and not self.hf:
            raise ConfigError(f"{self.model} was made for sequences of up to {self.context} tokens, not {self.seq}")

    def _check_attention(self, precision: str, *, has_bf16: bool) -> None:
        """Context parallelism passes keys and values around for fused attention only. Where none takes the call, torch computes it
        by matrix products and raises that tensors are mixed (seen on an H200 with fused attention switched off)."""
        config, row = find_model(self.model), PRECISIONS[precision]
        is_fused_for_groups = has_bf16 and (row.computes or row.weights) in ("bfloat16", "float16")
        if config.kv_heads != config.heads and not is_fused_for_groups:
            raise ConfigError(
                f"cp={self.cp}: torch's context parallelism needs fused attention, and {config.name}'s {config.heads} heads share "
                f"{config.kv_heads} keys and values, for which there is one only in 16 bits and on GPUs with bfloat16 (Ampere and "
                "later): leave cp out, or take another GPU or precision"
            )

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
        # In a pipeline, weights that were given back would be gathered again for every microbatch.
        usual = "shard_grad_op" if self.pp > 1 else "full_shard"
        strategy = self.strategy or (usual if world_size > 1 or self.is_parallel else "")
        engine = self.engine or (STRATEGIES[strategy].engine if strategy else "")
        if self.is_parallel or isinstance(self.mesh, str):
            check_world(self, world_size)
        if self.cp > 1:
            self._check_attention(precision, has_bf16=has_bf16)
        mesh = hybrid_mesh(self.mesh) if isinstance(self.mesh, str) else self.mesh
        return replace(self, strategy=strategy, engine=engine, precision=precision, mesh=mesh)
