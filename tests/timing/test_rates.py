"""What was measured: the files, and what is said of a GPU that has none."""

from pathlib import Path

import pytest

from memfit.data import FOLDER
from memfit.errors import ConfigError
from memfit.hardware import GIGA, find_gpu
from memfit.timing.basis import rates_of, what_times_are_from
from memfit.timing.rates import Rates

FILES = sorted((FOLDER / "rates").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_peaks_of_a_file_are_those_of_its_gpu(path: Path):
    rates = Rates.load(path)
    gpu = find_gpu(rates.measured_on)
    assert path.stem == gpu.name.lower()
    assert rates.memory_bandwidth * GIGA == gpu.memory_bandwidth
    assert rates.f32_flops == pytest.approx(gpu.f32_flops, rel=1e-12)


def test_a_gpu_that_was_not_measured_has_the_rates_of_one_that_was():
    assert rates_of(find_gpu("A10")).elementwise == rates_of(find_gpu("H200")).elementwise


@pytest.mark.parametrize(("name", "said"), [("H200", "read off an H200"), ("A100-40GB", "no operator was timed on A100-40GB")])
def test_a_time_says_what_it_is_from(name, said):
    assert said in what_times_are_from(find_gpu(name), 1)
    assert "links" not in what_times_are_from(find_gpu(name), 1)
    assert "links between GPUs were never measured" in what_times_are_from(find_gpu(name), 8)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("sustained_share = 0.67", "", "products: sustained_share is missing"),
        ("sustained_share = 0.67", "sustained_share = 0.67\nshare = 1", "products: unknown key share"),
        ("sustained_share = 0.67", 'sustained_share = "two thirds"', "sustained_share: 'two thirds' is not what is expected"),
        ('moved = "written"', 'moved = "some"', "nll_loss_backward, moved: 'some' is not what is expected"),
        ("[products]", "[products", "cannot read"),
    ],
)
def test_a_file_that_is_not_complete_is_refused_when_it_is_read(tmp_path: Path, old: str, new: str, problem: str):
    text = (FOLDER / "rates" / "h200.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "h200.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=problem):
        Rates.load(tmp_path / "h200.toml")


def test_no_formula_names_a_gpu():
    """``basis.py`` alone says whose rates stand for those that were not measured."""
    timing = Path(rates_of.__code__.co_filename).parent
    named = [path.name for path in timing.rglob("*.py") if "H200" in path.read_text(encoding="utf-8")]
    assert set(named) <= {"basis.py", "links.py"}  # whose sources name GPUs


def test_a_cards_file_of_an_older_memfit_is_brought_up_to_date(tmp_path: Path):
    """It lacks a table that came since, and has one that is gone."""
    text = (FOLDER / "rates" / "h200.toml").read_text(encoding="utf-8")
    begin = text.index("[factors]")
    end = text.find("\n[", begin + 1)
    older = text[:begin] + (text[end:] if end > 0 else "") + "\n[gone]\nrate = 1.0\n"
    older = older.replace("memory_bandwidth = 4800", "memory_bandwidth = 2400", 1)
    (tmp_path / "card.toml").write_text(older, encoding="utf-8")
    template = FOLDER / "rates" / "h200.toml"
    assert Rates.of_card(tmp_path / "card.toml", template).factors == Rates.load(template).factors


def test_the_card_that_was_calibrated_for_the_blind_proof_is_read():
    """Its file is as old as its measurement."""
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "calibrated_card.toml"
    assert Rates.of_card(path, FOLDER / "rates" / "h200.toml").products.power_share == 0.80518
