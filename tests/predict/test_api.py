"""Predictions: exact bytes, the same twice, and equal to a recording where the kernels agree."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import memfit
from memfit.analysis import find_step_peaks
from memfit.errors import ConfigError, NoGpuWorkError, PredictionError, StepFailedError
from memfit.ledger import Category
from memfit.units import KIB, MIB


def training(device: str):
    """Elementwise work only: no library takes a workspace, and host and GPU run the same operators."""

    def build():
        scale = nn.Parameter(torch.ones(256, 1024, device=device))
        optimizer = torch.optim.SGD([scale], lr=0.1, momentum=0.9)
        x = torch.ones(256, 1024, device=device)

        def step():
            (x * scale).sigmoid().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def linear(bias: bool = False, width: int = 1024):
    def build():
        model = nn.Linear(width, width, bias=bias, device="cuda")
        x = torch.randn(8, width, device="cuda")
        return lambda: model(x).sum().backward()

    return build


def test_exact_bytes():
    prediction = memfit.predict(training("cuda"), steps=2)
    assert prediction.init.end_allocated == 2 * MIB
    assert prediction.breakdown[Category.OPTIMIZER_STATE] == MIB
    assert prediction.steps[0].end_allocated == 3 * MIB
    # Parameter, input and momentum; the product's gradient, saved sigmoid, and what backward makes of them.
    assert prediction.peak_allocated == max(step.peak_allocated for step in prediction.steps)
    assert prediction.ledger.info.source == "predicted"
    prediction.ledger.check()


def test_a_prediction_and_its_verdict_print_the_answer():
    prediction = memfit.predict(training("cuda"), steps=2)
    for said in (str(prediction), str(prediction.verdict)):
        assert said.startswith("It fits on H200, with ")
        assert "smallest fit" in said
        assert max(map(len, said.splitlines())) <= 120


def test_a_prediction_equals_a_recording_of_the_same_step():
    predicted = memfit.predict(training("cuda"), steps=2)
    with memfit.track() as tracker:
        step = training("cpu")()
        for _ in range(2):
            tracker.step()
            step()
    recorded = [peak.peak.size_bytes for peak in find_step_peaks(tracker.ledger, 0)]
    gpu = [device.name for device in predicted.ledger.devices].index("cuda:0")
    said = [peak.peak.size_bytes for peak in find_step_peaks(predicted.ledger, gpu)]
    # A GPU rounds its scalars up to 512 bytes, and the foreach form of SGD holds none.
    assert said == pytest.approx(recorded, abs=8 * KIB)


def test_two_predictions_in_one_process_are_the_same():
    first, second = (memfit.predict(linear(), steps=2) for _ in range(2))
    assert first.ledger.events.size.tolist() == second.ledger.events.size.tolist()
    assert first.ledger.blocks.stream.tolist() == second.ledger.blocks.stream.tolist()
    assert (first.peak_allocated, first.peak_reserved) == (second.peak_allocated, second.peak_reserved)


def test_cublas_takes_a_workspace_in_forward_and_in_backward():
    prediction = memfit.predict(linear(), steps=1)
    assert prediction.breakdown[Category.WORKSPACE] // MIB == 64  # and a copy of the gradient, which is one number expanded
    with_bias = memfit.predict(linear(bias=True), steps=1)
    assert with_bias.breakdown[Category.WORKSPACE] >= 65 * MIB
    older = memfit.predict(linear(), steps=1, gpu="A100-80GB").breakdown[Category.WORKSPACE]
    assert older // MIB == 2 * 8519680 // MIB


def test_the_memory_functions_answer_from_the_simulation():
    seen = []

    def build():
        x = torch.empty(MIB, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        seen.append(torch.cuda.memory_allocated())

        def step():
            y = x + 1
            del y
            seen.append((torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()))

        return step

    prediction = memfit.predict(build, steps=1)
    assert seen == [4 * MIB, (4 * MIB, 8 * MIB, 20 * MIB)]
    assert prediction.peak_allocated == 8 * MIB


def test_blocks_know_their_stream():
    def build():
        side = torch.cuda.Stream()

        def step():
            with torch.cuda.stream(side):
                torch.empty(1024, device="cuda")

        return step

    ledger = memfit.predict(build, steps=1).ledger
    assert set(ledger.blocks.stream.tolist()) == {1}


def test_it_fits_or_not():
    def build():
        held = torch.empty(100 * 2**30, dtype=torch.uint8, device="cuda")
        return lambda: held.add_(1)

    assert memfit.predict(build, gpu="H200", steps=1).fits
    too_large = memfit.predict(build, gpu="H100-80GB", steps=1)
    assert not too_large.fits
    assert too_large.verdict.margin < 0
    assert too_large.modules == ()


def test_what_the_users_code_raises_comes_with_its_traceback():
    def build():
        x = torch.empty(2, 3, device="cuda")

        def step():
            return x @ x

        return step

    with pytest.raises(StepFailedError, match="step 0 failed") as raised:
        memfit.predict(build)
    assert "return x @ x" in str(raised.value)
    assert raised.value.users_traceback.index("test_api.py") < raised.value.users_traceback.index("RuntimeError")
    assert "session.py" not in raised.value.users_traceback


def test_an_argument_that_is_missing_comes_without_frames_of_memfit():
    def build(width):
        raise AssertionError

    with pytest.raises(StepFailedError) as raised:
        memfit.predict(build)
    assert "File" not in raised.value.users_traceback
    assert "missing 1 required positional argument: 'width'" in raised.value.users_traceback
    assert "--axis width=VALUE" in raised.value.advice


def test_a_build_that_never_touches_the_gpu():
    with pytest.raises(NoGpuWorkError, match="cuda:0"):
        memfit.predict(lambda: lambda: torch.ones(3).sum())


@pytest.mark.parametrize(
    "mistake", [{"steps": 0}, {"rank": 1}, {"gpu": "Voodoo2"}, {"torch_version": "new"}, {"alloc_conf": "x:1"}]
)
def test_arguments_that_cannot_be_meant(mistake: dict):
    with pytest.raises(ConfigError):
        memfit.predict(linear(), **mistake)


def test_build_must_return_a_function():
    with pytest.raises(ConfigError, match="must return step"):
        memfit.predict(lambda: torch.empty(1, device="cuda"))


def test_a_difference_of_versions_is_an_assumption():
    assert any("2.9+cu128" in sentence for sentence in memfit.predict(linear(), steps=1, torch_version="2.9+cu128").assumptions)


def test_it_is_predicted_to_the_end_where_memory_runs_out():
    done = []

    def build():
        def step():
            done.append(torch.empty(30 * 2**30, dtype=torch.uint8, device="cuda"))

        return step

    prediction = memfit.predict(build, gpu="A100-40GB", steps=3)
    assert len(done) == 3
    assert prediction.peak_allocated == 90 * 2**30
    assert not prediction.fits
    assert prediction.verdict.out_of_memory is not None


def test_ranks_one_after_the_other_each_on_its_own_device():
    def build():
        labels = torch.zeros(4, dtype=torch.long, device="cuda")
        logits = torch.randn(4, 8, device="cuda", requires_grad=True)
        return lambda: torch.nn.functional.cross_entropy(logits, labels).backward()

    first, second = (memfit.predict(build, world_size=8, rank=rank, steps=2) for rank in (0, 3))
    assert (first.device, second.device) == ("cuda:0", "cuda:3")
    assert first.peak_allocated == second.peak_allocated


def test_one_prediction_at_a_time():
    """Torch is changed while one is made: a second, in another thread, is refused in a sentence."""
    inside, refused = threading.Event(), threading.Event()
    told: list[BaseException] = []

    def build():
        inside.set()
        refused.wait()
        return lambda: torch.ones(4, device="cuda")

    def other() -> None:
        inside.wait()
        try:
            memfit.predict(lambda: lambda: torch.ones(4, device="cuda"))
        except BaseException as error:
            told.append(error)
        refused.set()

    thread = threading.Thread(target=other)
    thread.start()
    assert memfit.predict(build, steps=1).peak_allocated == 512
    thread.join()
    assert isinstance(told[0], PredictionError)
    assert "one after the other" in str(told[0])
    assert memfit.predict(lambda: lambda: torch.ones(4, device="cuda"), steps=1).peak_allocated == 512
