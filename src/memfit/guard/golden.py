"""A prediction, held against a ledger that was kept."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from memfit.analysis.diff.runs import Diff, Figure, diff_ledgers
from memfit.errors import GoldenMissingError, LedgerError, MemoryGrewError
from memfit.guard.session import GuardSession, current_session
from memfit.ledger import Ledger
from memfit.units import Allowance, format_bytes
from memfit.views.diff import show_diff

if TYPE_CHECKING:
    from memfit.predict.result import Prediction

NUM_STEPS = 2
WIDTH = 110


def assert_no_regression(
    build: Callable[[], Callable[[], Any]],
    *,
    golden: Path | str,
    tolerance: str = "1%",
    steps: int = NUM_STEPS,
    **target: Any,
) -> Prediction:
    """Predicts ``build`` and fails if it needs more memory than it did when the golden ledger was written.

    ``target`` is what ``memfit.predict`` takes: ``gpu``, ``world_size``, ``rank``, ``torch_version``, ``alloc_conf``. What is
    allocated and what is reserved may each grow by ``tolerance``, ``"1%"`` or ``"500MiB"``; less memory is always fine. By default
    two steps are predicted: the first, and one that is like all that follow.

    ``pytest --memfit-update``, or ``MEMFIT_UPDATE=1`` outside pytest, writes the golden ledger instead. A relative path is relative
    to pytest's root directory, outside pytest to the current one.
    """
    __tracebackhide__ = True
    from memfit.predict.api import predict

    allowance, session = Allowance.parse(tolerance), current_session()
    path = session.root / golden
    if not session.update and not path.exists():
        raise GoldenMissingError(path, f"to write it, {session.how_to_update}, and commit it")
    prediction: Prediction = predict(build, steps=steps, **target)
    if session.update:
        _write(path, prediction.ledger, session)
        return prediction
    diff = diff_ledgers(Ledger.load(path).check(), prediction.ledger)
    grown = diff.grown_over(allowance)
    if grown:
        raise MemoryGrewError(path, _sentence(grown, tolerance), _shown(diff), f"If that is meant, {session.how_to_update}.")
    return prediction


def _write(path: Path, ledger: Ledger, session: GuardSession) -> None:
    """Without times, and only if it says something else: a run that has not changed leaves the file alone."""
    timeless = replace(ledger, events=replace(ledger.events, time_ns=np.zeros_like(ledger.events.time_ns)))
    if not _says_the_same(path, timeless):
        path.parent.mkdir(parents=True, exist_ok=True)
        timeless.save(path)
        session.written.append(path)


def _says_the_same(path: Path, ledger: Ledger) -> bool:
    try:
        return Ledger.load(path).same_as(ledger)
    except LedgerError:
        return False


def _sentence(grown: tuple[Figure, ...], tolerance: str) -> str:
    parts = [
        f"{figure.name} grew from {format_bytes(figure.before_bytes)} to {format_bytes(figure.after_bytes)}" for figure in grown
    ]
    return f"the peak needs more memory than in the golden ledger: {', '.join(parts)}, by more than {tolerance}."


def _shown(diff: Diff) -> str:
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    show_diff(diff, console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
