"""Generators of the phantom GPU: they draw nothing, and keep their seeds."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom


def test_states_of_a_gpu_are_put_back():
    with phantom():
        generator = torch.cuda.default_generators[0]
        torch.cuda.manual_seed(7)
        before = torch.cuda.get_rng_state()
        assert (before.numel(), before.device.type, generator.initial_seed(), torch.cuda.initial_seed()) == (16, "cpu", 7, 7)
        torch.cuda.manual_seed_all(8)
        assert not torch.equal(generator.get_state(), before)
        generator.set_state(before)
        assert torch.equal(torch.cuda.get_rng_state_all()[0], before)
        torch.cuda.set_rng_state(torch.cuda.get_rng_state())
        assert generator.graphsafe_get_state().initial_seed() == generator.clone_state().initial_seed() == 7
        with pytest.raises(RuntimeError, match="16 bytes"):
            generator.set_state(torch.get_rng_state())


def test_those_of_the_host_are_torchs():
    with phantom():
        generator = torch.Generator().manual_seed(3)
        state = generator.get_state()
        drawn = torch.rand(2, generator=generator)
        generator.set_state(state)
        assert torch.equal(torch.rand(2, generator=generator), drawn)
