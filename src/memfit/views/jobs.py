"""A job of many ranks on a terminal: the kinds of ranks with their peaks, and the verdict of the worst."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.units import format_bytes
from memfit.views.escaping import printable
from memfit.views.verdicts import assumption_line, verdict_sections
from memfit.views.words.timing import format_seconds

if TYPE_CHECKING:
    from memfit.predict.ranks import JobPrediction, RankPrediction


def job_sections(job: JobPrediction, console: Console) -> Iterator[RenderableType]:
    """The kinds of ranks, then the worst of them as it would be shown alone."""
    worst = job.worst
    yield Text(_headline(job))
    yield _table(job)
    yield Text(f"Rank {worst.rank} ({printable(worst.label)}) needs most:")
    yield from verdict_sections(worst.prediction.verdict, console, worst.prediction.ledger.info)
    if assumed := assumption_line(job.assumptions):
        yield Text(assumed, style="yellow")


def _headline(job: JobPrediction) -> str:
    mesh = " x ".join(f"{name} {size}" for name, size in job.axes)
    kinds = f"{len(job.kinds)} kind{'s' if len(job.kinds) > 1 else ''} of ranks"
    return printable(f"{job.world_size} ranks{f' ({mesh})' if mesh else ''}, {kinds}:")


def _table(job: JobPrediction) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("rank", "where", "stands for", "allocated", "smallest fit", "reserved", "to spare", "a step alone", ""):
        table.add_column(title, justify="left" if title in ("where", "") else "right", overflow="fold")
    for kind in job.kinds:
        table.add_row(*_cells(kind, is_worst=kind is job.worst))
    return table


def _cells(kind: RankPrediction, *, is_worst: bool) -> list[str]:
    verdict = kind.prediction.verdict_alone
    spare = f"{'-' if verdict.margin < 0 else ''}{format_bytes(abs(verdict.margin))}"
    sizes = [format_bytes(size) for size in (verdict.peak_allocated, verdict.smallest_fit, verdict.peak_reserved)]
    seconds = kind.prediction.step_seconds
    time = format_seconds(seconds) if seconds is not None else ""
    return [str(kind.rank), printable(kind.label), f"{kind.num_ranks:,}", *sizes, spare, time, "<- worst" if is_worst else ""]
