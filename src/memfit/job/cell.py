"""One cell of a grid: what went in, and what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from memfit.job.configuration import Configuration
from memfit.ledger import Category, Phase

SAFETY_MARGIN: Final = 0.02
"""The share of the memory that stays free: a prediction of what the allocator needs is this good for nine runs in ten
(docs/accuracy.md), so that a fit by less may be the prediction's error."""

_MOST_BYTES: Final = 2**62
_MOST_SECONDS: Final = 10**9
_KINDS: Final[dict[str, Any]] = {
    "fits": bool,
    "least_gpu": str,
    "peak_phase": str,
    "breakdown": dict,
    "assumptions": tuple,
    "seconds": (int, float),
    "step_seconds": (int, float),
    "tokens_per_second": (int, float),
}
"""The figures that are no numbers of bytes."""


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What was predicted. Sizes are bytes."""

    peak_allocated: int
    """What ``torch.cuda.max_memory_allocated()`` would say."""
    peak_reserved: int
    """What ``torch.cuda.max_memory_reserved()`` would say with memory to spare."""
    smallest_fit: int
    """The least that the allocator must be able to get for the run to complete."""
    fits: bool
    """On the cell's GPU, with its context and communicators counted."""
    margin: int
    """What is left of the GPU; negative is what is missing."""
    capacity: int
    """What the allocator can get on this GPU."""
    num_alloc_retries: int
    """How often the allocator must give cached memory back on this GPU to complete."""
    least_gpu: str
    """The least GPU on which it fits; empty if memfit knows none."""
    peak_phase: str
    """The label of a ``Phase``: ``backward``, ``optimizer``, ...; empty outside all phases."""
    breakdown: dict[str, int]
    """The peak by the label of a ``Category``, largest first."""
    assumptions: tuple[str, ...]
    seconds: float
    """What the prediction took."""
    step_seconds: float = 0.0
    """How long a training step takes on the cell's GPU; 0 where it is not known."""
    tokens_per_second: float = 0.0
    """Of one GPU; 0 where it is not known."""

    @property
    def phase(self) -> Phase | None:
        """What ran at the peak."""
        return Phase.from_label(self.peak_phase)

    @property
    def largest_category(self) -> str:
        return next(iter(self.breakdown), "")

    @property
    def largest(self) -> Category | None:
        """What most of the peak is."""
        return Category.from_label(self.largest_category)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """From what ``dataclasses.asdict`` made of it; ``TypeError`` or ``ValueError`` where it has something else in it."""
        found = cls(**plain | {"assumptions": tuple(plain["assumptions"])})
        for field in fields(cls):
            _check(field.name, getattr(found, field.name))
        return found


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One configuration. It has figures, or an error that says why not."""

    configuration: Configuration
    figures: CellResult | None = None
    error: str = ""
    """In one line."""
    details: str = ""
    """The traceback, where there is one."""
    cached: bool = False

    @classmethod
    def of(cls, configuration: Configuration, answer: Mapping[str, Any]) -> Self:
        """From what the process of a cell answered: ``{"figures": ...}``, or ``{"error": ..., "details": ...}``."""
        if "figures" in answer:
            return cls(configuration=configuration, figures=CellResult.from_json(answer["figures"]))
        return cls(configuration=configuration, error=answer["error"], details=answer["details"])

    @property
    def inputs(self) -> dict[str, Any]:
        """What went in, by name: ``model``, ``gpu``, ``world_size``, ``strategy``, ..."""
        return self.configuration.inputs

    @property
    def fits(self) -> bool:
        return self.figures is not None and self.figures.fits

    @property
    def smallest_fit(self) -> int | None:
        return self.figures.smallest_fit if self.figures is not None else None

    def to_json(self) -> dict[str, Any]:
        """What went in and what came out, in one flat object; ``error`` in place of figures if there are none."""
        inputs = {name: _in_json(value) for name, value in self.inputs.items()}
        if self.figures is None:
            return inputs | {"error": self.error}
        figures = {name: _in_json(value) for name, value in asdict(self.figures).items() if name != "assumptions"}
        more = {"assumptions": [*self.figures.assumptions], "largest_category": self.figures.largest_category}
        return inputs | figures | more | {"cached": self.cached}


def _check(name: str, value: Any) -> None:
    """Is that what a figure of this name holds?"""
    if not isinstance(value, _KINDS.get(name, int)):
        raise TypeError(f"{name} is of the wrong type")
    sizes = value.values() if name == "breakdown" else () if name in _KINDS else (value,)
    if not all(type(size) is int and -_MOST_BYTES < size < _MOST_BYTES for size in sizes):
        raise TypeError(f"{name} is no number of bytes")
    if name == "assumptions" and not all(isinstance(text, str) for text in value):
        raise TypeError("an assumption is no text")
    if name in ("seconds", "step_seconds") and not 0 <= value < _MOST_SECONDS:
        raise ValueError("it cannot have taken so long")
    if name == "tokens_per_second" and not 0 <= value < _MOST_BYTES:
        raise ValueError("nothing is so fast")


def _in_json(value: Any) -> Any:
    """What was left out is null."""
    if value in ("", (), []):
        return None
    return [*value] if isinstance(value, tuple) else value
