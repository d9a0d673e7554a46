"""What ``benchmarks/timing/step_time.py`` has recorded: how near predicted steps are, and that the docs say so."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def off_by() -> dict[str, list[float]]:
    """By set of workloads, smallest first."""
    found = json.loads((BENCHMARKS / "results" / "step_time.json").read_text())
    zoo = json.loads((BENCHMARKS / "truth" / "h200_step_times.json").read_text())["steps"]
    more = json.loads((BENCHMARKS / "truth" / "step_times.json").read_text())
    errors: dict[str, list[float]] = {"zoo": [], "more": []}
    for name, entry in found.items():
        truth = zoo.get(name) or more[name]["ms"]
        errors["zoo" if name in zoo else "more"].append(abs(entry["ms"] / truth - 1))
    return {kind: sorted(each) for kind, each in errors.items()}


def test_steps_of_the_zoo_are_near() -> None:
    zoo = off_by()["zoo"]
    assert len(zoo) == 34
    assert statistics.median(zoo) < 0.10
    assert zoo[-1] < 0.30


@pytest.mark.parametrize("kind", ["zoo", "more"])
def test_the_docs_say_how_near(kind: str) -> None:
    errors = off_by()[kind]
    row = f"| {len(errors)} | {100 * statistics.median(errors):.1f} % | {100 * errors[-1]:.1f} % |"
    assert row in (ROOT / "docs" / "timing.md").read_text(encoding="utf-8")
