"""A tensor larger than any GPU is an answer, not the end of the process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from memfit.predict.api import predict
from memfit.units import TIB


def build() -> Callable[[], object]:
    query = torch.randn(1, 16, 2**18, 64, device="cuda", dtype=torch.float16)
    return lambda: (query @ query.transpose(-1, -2)).softmax(-1)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_scores_of_two_tebibytes_do_not_fit(conf: str, tmp_path: Path):
    prediction = predict(build, gpu="H100-80GB", steps=1, alloc_conf=conf)
    assert not prediction.fits
    assert prediction.peak_allocated > 4 * TIB
    assert prediction.smallest_fit >= prediction.peak_allocated
    assert prediction.verdict.out_of_memory is not None
    assert prediction.verdict.out_of_memory.asked == 2 * TIB
