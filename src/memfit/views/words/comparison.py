"""A comparison in words: what its table says, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from memfit.choices import AXES
from memfit.compare import Comparison
from memfit.compare.recommendation import NothingFits, Recommendation, Setting, advise, choose
from memfit.hardware import find_gpu
from memfit.job import Cell, CellResult
from memfit.job.cell import SAFETY_MARGIN
from memfit.models import find_model
from memfit.timing.basis import what_times_are_from
from memfit.units import format_bytes
from memfit.views.comparison import FailedRow, GpuAnswer, Sheet, SheetRow
from memfit.views.words.recipe import in_words, recipe_line
from memfit.views.words.timing import format_seconds

WORK: Final = frozenset({"batch", "seq", "microbatches", "world_size", "mesh", "tp", "pp", "cp"})
"""Axes on which steps do different amounts of work: their times do not compare, tokens per second do."""


def compares_by_tokens(comparison: Comparison) -> bool:
    """Whether tokens per second of a GPU say what is faster, in place of the time of a step."""
    timed = [cell.figures for cell in comparison.cells if cell.figures is not None and cell.figures.step_seconds]
    return bool(timed and WORK & {*comparison.varying}) and all(figures.tokens_per_second for figures in timed)


def make_sheet(comparison: Comparison) -> Sheet:
    """Cells that differ only in their GPU share a row."""
    axes = tuple(axis for axis in comparison.varying if axis != "gpu")
    rows: dict[tuple[str, ...], dict[str, Cell]] = {}
    for cell in comparison.cells:
        rows.setdefault(_values(cell, axes), {})[cell.inputs["gpu"]] = cell
    return Sheet(
        title=_title(comparison),
        facts=", ".join([*_constants(comparison), *([f"figures of {comparison.gpus[0]}"] if len(comparison.gpus) > 1 else [])]),
        axes=tuple(axis.replace("_", " ") for axis in axes),
        gpus=comparison.gpus,
        speed="tokens/s/GPU" if compares_by_tokens(comparison) else "a step",
        rows=tuple(_rows(rows, comparison)),
        failed=tuple(_failed_rows(rows, several=len(comparison.gpus) > 1)),
        left_out=comparison.left_out,
        closing=tuple(
            said
            for gpu in comparison.gpus
            for cells in _by_subject(comparison)
            for said in closing_words(cells, comparison.varying, gpu)
        ),
        assumptions=tuple(dict.fromkeys(each for cell in comparison.cells for each in _assumptions(cell))),
        details="" if comparison.best else next((cell.details for cell in comparison.cells if cell.details), ""),
    )


def _by_subject(comparison: Comparison) -> list[list[Cell]]:
    """The cells of each model: which model to train is no matter of memory and time alone."""
    return [[cell for cell in comparison.cells if cell.configuration.subject == each] for each in comparison.subjects]


def _assumptions(cell: Cell) -> Iterator[str]:
    if cell.figures is not None:
        yield from cell.figures.assumptions
        if cell.figures.step_seconds:
            yield what_times_are_from(find_gpu(cell.inputs["gpu"]), cell.inputs["world_size"])


def _rows(rows: dict[tuple[str, ...], dict[str, Cell]], comparison: Comparison) -> Iterator[SheetRow]:
    """The first GPU that has figures speaks for its row; the others only for their verdicts."""
    speaking: list[tuple[CellResult, tuple[str, ...]]] = []
    for values, cells in rows.items():
        found = [cells[gpu].figures for gpu in comparison.gpus if gpu in cells]
        speaking += [(figures, values) for figures in found if figures is not None][:1]
    speaking.sort(key=lambda each: each[0].smallest_fit)
    chosen = [
        choose([cell for cell in cells if cell.inputs["gpu"] == gpu])
        for gpu in comparison.gpus
        for cells in _by_subject(comparison)
    ]
    by_tokens = compares_by_tokens(comparison)
    for figures, values in speaking:
        cells = rows[values]
        yield SheetRow(
            values=values,
            smallest_fit=format_bytes(figures.smallest_fit),
            speed=_speed(figures, by_tokens=by_tokens),
            peak_phase=figures.peak_phase,
            largest=figures.largest_category,
            answers=tuple(answer_of(cells.get(gpu)) for gpu in comparison.gpus),
            against_best=_against(figures, speaking[0][0]) if figures is not speaking[0][0] else "",
            recommended=any(cell in cells.values() for cell in chosen if cell is not None),
        )


def _speed(figures: CellResult, *, by_tokens: bool) -> str:
    if not figures.step_seconds:
        return ""
    return f"{figures.tokens_per_second:,.0f}" if by_tokens else format_seconds(figures.step_seconds)


def _title(comparison: Comparison) -> str:
    name = " or ".join(subject.name for subject in comparison.subjects)
    if len(comparison.subjects) == 1 and comparison.subjects[0].model:
        config = find_model(comparison.subjects[0].model)
        name = f"{config.name}, {config.num_parameters / 1e9:,.2f} billion parameters"
    return f"{name}, on {' or '.join(comparison.gpus)}"


def _constants(comparison: Comparison) -> Iterator[str]:
    """What all cells have in common."""
    for axis, value in comparison.cells[0].inputs.items():
        hidden = axis in ("model", "hf", "function", "gpu", *comparison.varying)
        if not hidden and not (axis in AXES and AXES[axis].usual is not None and value == AXES[axis].usual):
            yield in_words(axis, value)


def _values(cell: Cell, axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_text(cell.inputs.get(axis)) for axis in axes)


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "x".join(map(str, value)) or "default"
    return str(value) if value != "" else "none"


def answer_of(cell: Cell | None) -> GpuAnswer:
    """Whether a cell fits, and by how much."""
    if cell is None or cell.figures is None:
        return GpuAnswer(text="failed" if cell else "", fits=None)
    amount = format_bytes(abs(cell.figures.margin))
    if cell.figures.fits:
        return GpuAnswer(text=f"fits, {amount} left", fits=True)
    return GpuAnswer(text=f"{amount} short" if cell.figures.margin < 0 else "does not complete", fits=False)


def _against(figures: CellResult, best: CellResult) -> str:
    """How much more, and for what: the category that grew most."""
    grown = {name: size - best.breakdown.get(name, 0) for name, size in figures.breakdown.items()}
    more = f"+{format_bytes(figures.smallest_fit - best.smallest_fit)}"
    name = max(grown, key=lambda name: grown[name], default="")
    return f"{more} {name}" if name and grown[name] > 0 else more


def cell_line(cell: Cell) -> str:
    """What came out of a cell, and the cell, in one line: for people who wait for others, on terminals that may cut it off."""
    about = recipe_line(cell.inputs)
    if cell.figures is None:
        return f"{cell.error}: {about}"
    return f"{answer_of(cell).text}, needs {format_bytes(cell.figures.smallest_fit)}: {about}"


def _failed_rows(rows: dict[tuple[str, ...], dict[str, Cell]], *, several: bool) -> Iterator[FailedRow]:
    for values, cells in rows.items():
        for gpu, cell in cells.items():
            if cell.figures is None:
                yield FailedRow(values=(*values, *([gpu] if several else [])), error=cell.error)


# -- what to do ------------------------------------------------------------------------------------------------------------------


def closing_words(cells: Sequence[Cell], varying: Sequence[str], gpu: str) -> Iterator[str]:
    """What to run on a GPU, in a few sentences."""
    match advise(cells, varying, gpu):
        case Recommendation() as found:
            yield from _recommend(found, varying)
        case NothingFits() as found:
            yield from _nothing_fits(found, varying)


def _recommend(found: Recommendation, varying: Sequence[str]) -> Iterator[str]:
    figures, inputs = found.cell.figures, found.cell.inputs
    assert figures is not None
    what = describe(found.cell, varying)
    if what and "strategy" not in varying:
        what = f"it with {what}"
    reason = _reason(found) if varying else ""
    yield f"Run {what or 'it'} on {inputs['gpu']}: it fits with {format_bytes(figures.margin)} to spare. {reason}".rstrip()
    if not found.is_sure:
        share = f"{SAFETY_MARGIN:.0%} of the memory"
        yield f"That is less than {share}, and a prediction may be wrong by as much: try it before you rely on it."
    elif figures.num_alloc_retries:
        times = "once" if figures.num_alloc_retries == 1 else f"{figures.num_alloc_retries} times"
        yield f"The allocator has to give cached memory back {times}; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True can help."
    if found.larger_batches:
        yield f"There is room for more: compare --batch {','.join(map(str, found.larger_batches))}."
    if found.lighter_optimizer:
        yield f"Its peak is in the optimizer's step: --optimizer {found.lighter_optimizer} needs no temporaries there."


def _reason(found: Recommendation) -> str:
    if found.num_fitting == 1:
        return "Nothing else fits."
    saved = [_saves(axis) for axis in found.decided_by]
    if found.num_as_fast == 1:
        return f"It is the fastest of the {found.num_fitting} that fit."
    if found.num_as_fast and saved:
        as_fast = "All" if found.num_as_fast == found.num_fitting else f"{found.num_as_fast} of the {found.num_fitting}"
        return f"{as_fast} that fit are as fast; it is the cheapest to run of them: {', then '.join(saved)}."
    if not saved:
        return f"Of the {found.num_fitting} that fit it does most work with least memory."
    return f"It is the cheapest to run of the {found.num_fitting} that fit: {', then '.join(saved)}."


def _saves(axis: str) -> str:
    return AXES[axis].saves if axis in AXES else "fewest GPUs"


def _nothing_fits(found: NothingFits, varying: Sequence[str]) -> Iterator[str]:
    figures, what = found.closest.figures, describe(found.closest, varying)
    assert figures is not None
    short = f"short by {format_bytes(-figures.margin)}"
    closest = f". Closest: {what}, {short}." if what else f": {short}."
    when = f" ({figures.peak_phase})" if figures.peak_phase else ""
    label, size = next(iter(figures.breakdown.items()), ("nothing", 0))
    yield f"Nothing fits on {found.closest.inputs['gpu']}{closest} At its peak{when}, {label} takes {format_bytes(size)}."
    if found.ways_out:
        yield f"Try {', or '.join(map(_flag, found.ways_out))}."


def _flag(setting: Setting) -> str:
    return f"--{setting.axis.replace('_', '-')} {setting.value}"


def describe(cell: Cell, varying: Sequence[str]) -> str:
    """A cell by what tells it from the others: ``full_shard with no checkpointing``, ``layers 3``; empty where nothing does."""
    others = ", ".join(in_words(axis, cell.inputs.get(axis)) for axis in varying if axis not in ("gpu", "strategy"))
    if "strategy" not in varying:
        return others
    strategy = in_words("strategy", cell.inputs["strategy"])
    return f"{strategy} with {others}" if others else strategy
