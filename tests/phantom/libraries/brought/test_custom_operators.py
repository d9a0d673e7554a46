"""Operators that Python code defines are opened: what they take inside is seen."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom

import memfit
from memfit.errors import NeedsGpuError
from memfit.units import MIB


@torch.library.custom_op("memfit_test_open::widen", mutates_args=())
def widen(x: torch.Tensor) -> torch.Tensor:
    wide = torch.empty(x.numel() * 4, dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    del wide
    return out


@widen.register_fake
def _(x):
    return torch.empty_like(x)


widen.register_autograd(lambda ctx, grad: widen(grad))


@torch.library.custom_op("memfit_test_open::compiled", mutates_args=(), device_types="cuda")
def compiled(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("there is no driver")


@compiled.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("memfit_test_open::unknown", mutates_args=(), device_types="cuda")
def unknown(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("there is no driver")


def test_what_is_taken_inside_is_seen_forward_and_backward():
    def build():
        x = torch.zeros(MIB // 4, device="cuda", requires_grad=True)

        def step():
            widen(x).sum().backward()
            x.grad = None

        return step

    prediction = memfit.predict(build, gpu="H200", steps=1)
    assert prediction.peak_allocated >= 6 * MIB  # x, four times x, out
    assert not any("memfit_test_open" in sentence for sentence in prediction.assumptions)


def test_one_that_needs_a_gpu_is_taken_at_its_word_and_named():
    with phantom() as world:
        assert compiled(torch.ones(3, device="cuda")).shape == (3,)
        assert any("memfit_test_open::compiled" in sentence for sentence in world.assumptions.sentences())


def test_one_that_says_nothing_is_refused_by_name():
    with phantom(), pytest.raises(NeedsGpuError, match=r'register_fake\("memfit_test_open::unknown"\)'):
        unknown(torch.ones(3, device="cuda"))


def test_one_that_is_defined_inside_is_opened_too_and_works_outside():
    with phantom() as world:

        @torch.library.custom_op("memfit_test_open::inside", mutates_args=())
        def inside(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        assert inside(torch.ones(3, device="cuda")).shape == (3,)  # without register_fake
        assert not any("inside" in sentence for sentence in world.assumptions.sentences())
    assert inside(torch.ones(3)).tolist() == [2.0] * 3


def test_compiled_code_keeps_it_as_one_operator_and_opens_it_when_it_runs():
    def build():
        x = torch.zeros(MIB // 4, device="cuda", requires_grad=True)

        @torch.compile
        def loss_of(x):
            return torch.nn.functional.dropout(widen(x + 1) * 2, 0.5).sum()

        def step():
            loss_of(x).backward()
            x.grad = None

        return step

    memfit.predict(build, gpu="H200", steps=1)  # loads Inductor, whose own operators the next prediction opens as well
    prediction = memfit.predict(build, gpu="H200", steps=2)
    assert not any("could not" in sentence for sentence in prediction.assumptions), prediction.assumptions
    # In backward: x, the gradient that a kernel wrote, four times x, what widen returns, the loss and its gradient.
    assert prediction.steps[1].peak_allocated == 7 * MIB + 2 * 512
