"""What a search may choose from: every way to train a model on these GPUs that trains the same.

::

    Space ── what the user fixed, what is left open ──> candidates(): a configuration each

Precision, optimizer, float8 and the global batch change what is learned. They stay as they are unless the user allows each by
name, or gives several values. What is left open is listed in ``OPEN``; each line says why some choices are not in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from memfit.choices import AXES, CHECKPOINTINGS, FLOAT8S, OPTIMIZERS, PRECISIONS, STRATEGIES, Split
from memfit.errors import ConfigError
from memfit.hardware import GPUS_PER_NODE
from memfit.job import Configuration, PredictOptions, Recipe, Subject
from memfit.job.axes import MODEL_AXES, read_axes
from memfit.job.configuration import has_bf16
from memfit.models import find_model

CHANGES_TRAINING: Final = ("precision", "optimizer", "float8", "batch")
"""What is only varied where the user allows it."""

SEARCHED_SCHEDULES: Final = ("1f1b", "interleaved-1f1b")
"""GPipe and looped BFS wait as long and hold more. Of the others, two lose gradients where stages are sharded, and dualpipe-v
cannot be compiled: they are searched where they are named."""

SEARCHED_COMPILES: Final = ("none", "blocks")
"""``model`` compiles the same kernels, all layers at once."""

BATCH_FACTORS: Final = (1, 2, 4)
"""How many times the global batch, where it may vary: each in as many parts as can be."""

LARGER_FACTORS: Final = (3, *(factor for power in range(3, 13) for factor in (2**power * 3 // 4, 2**power)))
"""How many times it may be beyond that, as long as it may fit: 3, 6, 8, 12, 16, 24 and so on, each in as few parts as can be."""

FACTORS_WITHOUT_BOUNDS: Final = 7
"""Of these, how many are looked at where nothing is known of a model's memory before it is built: up to 24 times."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """What is trained on what, and what may vary."""

    subject: Subject
    options: PredictOptions = PredictOptions()
    global_batch: int = 0
    """Sequences in a step of all GPUs. Left out: one for each GPU."""
    seq: int = 0
    given: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Axes that the user fixed, to one value or to several."""
    allowed: tuple[str, ...] = ()
    """Of ``CHANGES_TRAINING``, what may vary although it trains differently."""

    def __post_init__(self) -> None:
        self._set("given", read_axes(self.given))
        for name in self.given:
            if name not in MODEL_AXES or name == "seq":
                raise ConfigError(
                    f"a plan has no axis {name!r}: use one of {', '.join(each for each in MODEL_AXES if each != 'seq')}"
                )
        for name in self.allowed:
            if name not in CHANGES_TRAINING:
                raise ConfigError(
                    f"cannot allow {name!r} to change: it is {', '.join(CHANGES_TRAINING)} that change what is trained"
                )
            if name in self.given:
                start = ", or give the batch to start from as --global-batch (global_batch=)" if name == "batch" else ""
                raise ConfigError(f"{name} is fixed, so allowing it to vary has no effect: leave one of the two out{start}")
        if isinstance(self.global_batch, bool) or not isinstance(self.global_batch, int) or self.global_batch < 0:
            raise ConfigError(f"global_batch takes a whole number of at least 1, not {self.global_batch!r}")
        self._set("global_batch", self.global_batch or self.world_size)
        batch = max(1, self.global_batch // self.world_size, *self.given.get("batch", ()))
        # Refuses an unknown model, too long a sequence, and more of them than a GPU can be given.
        self._set("seq", Recipe(model=self.subject.model, hf=self.subject.hf, seq=self.seq, batch=batch).seq)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def gpu(self) -> str:
        return self.options.gpu

    @property
    def world_size(self) -> int:
        return self.options.world_size

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the search took for granted."""
        if "batch" in self.given:
            return (f"a sequence has {self.seq} tokens",)
        batch = f"a step of all GPUs has {self.global_batch} sequence{'' if self.global_batch == 1 else 's'} of {self.seq} tokens"
        return (batch if self.global_batch != self.world_size else f"{batch}, one for each GPU unless you say otherwise",)

    # -- what is open -------------------------------------------------------------------------------------------------------------

    @property
    def has_larger_batches(self) -> bool:
        return "batch" in self.allowed

    def candidates(self, *, offload: Sequence[str] = ("none",), factor: int = 0) -> Iterator[Configuration]:
        """Each once. What recipes refuse is left out. With a factor, those with that many times the global batch, in as
        few parts as can be."""
        seen: set[Recipe] = set()
        reasons: dict[str, None] = {}
        for chosen in self._combinations(offload, factor):
            try:
                found = Configuration.of(self.subject, {"seq": self.seq} | chosen, self.options)
            except ConfigError as error:
                reasons.setdefault(str(error))
                continue
            if found.recipe not in seen:
                seen.add(found.recipe)
                yield found
        if not seen:
            said = f": {next(iter(reasons))}" if reasons else f": {self._why_none()}"
            raise ConfigError(f"there is no way to train {self.subject.name} on {self.world_size} GPUs as you asked{said}")

    def _why_none(self) -> str:
        return (
            f"{self.global_batch} sequences in a step cannot be shared out equally by what is left of {self.world_size} GPUs; say "
            "another --global-batch, or leave more open"
        )

    def _combinations(self, offload: Sequence[str], factor: int) -> Iterator[dict[str, Any]]:
        for degrees in self._degrees():
            for strategy, batch in itertools.product(self._strategies(degrees), self._batches(degrees, factor)):
                for how, words in itertools.product(self._passes(degrees, batch, in_few=bool(factor)), self._words(offload)):
                    yield degrees | {"strategy": strategy} | how | words

    def _degrees(self) -> Iterator[dict[str, int]]:
        """How many GPUs share what; tensor parallelism stays in a node, where its links are fast."""
        tps = self._numbers("tp", [size for size in _divisors(self.world_size) if size <= GPUS_PER_NODE])
        for tp in tps:
            for pp in self._numbers("pp", _divisors(self.world_size // tp) if self.world_size % tp == 0 else []):
                for cp in self._numbers("cp", _divisors(self.world_size // (tp * pp)) if self.world_size % (tp * pp) == 0 else []):
                    if self.world_size % (tp * pp * cp) == 0 and (cp <= GPUS_PER_NODE or "cp" in self.given):
                        for ep in self._numbers("ep", self._expert_degrees(tp, pp)):
                            yield {"tp": tp, "pp": pp, "cp": cp, "ep": ep}

    def _expert_degrees(self, tp: int, pp: int) -> list[int]:
        experts = find_model(self.subject.model).num_experts if self.subject.model else 0
        if not experts:
            return [1]
        return [ep for ep in _divisors(self.world_size // pp) if experts % ep == 0 and (ep == 1 or ep % tp == 0)]

    def _numbers(self, axis: str, found: Sequence[int]) -> Sequence[int]:
        return self.given.get(axis, found if not self.subject.hf else (1,))

    def _strategies(self, degrees: dict[str, int]) -> Sequence[str]:
        if "strategy" in self.given:
            return self.given["strategy"]
        if self.world_size == 1:
            return ("",)
        several_nodes = self.world_size > GPUS_PER_NODE
        is_plain = all(size == 1 for size in degrees.values())
        # A hybrid strategy has several copies of the GPUs that shard, those of a node.
        apart = degrees["tp"] * degrees["cp"]
        copies = self.world_size // (apart * degrees["pp"]) // max(1, GPUS_PER_NODE // apart)
        rows = [row for row in STRATEGIES.values() if row.split is not Split.NODE or (several_nodes and copies > 1)]
        return tuple(row.name for row in rows if is_plain or row.split is not Split.NOTHING)

    def _batches(self, degrees: dict[str, int], factor: int) -> Iterator[int]:
        """Sequences of the GPUs that share each, so that all together have the global batch."""
        sharing = self.world_size // (degrees["tp"] * degrees["pp"] * degrees["cp"])
        if "batch" in self.given:
            yield from self.given["batch"]
            return
        for times in (factor,) if factor else BATCH_FACTORS if "batch" in self.allowed else (1,):
            if self.global_batch * times % sharing == 0:
                yield self.global_batch * times // sharing

    def _passes(self, degrees: dict[str, int], batch: int, *, in_few: bool) -> Iterator[dict[str, Any]]:
        """In how many parts the batch is computed, and in which order a pipeline does it."""
        counts = self.given.get("microbatches", _divisors(batch))
        if in_few and "microbatches" not in self.given:
            counts = [count for count in counts if count >= degrees["pp"]][:1]
        if degrees["pp"] == 1:
            yield from ({"batch": batch, "microbatches": 0 if count == 1 else count} for count in counts)
            return
        # Fewer microbatches than ranks would leave some without work all the time; torch refuses them.
        enough = [count for count in counts if count >= degrees["pp"]]
        for schedule in self.given.get("schedule", SEARCHED_SCHEDULES):
            yield from ({"batch": batch, "microbatches": count, "schedule": schedule} for count in enough)

    def _words(self, offload: Sequence[str]) -> Iterator[dict[str, Any]]:
        usual = "bf16-mixed" if has_bf16(self.gpu) else "fp16-mixed"
        open_words: dict[str, Sequence[Any]] = {
            "checkpointing": tuple(CHECKPOINTINGS),
            "compile": SEARCHED_COMPILES,
            "offload": offload,
            "precision": tuple(PRECISIONS) if "precision" in self.allowed else (usual,),
            "optimizer": tuple(OPTIMIZERS) if "optimizer" in self.allowed else ("adamw",),
            "float8": tuple(FLOAT8S) if "float8" in self.allowed else ("none",),
        }
        fixed = ("engine", "prefetch", "mesh", "lora", "lora_modules", "quantize")
        words = open_words | {name: values for name, values in self.given.items() if name in (*open_words, *fixed)}
        for values in itertools.product(*words.values()):
            yield dict(zip(words, values, strict=True))


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def sequences_of(asked: Configuration) -> int:
    """Sequences per step, over all GPUs."""
    recipe = asked.recipe
    return recipe.batch * asked.world_size // (recipe.tp * recipe.pp * recipe.cp)


def varying_axes(cells: Sequence[Configuration]) -> tuple[str, ...]:
    """On which candidates differ; not the engine, which follows from the strategy."""
    names = dict.fromkeys((*AXES, *(name for asked in cells for name in asked.inputs)))
    found = (name for name in names if any(asked.inputs.get(name) != cells[0].inputs.get(name) for asked in cells))
    return tuple(name for name in found if name not in ("engine", "world_size", "gpu"))
