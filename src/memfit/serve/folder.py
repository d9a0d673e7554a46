"""Ledgers of the folder that is served: what each is about, and how jobs stand that are being watched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from memfit.analysis.diff.runs import diff_ledgers
from memfit.analysis.status import Status, find_status, worst_first
from memfit.errors import ConfigError, MemfitError
from memfit.ledger import Ledger
from memfit.serve.picture import trace_runs
from memfit.units import format_bytes
from memfit.views.html import render_page, study
from memfit.views.html.results.difference import diff_page
from memfit.views.html.runs import label_runs
from memfit.views.words.moments import count, name_step
from memfit.views.words.recipe import recipe_line

MOST_FILES: Final = 100
SUFFIX: Final = ".memfit"


class LedgerFolder:
    """The ``*.memfit`` files of one folder, by name. What each is about is read once, and again when the file has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, tuple[tuple[float, int], dict[str, Any]]] = {}

    def listed(self) -> list[dict[str, Any]]:
        """The newest first."""
        files = sorted(self._folder.glob(f"*{SUFFIX}"), key=lambda path: -path.stat().st_mtime)[:MOST_FILES]
        self._read = {path.name: self._read[path.name] for path in files if path.name in self._read}
        return [self._about(path) for path in files]

    def open(self, names: Sequence[str]) -> list[Ledger]:
        """Those of these names; ``ConfigError`` where there is none."""
        if not names:
            raise ConfigError("choose a ledger")
        return [Ledger.load(self._path(name)).check() for name in names]

    def page(self, names: Sequence[str]) -> str:
        """The report page of one or several."""
        return report_page(self.open(names), names)

    def overlay(self, names: Sequence[str]) -> dict[str, Any]:
        """Their memory over time, in one drawing."""
        return trace_runs(self.open(names)) | {"names": [*names]}

    def difference(self, before: str, after: str) -> str:
        """The page of ``memfit diff``."""
        first, second = self.open([before, after])
        return diff_page(diff_ledgers(first, second), (first, second), (before, after))

    def running(self, name: str) -> dict[str, Any]:
        """How a watched job stands, every rank of it, the one with the least room first."""
        path = self._path(name)
        stem = path.name.removesuffix(SUFFIX).partition(".rank")[0]
        ranks = sorted(self._folder.glob(f"{stem}.rank*{SUFFIX}")) or [path]
        statuses = worst_first(find_status(Ledger.load(each)) for each in ranks)
        return {"ranks": [_rank(status) for status in statuses], "isRunning": any(status.is_running for status in statuses)}

    def _path(self, name: str) -> Path:
        path = self._folder / name
        if path.name != name or path.suffix != SUFFIX or not path.is_file():
            raise ConfigError(f"there is no ledger {name} in this folder")
        return path

    def _about(self, path: Path) -> dict[str, Any]:
        stat = path.stat()
        stamp = stat.st_mtime, stat.st_size
        if path.name in self._read and self._read[path.name][0] == stamp:
            return self._read[path.name][1]
        try:
            found = _describe(Ledger.load(path))
        except (MemfitError, OSError) as error:
            found = {"text": f"cannot be read: {error}", "isBroken": True, "isRunning": False}
        found |= {"name": path.name, "size": format_bytes(stat.st_size)}
        self._read[path.name] = stamp, found
        return found


def report_page(ledgers: Sequence[Ledger], names: Sequence[str]) -> str:
    """The same page as ``memfit report`` writes."""
    labels = label_runs([name.removesuffix(SUFFIX) for name in names], [*ledgers])
    runs = [study(label, ledger) for label, ledger in zip(labels, ledgers, strict=True)]
    return render_page(runs, names[0] if len(runs) == 1 else f"{len(runs)} runs")


def _describe(ledger: Ledger) -> dict[str, Any]:
    info, status = ledger.info, find_status(ledger)
    facts = [recipe_line(info.asked) or info.source, count(len(ledger.step_starts), "step")]
    facts += [f"peak {format_bytes(status.peak_bytes)}", *([info.made_at] if info.made_at else [])]
    return {"text": ", ".join(facts), "isBroken": False, "isRunning": status.is_running}


def _rank(status: Status) -> dict[str, Any]:
    whole = status.capacity_bytes or max(status.peak_bytes, 1)
    return {
        "rank": status.rank,
        "step": name_step(status.step),
        "inUse": format_bytes(status.allocated_bytes),
        "peak": format_bytes(status.peak_bytes),
        "left": "" if status.headroom_bytes is None else format_bytes(max(0, status.headroom_bytes)),
        "share": round(min(1.0, status.allocated_bytes / whole), 4),
        "peakShare": round(min(1.0, status.peak_bytes / whole), 4),
        "trend": "; ".join(_trend(status)),
        "alarms": [*status.alarms, *([status.problem] if status.problem else [])],
        "categories": [
            {"key": category.name.lower(), "label": category.label, "text": format_bytes(size)}
            for category, size in sorted(status.breakdown.items(), key=lambda each: -each[1])[:6]
        ],
    }


def _trend(status: Status) -> Iterator[str]:
    if status.growth_per_step is None:
        yield "no trend yet"
    elif abs(status.growth_per_step) < 1:
        yield "flat"
    else:
        direction = "grows" if status.growth_per_step > 0 else "shrinks"
        yield f"{direction} by {format_bytes(int(abs(status.growth_per_step)))} a step"
    if status.steps_left is not None:
        yield f"full in {status.steps_left:,} steps"
