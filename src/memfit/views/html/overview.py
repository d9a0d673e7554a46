"""Several runs on one page: side by side, and a switch between them."""

from __future__ import annotations

from memfit.units import format_bytes
from memfit.views.html.markup import Markup, element, join, table
from memfit.views.html.runs import Run
from memfit.views.wording import count, name_moment


def overview(runs: list[Run]) -> Markup:
    """All runs as a table, each with a button that shows it; nothing for a single run."""
    if len(runs) == 1:
        return join()
    headings = ("run", "answer", "peak>", "smallest fit>", "reserved>", "the peak is")
    rows = [_row(run, number) for number, run in enumerate(runs)]
    return element("section", element("h2", _headline(runs), class_="answer"), table("All runs", headings, rows, class_="runs"))


def _headline(runs: list[Run]) -> str:
    verdicts = [run.verdict for run in runs if run.verdict is not None]
    if early := sum(run.ended_early for run in runs):
        return f"{early} of {count(len(runs), 'run')} ended early."
    if len(verdicts) < len(runs):
        return count(len(runs), "run")
    failing = sum(not verdict.fits for verdict in verdicts)
    if failing:
        return f"{failing} of {count(len(runs), 'run')} {'does' if failing == 1 else 'do'} not fit."
    return f"All {count(len(runs), 'run')} fit."


def _row(run: Run, number: int) -> tuple[Markup | str, ...]:
    verdict, peak = run.verdict, run.device.peak
    button = element("button", run.label, type="button", class_="tab", data_run=number, aria_controls=f"run-{number}")
    return (
        button,
        _answer(run),
        format_bytes(peak.size_bytes),
        format_bytes(verdict.smallest_fit) if verdict else "–",
        format_bytes(verdict.peak_reserved) if verdict else "–",
        name_moment(peak),
    )


def _answer(run: Run) -> Markup | str:
    if run.ended_early:
        return element("span", "ended early", class_="fails")
    if run.verdict is None:
        return "–"
    words = f"{'fits on' if run.verdict.fits else 'does not fit on'} {run.verdict.gpu.name}"
    return element("span", words, class_="fits" if run.verdict.fits else "fails")
