"""The handle to the prediction that runs: there while a world lasts, and gone with it."""

from __future__ import annotations

import pytest
import torch

import memfit
from memfit.phantom.current import NoPredictionError, current, find_world


@pytest.mark.parametrize(("seconds", "slowness"), [(0.0, 1.0), (0.25, 1.0), (0.125, 2.0)])
def test_the_host_is_busy_with_a_mode_for_that_long(seconds: float, slowness: float):
    def build():
        x = torch.ones(8, device="cuda")
        current().mode_slowness = slowness

        def step() -> None:
            current().spend_on_mode(seconds)
            x.add_(1)

        return step

    prediction = memfit.predict(build, steps=2)
    assert prediction.step_seconds == pytest.approx(seconds * slowness, abs=0.01)


def test_outside_there_is_none():
    assert find_world() is None
    with pytest.raises(NoPredictionError):
        current()


def test_a_stream_that_outlives_its_world_has_nothing_to_wait_for():
    kept = []

    def build():
        kept.extend((torch.cuda.Stream(), torch.cuda.Event()))
        return lambda: torch.ones(8, device="cuda")

    memfit.predict(build, steps=1)
    stream, event = kept
    stream.wait_event(event)
    stream.synchronize()
    assert stream.query()
    assert event.query()
