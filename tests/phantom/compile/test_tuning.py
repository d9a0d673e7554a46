"""Kernels of compiled graphs are timed at their first launch, which takes memory for a while."""

from __future__ import annotations

import pytest
import torch

import memfit
from memfit.units import MIB

NUM_ELEMENTS = 1 << 20
BYTES = 4 * NUM_ELEMENTS
SLACK = MIB // 16


def steps_of(function, gpu: str = "H200", **options) -> list[int]:
    """What each of three steps takes at its peak."""

    def build():
        w = torch.randn(NUM_ELEMENTS, device="cuda", requires_grad=True)
        x = torch.randn(NUM_ELEMENTS, device="cuda")
        compiled = torch.compile(function, **options)

        def step() -> None:
            compiled(w, x).backward(torch.ones_like(w))
            w.grad = None

        return step

    return [step.peak_allocated for step in memfit.predict(build, gpu=gpu, steps=3).steps]


@pytest.mark.parametrize(("gpu", "cache"), [("H200", 60 * MIB), ("A100-80GB", 40 * MIB)])
def test_a_buffer_as_large_as_the_cache_is_taken_once(gpu: str, cache: int):
    first, second, third = steps_of(lambda w, x: w.sin() * x, gpu)
    assert second == third
    assert abs(first - second - cache) < SLACK


def test_what_a_kernel_changes_is_copied():
    def function(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        return w * x

    plain, second, _ = steps_of(lambda w, x: w * (x * 0.5))
    changing, _, _ = steps_of(function)
    assert plain > second + 50 * MIB
    assert abs(changing - plain - BYTES) < SLACK


def test_nothing_is_timed_where_there_is_no_choice():
    first, second, _ = steps_of(lambda w, x: w.sin() * x, options={"triton.autotune_pointwise": False})
    assert first == second
