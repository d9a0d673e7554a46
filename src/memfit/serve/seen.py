"""What the page shows of a ledger, in plain values: made by a worker of a prediction, and by the server of a file."""

from __future__ import annotations

from typing import Any, Final

from memfit.allocator import Verdict
from memfit.analysis import Report, find_growth
from memfit.errors import MemfitError
from memfit.explain import explain
from memfit.ledger import Ledger
from memfit.serve.picture import draw_step
from memfit.units import format_bytes
from memfit.views.html.runs import study
from memfit.views.verdicts import answer, coverage_words, growth_words, ladder, remarks
from memfit.views.words.timing import speed_words

MOST_MODULES: Final = 12


def see_file(ledger: Ledger) -> dict[str, Any]:
    """Of a ledger whose verdict is not known yet."""
    run = study("run", ledger)
    if run.verdict is None:
        raise MemfitError("there is no verdict: nothing of it is on a GPU")
    return see(ledger, run.verdict, run.report) | {"time": [*speed_words(ledger.info, run.verdict.gpu)]}


def see(ledger: Ledger, verdict: Verdict, report: Report) -> dict[str, Any]:
    """The verdict, what is behind it, and a picture of the last step; what would help where it does not fit."""
    info, speed = ledger.info, ledger.info.speed
    growth = find_growth(ledger, ledger.device_order[0])
    modules = [(group.path, group.bytes_at_peak) for group in report.devices[0].module_groups[:MOST_MODULES]]
    return {
        "headline": answer(verdict, info.problem, info.covered),
        "fits": verdict.fits and not info.problem,
        "covered": coverage_words(info.covered),
        "is_open": bool(info.problem) or not info.covered.is_whole,
        "smallest_fit": verdict.smallest_fit,
        "communicators": info.communicators,
        "ladder": [[rung.label, format_bytes(rung.size_bytes), rung.remark] for rung in ladder(verdict)],
        "remarks": [*remarks(verdict, info), *growth_words(growth, verdict), *verdict.warnings],
        "breakdown": dict(verdict.largest),
        "peak_allocated": verdict.peak_allocated,
        "peak_reserved": verdict.peak_reserved,
        "step_seconds": speed.get("step_seconds", 0.0),
        "modules": modules,
        "tokens_per_second": speed.get("tokens_per_second", 0.0),
        "picture": draw_step(ledger),
        "tried": [] if verdict.fits else _tried(ledger, verdict),
        "assumptions": [*info.assumptions],
    }


def _tried(ledger: Ledger, verdict: Verdict) -> list[dict[str, Any]]:
    """What was tried by replay, in words, and whether it makes the run fit."""
    try:
        found = explain(ledger, verdict.gpu.name).remedies
    except MemfitError:
        return []
    return [{"text": f"{each.what} ({format_bytes(each.smallest_fit)})", "fits": bool(each.served)} for each in found]
