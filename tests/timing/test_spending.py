"""Python that nothing sees tells the clock what it costs; outside a prediction nobody listens."""

from __future__ import annotations

import pytest
import torch

import memfit
from memfit.timing import spending


@pytest.mark.parametrize("seconds", [0.0, 0.25])
def test_the_host_is_busy_for_so_long(seconds: float):
    def build():
        x = torch.ones(8, device="cuda")

        def step() -> None:
            assert spending.spend is not None
            spending.spend(seconds)
            x.add_(1)

        return step

    prediction = memfit.predict(build, steps=2)
    assert prediction.step_seconds == pytest.approx(seconds, abs=0.01)
    assert spending.spend is None
