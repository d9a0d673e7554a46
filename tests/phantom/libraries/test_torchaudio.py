"""Operators that torchaudio compiles."""

from __future__ import annotations

import torch
from helpers.phantom_worlds import phantom

import memfit
from memfit.phantom.libraries import torchaudio
from memfit.units import MIB


def test_the_loss_of_a_transducer_makes_its_gradient_at_once_and_takes_five_numbers_for_each_pair():
    def build():
        def step():
            logits = torch.empty(4, 128, 32, 256, device="cuda", requires_grad=True)
            lengths = torch.full((4,), 128, dtype=torch.int32, device="cuda")
            with torch.no_grad():
                costs, gradients = torchaudio.rnnt_loss_forward(logits, lengths, lengths, lengths, 0, -1.0, True)
            assert (costs.shape, gradients.shape) == ((4,), logits.shape)

        return step

    logits, pairs = 16 * MIB, 4 * 128 * 32
    peak = memfit.predict(build, gpu="H200", steps=1).peak_allocated
    assert 2 * logits + 5 * 4 * pairs <= peak < 2 * logits + 5 * 4 * pairs + 8192


def test_a_filter_writes_into_what_it_is_given():
    with phantom():
        padded = torch.empty(2, 16, device="cuda")
        assert torchaudio.lfilter_core_loop(padded, padded, padded) is padded
