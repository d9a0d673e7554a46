"""One cell of a grid: what went in, and what came out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from memfit.ledger import Category, Phase

Inputs = dict[str, Any]
"""Each axis by name, in plain values that JSON has."""


@dataclass(frozen=True, kw_only=True)
class Figures:
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
        return cls(**plain | {"assumptions": tuple(plain["assumptions"])})


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One configuration. It has figures, or an error that says why not."""

    inputs: Inputs
    figures: Figures | None = None
    error: str = ""
    """In one line."""
    details: str = ""
    """The traceback, where there is one."""
    cached: bool = False

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


def _in_json(value: Any) -> Any:
    """What was left out is null."""
    if value in ("", (), []):
        return None
    return [*value] if isinstance(value, tuple) else value
