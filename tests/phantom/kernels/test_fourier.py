"""Fourier transforms and complex numbers; sizes as an H200 took them (benchmarks/truth/fourier.json)."""

from __future__ import annotations

import json

import pytest
import torch
from helpers import ROOT

import memfit
from memfit.phantom.kernels.fourier import _workspace
from memfit.units import MIB

COMPLEX = {"float32": torch.complex64, "float64": torch.complex128}


def test_what_cufft_takes_is_mostly_known():
    """Lengths that are done in one pass are a fact each, so that nine of ten of all and not each is asked for."""
    known = []
    for kind, shape, dims, dtype, _, events in json.loads((ROOT / "benchmarks" / "truth" / "fourier.json").read_text()):
        data = torch.empty(shape, dtype=COMPLEX[dtype] if kind == "c2c" else getattr(torch, dtype), device="meta")
        given_back = [-size for size in events if size < 0]
        taken = given_back[: len(given_back) - (kind == "c2r")]
        expected = taken[0] if taken else 0
        known.append(abs(_workspace(data, dims, shape) - expected) <= max(600, 0.05 * expected))
    assert len(known) > 1500
    assert sum(known) / len(known) > 0.93


@pytest.mark.parametrize(
    ("function", "mib"),
    [
        (lambda: torch.ones(2**18, dtype=torch.complex64, device="cuda").abs(), 2 + 1 + 2),
        (lambda: torch.ones(2**18, device="cuda").abs(), 1 + 1),
        (lambda: torch.fft.rfft(torch.ones(256, 1200, device="cuda")), 3 * 256 * 1200 * 4 / MIB),
        (lambda: torch.fft.irfft(torch.ones(256, 513, dtype=torch.complex64, device="cuda")), 256 * (2 * 513 * 8 + 1024 * 4) / MIB),
    ],
    ids=["abs of complex", "abs", "rfft", "irfft"],
)
def test_what_is_taken_meanwhile(function, mib):
    def step() -> None:
        function()

    assert memfit.predict(lambda: step, gpu="H200", steps=1).peak_allocated == pytest.approx(mib * MIB, rel=0.004)
