"""The recipes of CONTRIBUTING.md, followed with files of our own: facts are added to a table, and to nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import memfit
from memfit.data import FOLDER
from memfit.errors import ConfigError
from memfit.hardware import Gpu, find_gpu, load_gpus, names
from memfit.timing import Call, Rates, basis, price
from memfit.units import GIB

B999 = """
[B999]
arch = "sm_103"
num_sms = 148
total = "275040 MiB"
usable = "267.69 GiB"
usable_source = "made up for a test"
l2_cache = "126 MiB"
teraflops = { bf16 = 2250, tf32 = 1125, f8 = 4500, f32 = 75, f64 = 1.2 }
gigabytes_per_second = { memory = 7700, link = 900, host = 64 }
has_multicast = true
speed_source = "made up for a test"
"""

SVD = "_linalg_svd f32[4096,4096] > f32[4096,4096] f32[4096] f32[4096,4096]"


def training():
    model, x = nn.Linear(1024, 1024, device="cuda"), torch.ones(64, 1024, device="cuda")
    seen = torch.cuda.get_device_properties(0)
    assert (seen.major, seen.minor, seen.multi_processor_count) == (10, 3, 148)
    return lambda: model(x).sum().backward()


@pytest.fixture
def with_b999(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the facts, with a GPU more."""
    (tmp_path / "gpus.toml").write_text((FOLDER / "gpus.toml").read_text(encoding="utf-8") + B999, encoding="utf-8")
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates" / "h200.toml").write_text((FOLDER / "rates" / "h200.toml").read_text(encoding="utf-8"), encoding="utf-8")
    known = load_gpus(tmp_path / "gpus.toml")
    monkeypatch.setattr(names, "known_gpus", lambda: known)
    monkeypatch.setattr(basis, "FOLDER", tmp_path)
    for cached in (basis.is_measured, basis._load):
        cached.cache_clear()
    yield tmp_path
    for cached in (basis.is_measured, basis._load, basis._published):
        cached.cache_clear()


def test_a_gpu_that_is_only_in_the_file_predicts(with_b999: Path):
    prediction = memfit.predict(training, gpu="b999", steps=1)
    assert prediction.fits
    assert prediction.target.gpu.name == "B999"
    assert 267 * GIB < prediction.target.gpu.usable_bytes < 268 * GIB
    assert prediction.time.basis != "measured"
    assert "8xB999-NVLink" in prediction.time.interconnect


def test_a_price_that_is_only_in_a_file_of_rates_is_used(with_b999: Path):
    """An operator without a rule gets a row; a GPU whose name a file has was measured."""
    gpu, call = find_gpu("B999"), Call.parse(SVD)
    guessed = price(call, gpu)
    assert "no rule prices it" in guessed.assumption
    text = (with_b999 / "rates" / "h200.toml").read_text(encoding="utf-8")
    text = text.replace("[rows]\n", "[rows]\n_linalg_svd = { start_us = 500_000, bandwidth = 10 }\n").replace('"H200"', '"B999"')
    (with_b999 / "rates" / "b999.toml").write_text(text, encoding="utf-8")
    priced = price(call, gpu, rates=Rates.load(with_b999 / "rates" / "b999.toml"))
    assert priced.seconds > 0.5
    assert priced.assumption == ""
    basis.is_measured.cache_clear()
    assert price(call, gpu) == priced  # it is found by the GPU's name
    assert price(call, find_gpu("H200")) != priced


def test_a_gpu_of_a_file_of_its_own(tmp_path: Path):
    path = tmp_path / "card.toml"
    path.write_text(B999, encoding="utf-8")
    assert Gpu.load(path).num_sms == 148
    path.write_text(B999.replace('arch = "sm_103"\n', ""), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"card.toml, B999: arch is missing"):
        Gpu.load(path)
    path.write_text(B999 + B999.replace("[B999]", "[B301]"), encoding="utf-8")
    with pytest.raises(ConfigError, match="has 2 GPUs"):
        Gpu.load(path)
