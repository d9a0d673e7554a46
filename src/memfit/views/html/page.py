"""The report: one article per run, several runs side by side and over one another, and what the script draws."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any, Final

from memfit.units import format_bytes
from memfit.views.html.document import document
from memfit.views.html.facts import facts_section
from memfit.views.html.markup import Markup, element, join, table
from memfit.views.html.mesh import mesh_section
from memfit.views.html.modules import modules_section, pack_modules
from memfit.views.html.over_time.levels import levels_section
from memfit.views.html.over_time.segments import pack_segments, segments_section
from memfit.views.html.over_time.timeline import pack_timeline, timeline_section
from memfit.views.html.packing import Texts
from memfit.views.html.peak import peak_section
from memfit.views.html.results.pictures import Line, overlay
from memfit.views.html.runs import Run
from memfit.views.html.steps import steps_section
from memfit.views.html.verdict import verdict_section
from memfit.views.words.moments import count, name_moment
from memfit.views.words.recipe import origin_line

_VERSIONS: Final = ("memfit", "torch")
"""Versions that stand in the head; all are at the end of the page."""


def render_page(runs: list[Run], title: str) -> str:
    """One HTML file for one or more runs."""
    articles = [_article(run, number, alone=len(runs) == 1) for number, run in enumerate(runs)]
    several = [overview(runs), *([mesh_section(runs), overlay_section(runs)] if len(runs) > 1 else [])]
    origin = origin_line(runs[0].report.info) if len(runs) == 1 else ""
    return document(title, _subtitle(runs), [*several, *articles], origin=origin, packed=_pack(runs))


def overlay_section(runs: list[Run]) -> Markup:
    """All runs in one drawing."""
    lines = [Line(label=run.label, ledger=run.ledger) for run in runs]
    return element("section", element("h2", "Laid over one another"), overlay(lines), aria_label="Laid over one another")


def _article(run: Run, number: int, *, alone: bool) -> Markup:
    heading = join() if alone else element("p", run.label, class_="run-label")
    parts = (
        verdict_section(run),
        timeline_section(run, number),
        peak_section(run),
        modules_section(run, number),
        segments_section(run, number),
        steps_section(run),
        levels_section(run),
        facts_section(run),
    )
    return element("article", heading, *parts, class_="run", id=f"run-{number}", aria_label=run.label)


def _subtitle(runs: list[Run]) -> str:
    """What the runs have in common."""
    if len(runs) > 1:
        return f"{count(len(runs), 'ledger')}, {count(sum(run.report.num_events for run in runs), 'event')} in all"
    report, info = runs[0].report, runs[0].report.info
    facts = [info.source, runs[0].device.name, count(report.num_steps, "step"), count(report.num_events, "event")]
    if info.world_size > 1:
        facts.append(f"rank {info.rank} of {info.world_size:,}")
    facts += [f"{name} {info.versions[name]}" for name in _VERSIONS if name in info.versions]
    return ", ".join(facts)


def _pack(runs: list[Run]) -> str:
    texts = Texts()
    packed: dict[str, Any] = {
        "runs": [
            {
                "timeline": pack_timeline(run, texts, len(runs)),
                "modules": pack_modules(run, texts),
                "segments": pack_segments(run, texts),
            }
            for run in runs
        ]
    }
    packed |= {"nothingText": texts.number(format_bytes(0)), "texts": texts.all()}
    plain = json.dumps(packed, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    # Without a time of packing, the same ledgers make the same file.
    return base64.b64encode(gzip.compress(plain, mtime=0)).decode("ascii")


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
    return "Both runs fit." if len(runs) == 2 else f"All {count(len(runs), 'run')} fit."


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
