"""What others build on: public names, import paths that were public once, and ledgers that were written long ago."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from helpers import ROOT

import memfit
from memfit.analysis import find_peak
from memfit.ledger import Ledger

NAMES = (
    *("Category", "Comparison", "Ledger", "Phase", "Plan", "PlanSearch", "Prediction", "Report", "Retention", "Tracker"),
    *("__version__", "apply", "assert_no_regression", "build_report", "compare", "format_bytes", "parse_bytes", "plan"),
    *("predict", "track"),
)


def test_the_public_names_are_what_they_were():
    assert sorted(memfit.__all__) == sorted(NAMES)
    for name in NAMES:
        assert getattr(memfit, name) is not None


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("memfit.prediction", ("PhantomSession", "Prediction", "StepPrediction", "predict")),
        ("memfit.comparison", ("Cell", "Comparison", "Figures", "compare")),
        ("memfit.analysis.diff", ("Diff", "diff_ledgers")),
        ("memfit.phantom", ("PhantomWorld", "Target")),
        ("memfit.record", ("Tracker", "in_checkpoint", "track")),
        ("memfit.compat", ("FSDPMemTracker", "MemTracker", "ModTracker")),
        ("memfit.integrations.huggingface", ("MemfitCallback",)),
        ("memfit.integrations.lightning", ("MemfitCallback",)),
    ],
)
def test_paths_that_were_public_still_import(module: str, names: tuple[str, ...]):
    found = importlib.import_module(module)
    assert [name for name in names if not hasattr(found, name)] == []


SHADOWS = """
import memfit.predict.session, memfit.compare.api
import memfit
from memfit.predict import Prediction, predict
from memfit.compare import compare

assert memfit.predict is predict and memfit.compare is compare
assert memfit.Prediction is Prediction
"""


def test_packages_do_not_take_the_place_of_functions_with_their_names():
    done = subprocess.run([sys.executable, "-c", SHADOWS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("file", "is_complete"), [("first_release.ledger", True), ("first_release.ledger.journal", False)])
def test_ledgers_of_the_first_release_load(file: str, is_complete: bool):
    ledger = Ledger.load(ROOT / "tests" / "data" / file).check()
    assert ledger.info.complete == is_complete
    assert ledger.info.versions["memfit"] == "0.1.0"
    assert len(ledger.step_starts) == 2
    assert find_peak(ledger, 0).size_bytes == 107_664
