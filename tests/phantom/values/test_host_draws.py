"""What is drawn from the host's generator in the world is what a real run draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.phantom_worlds import phantom
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from memfit.phantom.values.mersenne_twister import advance

WAYS: dict[str, Callable[[], object]] = {
    "a layer": lambda: nn.Linear(100, 100),
    "a layer that is no multiple of anything": lambda: nn.Linear(257, 301),
    "normal numbers, the last group not whole": lambda: nn.init.normal_(nn.Parameter(torch.empty(2**16 + 21))),
    "few normal numbers": lambda: nn.init.normal_(nn.Parameter(torch.empty(5))),
    "an embedding": lambda: nn.Embedding(1000, 33),
    "orthogonal": lambda: nn.init.orthogonal_(nn.Parameter(torch.empty(64, 64))),
    "half precision": lambda: nn.Linear(100, 100, dtype=torch.bfloat16),
    "double precision": lambda: nn.Linear(100, 100, dtype=torch.float64),
    "a large tensor of the host": lambda: torch.randn(2**20 + 3),
    "a generator of its own": lambda: nn.init.uniform_(nn.Parameter(torch.empty(99)), generator=torch.Generator().manual_seed(3)),
    "the GPU": lambda: nn.Linear(10, 10, device="cuda" if torch.cuda.is_available() else "meta"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_drawn_next_is_what_a_real_run_draws(way: str):
    torch.manual_seed(7)
    WAYS[way]()
    real = torch.randperm(1000).tolist()
    torch.manual_seed(7)
    with phantom():
        WAYS[way]()
        assert torch.randperm(1000).tolist() == real


LARGE: dict[str, Callable[[], object]] = {
    "a large layer": lambda: nn.Linear(1501, 1999),
    "large normal numbers, the last group not whole": lambda: nn.init.normal_(nn.Parameter(torch.empty(3 * 2**20 + 21))),
    "large normal numbers": lambda: torch.randn(2**21),
    "normal numbers with a mean": lambda: torch.normal(1.0, 2.0, (2**21 + 5,)),
    "large, half precision": lambda: nn.init.normal_(nn.Parameter(torch.empty(2**21 + 3, dtype=torch.bfloat16))),
    "large, double precision": lambda: nn.init.normal_(nn.Parameter(torch.empty(2**21 + 7, dtype=torch.float64))),
    "tokens": lambda: torch.randint(0, 32000, (2**21 + 1,)),
    "tokens from zero": lambda: torch.randint(32000, (1025, 1027)),
    "large numbers": lambda: torch.randint(-(2**40), 2**40, (1025, 1027)),
    "a mask": lambda: torch.empty(1025, 1027).bernoulli_(0.3),
    "one after another": lambda: [nn.Linear(1025, 1025) for _ in range(3)],
    "a large one with a generator of its own": lambda: nn.init.uniform_(
        nn.Parameter(torch.empty(2**21)), generator=torch.Generator().manual_seed(3)
    ),
}


@pytest.mark.parametrize("drawn_before", [0, 624, 1000])
@pytest.mark.parametrize("way", LARGE)
def test_many_draws_are_passed_over_as_a_real_run_makes_them(way: str, drawn_before: int):
    def draw_after() -> list[list[float]]:
        return [torch.rand(3).tolist(), torch.randperm(1000).tolist(), torch.randn(5).tolist()]

    torch.manual_seed(7)
    torch.rand(drawn_before)
    LARGE[way]()
    real = draw_after()
    torch.manual_seed(7)
    with phantom():
        torch.rand(drawn_before)
        LARGE[way]()
        assert draw_after() == real


def test_a_generator_of_the_users_is_advanced_too():
    def draw() -> list[float]:
        generator = torch.Generator().manual_seed(3)
        torch.randn(2**21 + 5, generator=generator)
        return torch.rand(4, generator=generator).tolist()

    real = draw()
    with phantom():
        assert draw() == real


@given(seed=st.integers(0, 2**32 - 1), num_blocks=st.integers(0, 700))
@settings(max_examples=25, deadline=None)
def test_advancing_is_drawing(seed: int, num_blocks: int):
    generator = np.random.RandomState(seed)
    generator.bytes(4)  # the words that seeding makes are none of the recurrence's
    words = np.asarray(generator.get_state()[1], np.uint32)
    generator.bytes(4 * 624 * num_blocks)
    assert np.array_equal(advance(words, num_blocks), generator.get_state()[1])


def test_truncated_numbers_were_drawn_once_before_torch_2_13():
    torch.manual_seed(7)
    torch.empty(1100, 1100).uniform_()
    real = torch.randperm(1000).tolist()
    torch.manual_seed(7)
    with phantom(torch_version="2.11+cu130") as world:
        nn.init.trunc_normal_(nn.Parameter(torch.empty(1100, 1100)))
        assert torch.randperm(1000).tolist() == real
        assert not list(world.assumptions.sentences())


def test_truncated_numbers_that_are_drawn_again_are_said():
    with phantom(torch_version="2.13+cu130") as world:
        nn.init.trunc_normal_(nn.Parameter(torch.empty(1100, 1100)))
        assert any("trunc_normal_" in sentence for sentence in world.assumptions.sentences())
        nn.init.trunc_normal_(nn.Parameter(torch.empty(11, 11, device="cuda")))
