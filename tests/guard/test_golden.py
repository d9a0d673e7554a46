"""A prediction held against a golden ledger, without pytest's help."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import memfit
from memfit.errors import ConfigError, GoldenMissingError, MemoryGrewError
from memfit.guard import session
from memfit.ledger import Ledger
from memfit.units import MIB


def build_of(width: int):
    def build():
        weight = torch.zeros(width, 1024, 1024, device="cuda", requires_grad=True)

        def step():
            (weight * 2).sum().backward()
            weight.grad = None

        return step

    return build


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No session of pytest's, and a folder of one's own."""
    monkeypatch.setattr(session, "_SESSIONS", [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(session.UPDATE_VARIABLE, raising=False)


@pytest.fixture
def golden(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(session.UPDATE_VARIABLE, "1")
    memfit.assert_no_regression(build_of(4), golden="golden/run.memfit")
    monkeypatch.delenv(session.UPDATE_VARIABLE)
    return Path("golden/run.memfit")


def test_a_missing_golden_ledger_fails_and_says_what_to_type():
    with pytest.raises(GoldenMissingError, match="run this again with MEMFIT_UPDATE=1") as raised:
        memfit.assert_no_regression(build_of(4), golden="golden/run.memfit")
    assert isinstance(raised.value, AssertionError)
    assert not Path("golden").exists()


def test_it_is_written_and_then_held_to(golden: Path):
    kept = Ledger.load(golden).check()
    assert len(kept.step_starts) == 2
    assert not kept.events.time_ns.any()
    prediction = memfit.assert_no_regression(build_of(4), golden=golden)
    assert "32MiB" <= prediction.peak_allocated < "33MiB"


def test_more_memory_fails_and_shows_the_diff(golden: Path):
    with pytest.raises(MemoryGrewError) as raised:
        memfit.assert_no_regression(build_of(5), golden=golden)
    assert isinstance(raised.value, AssertionError)
    text = str(raised.value)
    assert text.startswith("the peak needs more memory than in the golden ledger: allocated grew from ")
    assert "by more than 1%" in text
    assert "The blocks behind it" in text
    assert "+4.00 MiB" in text
    assert text.endswith("If that is meant, run this again with MEMFIT_UPDATE=1 in the environment.")
    assert raised.value.path == Path.cwd() / golden


def test_less_memory_is_fine(golden: Path):
    assert memfit.assert_no_regression(build_of(3), golden=golden).peak_allocated < memfit.predict(build_of(4)).peak_allocated


@pytest.mark.parametrize(("tolerance", "fails"), [("30%", False), ("10%", True), ("1GiB", False), ("1KiB", True)])
def test_the_tolerance(tolerance: str, fails: bool, golden: Path):
    if fails:
        with pytest.raises(MemoryGrewError, match=f"by more than {tolerance}"):
            memfit.assert_no_regression(build_of(5), golden=golden, tolerance=tolerance)
    else:
        memfit.assert_no_regression(build_of(5), golden=golden, tolerance=tolerance)


def test_a_tolerance_that_cannot_be_meant_costs_no_prediction():
    with pytest.raises(ConfigError, match="write it like 2% or 500MiB"):
        memfit.assert_no_regression(pytest.fail, golden="x", tolerance="some")


def test_updating_leaves_a_file_alone_that_says_the_same(golden: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(session.UPDATE_VARIABLE, "1")
    before = golden.read_bytes()
    memfit.assert_no_regression(build_of(4), golden=golden)
    assert golden.read_bytes() == before
    golden.write_bytes(b"damaged")
    memfit.assert_no_regression(build_of(4), golden=golden)
    assert Ledger.load(golden).same_as(Ledger.load(golden))
    memfit.assert_no_regression(build_of(5), golden=golden)
    assert golden.read_bytes() != before


def test_a_golden_ledger_is_small(golden: Path):
    assert golden.stat().st_size < 64 * 1024


def test_what_predict_takes_is_passed_on(golden: Path):
    prediction = memfit.assert_no_regression(
        build_of(4), golden=golden, tolerance="50%", gpu="A100-40GB", alloc_conf="expandable_segments:True", steps=1
    )
    assert prediction.target.gpu.name == "A100-40GB"
    assert prediction.ledger.info.alloc_conf == "expandable_segments:True"
    assert len(prediction.steps) == 1
    assert prediction.steps[0].peak_allocated > 4 * MIB


@pytest.mark.parametrize(("value", "asks"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_asks(value: str, asks: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(session.UPDATE_VARIABLE, value)
    assert session.current_session().update is asks
