"""A comparison, laid out: everything that its table says, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memfit.compare.cell import Cell, Figures
from memfit.compare.recommendation import advise, choose, in_words
from memfit.compare.result import Comparison
from memfit.models import find_model
from memfit.units import format_bytes
from memfit.views.comparison import FailedRow, Sheet, SheetRow, Verdict

_SHOWN_ONLY_IF_UNUSUAL = {"offload": "none", "prefetch": "backward_pre", "mesh": (), "strategy": "", "engine": ""}


def make_sheet(comparison: Comparison) -> Sheet:
    """Cells that differ only in their GPU share a row."""
    axes = tuple(axis for axis in comparison.varying if axis != "gpu")
    rows: dict[tuple[str, ...], dict[str, Cell]] = {}
    for cell in comparison.cells:
        rows.setdefault(_values(cell, axes), {})[cell.inputs["gpu"]] = cell
    return Sheet(
        title=_title(comparison),
        facts=", ".join(_constants(comparison)),
        axes=tuple(axis.replace("_", " ") for axis in axes),
        gpus=comparison.gpus,
        rows=tuple(_rows(rows, comparison)),
        failed=tuple(_failed_rows(rows, several=len(comparison.gpus) > 1)),
        left_out=comparison.left_out,
        closing=tuple(said for gpu in comparison.gpus for said in advise(comparison.cells, comparison.varying, gpu)),
        assumptions=tuple(dict.fromkeys(each for cell in comparison.cells if cell.figures for each in cell.figures.assumptions)),
        details="" if comparison.best else next((cell.details for cell in comparison.cells if cell.details), ""),
    )


def _rows(rows: dict[tuple[str, ...], dict[str, Cell]], comparison: Comparison) -> Iterator[SheetRow]:
    """The first GPU that has figures speaks for its row; the others only for their verdicts."""
    speaking: list[tuple[Figures, tuple[str, ...]]] = []
    for values, cells in rows.items():
        found = [cells[gpu].figures for gpu in comparison.gpus if gpu in cells]
        speaking += [(figures, values) for figures in found if figures is not None][:1]
    speaking.sort(key=lambda each: each[0].smallest_fit)
    chosen = [choose([cell for cell in comparison.cells if cell.inputs["gpu"] == gpu]) for gpu in comparison.gpus]
    for figures, values in speaking:
        cells = rows[values]
        yield SheetRow(
            values=values,
            smallest_fit=format_bytes(figures.smallest_fit),
            peak_phase=figures.peak_phase,
            largest=figures.largest_category,
            verdicts=tuple(_verdict(cells.get(gpu)) for gpu in comparison.gpus),
            against_best=_against(figures, speaking[0][0]) if figures is not speaking[0][0] else "",
            recommended=any(cell in cells.values() for cell in chosen if cell is not None),
        )


def _title(comparison: Comparison) -> str:
    name = comparison.subject.name
    if comparison.subject.model:
        config = find_model(comparison.subject.model)
        name = f"{config.name}, {config.num_parameters / 1e9:,.2f} billion parameters"
    return f"{name}, on {' or '.join(comparison.gpus)}"


def _constants(comparison: Comparison) -> Iterator[str]:
    """What all cells have in common."""
    for axis, value in comparison.cells[0].inputs.items():
        hidden = axis in ("model", "hf", "function", "gpu", *comparison.varying)
        if not hidden and not (axis in _SHOWN_ONLY_IF_UNUSUAL and value == _SHOWN_ONLY_IF_UNUSUAL[axis]):
            yield in_words(axis, value)


def _values(cell: Cell, axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_text(cell.inputs.get(axis)) for axis in axes)


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "x".join(map(str, value)) or "default"
    return str(value) if value != "" else "none"


def _verdict(cell: Cell | None) -> Verdict:
    if cell is None or cell.figures is None:
        return Verdict(text="failed" if cell else "", fits=None)
    amount = format_bytes(abs(cell.figures.margin))
    if cell.figures.fits:
        return Verdict(text=f"fits, {amount} left", fits=True)
    return Verdict(text=f"{amount} short" if cell.figures.margin < 0 else "does not complete", fits=False)


def _against(figures: Figures, best: Figures) -> str:
    """How much more, and for what: the category that grew most."""
    grown = {name: size - best.breakdown.get(name, 0) for name, size in figures.breakdown.items()}
    more = f"+{format_bytes(figures.smallest_fit - best.smallest_fit)}"
    name = max(grown, key=lambda name: grown[name], default="")
    return f"{more} {name}" if name and grown[name] > 0 else more


def _failed_rows(rows: dict[tuple[str, ...], dict[str, Cell]], *, several: bool) -> Iterator[FailedRow]:
    for values, cells in rows.items():
        for gpu, cell in cells.items():
            if cell.figures is None:
                yield FailedRow(values=(*values, *([gpu] if several else [])), error=cell.error)
