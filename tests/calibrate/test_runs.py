"""A real run is a prediction whose clock runs slower: what is learned must be by how much."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import memfit
from memfit.calibrate.runs import compare_steps, learn
from memfit.calibrate.session import tables_of
from memfit.cli import main
from memfit.errors import ConfigError
from memfit.hardware import find_gpu
from memfit.timing import Call, price

SLOWER = 1.3


def training(width: int, layers: int, rows: int):
    def build():
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).cuda().bfloat16()
        x = torch.ones(rows, width, device="cuda", dtype=torch.bfloat16)
        return lambda: model(x).sum().backward()

    return build


def slowed(ledger):
    return replace(ledger, events=replace(ledger.events, time_ns=(ledger.events.time_ns * SLOWER).astype("int64")))


@pytest.fixture(scope="module")
def card_bound():
    return memfit.predict(training(8192, 2, 16384), gpu="A100-80GB", steps=5)


@pytest.fixture(scope="module")
def host_bound():
    return memfit.predict(training(64, 20, 16), gpu="A100-80GB", steps=5)


def test_a_step_that_the_card_bounds_corrects_kernels(card_bound, tmp_path):
    found = learn([(slowed(card_bound.ledger), card_bound.ledger)], tables_of(find_gpu("A100-80GB")))
    assert found.kernels == pytest.approx(SLOWER, rel=0.02)
    assert found.host is None


def test_a_step_that_waits_for_the_host_corrects_its_pace(host_bound):
    tables = tables_of(find_gpu("A100-80GB"))
    found = learn([(slowed(host_bound.ledger), host_bound.ledger)], tables)
    assert found.kernels is None
    assert found.host == pytest.approx(SLOWER, rel=0.05)
    assert found.tables["host"]["usual"] == pytest.approx(tables["host"]["usual"] * found.host, abs=1e-3)
    assert found.tables["host"]["in_forward"] == tables["host"]["in_forward"]


def test_the_corrected_file_predicts_what_the_run_took(card_bound, tmp_path, capsys):
    real, predicted, out = tmp_path / "real.memfit", tmp_path / "predicted.memfit", tmp_path / "card.toml"
    slowed(card_bound.ledger).save(real)
    card_bound.ledger.save(predicted)
    assert main(["calibrate", "--from", str(real), "--predicted", str(predicted), "-o", str(out)]) == 0
    assert "Kernels of A100-80GB take +30" in capsys.readouterr().out
    again = memfit.predict(training(8192, 2, 16384), gpu=str(out), steps=5)
    assert again.step_seconds == pytest.approx(SLOWER * card_bound.step_seconds, rel=0.03)
    assert again.peak_allocated == card_bound.peak_allocated


def test_tables_of_a_card_without_a_file_price_as_it_does(card_bound, tmp_path):
    from memfit.calibrate.file import to_toml

    (tmp_path / "same.toml").write_text(to_toml(tables_of(find_gpu("A100-80GB"))))
    again = memfit.predict(training(8192, 2, 16384), gpu=str(tmp_path / "same.toml"), steps=5)
    assert again.step_seconds == pytest.approx(card_bound.step_seconds, rel=1e-3)


CALLS = (
    "mm bf16[8192,4096] bf16[4096,4096] > bf16[8192,4096]",
    "mul.Tensor f32[4096,4096] f32[4096,4096] > f32[4096,4096]",
    "native_layer_norm bf16[8192,4096] > bf16[8192,4096]",
    "convolution f16[64,256,56,56] f16[256,256,3,3] > f16[64,256,56,56]",
    "index_select f32[100000,64] i64[400000] > f32[400000,64]",
)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["T4", "A10G", "V100-16GB", "H100-80GB", "GB200", "MI300X"])
def test_a_file_of_any_card_prices_calls_as_the_card_does(name, call, tmp_path):
    from memfit.calibrate.file import to_toml

    (tmp_path / "same.toml").write_text(to_toml(tables_of(find_gpu(name))))
    again = find_gpu(str(tmp_path / "same.toml"))
    assert price(Call.parse(call), again).seconds == pytest.approx(price(Call.parse(call), find_gpu(name)).seconds, rel=1e-3)


def test_a_run_with_too_few_steps_is_refused(card_bound):
    from memfit.testing import ledger

    with pytest.raises(ConfigError, match="too few steps"):
        compare_steps(ledger("alloc 4MiB parameter w"), card_bound.ledger)
