"""Inference mode takes what no_grad takes, inside operators too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memfit


def peak_of(mode) -> int:
    def build():
        model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64)).cuda().eval()
        x = torch.randn(32, 64, 56, 56, device="cuda", dtype=torch.float32)

        def step() -> None:
            with mode(), torch.autocast("cuda", dtype=torch.bfloat16):
                model(x)

        return step

    return memfit.predict(build, gpu="H200").peak_allocated


def test_it_takes_what_no_grad_takes():
    with_workspace = peak_of(torch.no_grad)
    assert peak_of(torch.inference_mode) == with_workspace
    assert (
        with_workspace > 4 * 32 * 64 * 56 * 56 * 2
    )  # the input in float32, and with its copy, its cast and the result in bfloat16


def test_gradients_are_as_they_were_afterwards():
    def build():
        weight = nn.Parameter(torch.ones(3, device="cuda"))

        @torch.inference_mode()
        def evaluate() -> torch.Tensor:
            assert not torch.is_grad_enabled()
            with torch.inference_mode(False):
                assert torch.is_grad_enabled()
            return weight * 2

        def step() -> None:
            assert not evaluate().requires_grad
            assert torch.is_grad_enabled()
            (weight * 2).sum().backward()

        return step

    memfit.predict(build, gpu="H200")
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()


def test_an_error_inside_leaves_it():
    def build():
        def step() -> None:
            with pytest.raises(ValueError, match="inside"), torch.inference_mode():
                raise ValueError("inside")
            assert torch.is_grad_enabled()
            nn.Linear(2, 2).cuda()(torch.ones(1, 2, device="cuda")).sum().backward()

        return step

    memfit.predict(build, gpu="H200")
