"""What others build on: public names, import paths that were public once, and ledgers that were written long ago."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from helpers import ROOT

import memfit
from memfit import errors
from memfit.analysis import find_peak
from memfit.ledger import Ledger, RunInfo

NAMES = (
    *("Category", "Comparison", "Ledger", "Phase", "Plan", "PlanSearch", "Prediction", "Report", "Retention", "Tracker"),
    *("__version__", "apply", "assert_no_regression", "build_report", "compare", "format_bytes", "parse_bytes", "plan"),
    *("LargestFit", "max_batch", "max_seq", "predict", "track"),
    *("ConfigError", "GoldenMissingError", "HostMemoryError", "InfeasibleError", "LedgerError"),
    *("LedgerFormatError", "LedgerLawError", "MemfitError", "MemoryGrewError", "NeedsGpuError"),
    *("NoGpuWorkError", "PlanError", "PlanFormatError", "PredictionError", "RanOutError"),
    *("ScriptExitError", "SolverTimeoutError", "StepFailedError", "TraceError", "UnknownUnitError"),
    *("UnsupportedTorchError",),
)


def test_the_public_names_are_what_they_were():
    assert sorted(memfit.__all__) == sorted(NAMES)
    for name in NAMES:
        assert getattr(memfit, name) is not None


def test_all_errors_are_public():
    assert {name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, Exception)} <= {*NAMES}
    with pytest.raises(memfit.ConfigError):
        memfit.parse_bytes("much")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("memfit.predict", ("PhantomSession", "Prediction", "StepPrediction", "predict")),
        ("memfit.compare", ("Comparison", "compare")),
        ("memfit.job", ("Cell", "CellResult", "Configuration", "PredictOptions", "Recipe", "Subject")),
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
from memfit.predict.api import predict
from memfit.predict.result import Prediction
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


FACTS = {"gpu": "H200", "clock": "timed", "mesh": "pp=2,dp=4", "stands for ranks": "0-3"}


def test_what_older_releases_kept_among_the_versions_is_found_there_and_left_there():
    old = {"source": "predicted", "versions": {"torch": "2.11"} | FACTS}
    info = RunInfo.from_json(old)
    assert (info.gpu, info.clock, info.mesh, info.stands_for) == ("H200", "timed", "pp=2,dp=4", "0-3")
    assert info.versions == {"torch": "2.11"}
    assert info.has_clock
    assert info.to_json()["versions"] == old["versions"]
    assert RunInfo.from_json(info.to_json()) == info


def test_a_prediction_of_a_release_without_a_clock_has_none():
    assert not RunInfo.from_json({"source": "predicted", "versions": {"torch": "2.11"}}).has_clock
