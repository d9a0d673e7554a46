"""CUDA code that a script compiles when it runs."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch.utils import cpp_extension

from memfit.errors import NeedsGpuError


@pytest.mark.parametrize(
    "make",
    [
        lambda: cpp_extension.load("fast", ["bind.cpp", "kernel.cu"]),
        lambda: cpp_extension.load_inline("fast", "", cuda_sources="__global__ void k() {}"),
    ],
)
def test_it_is_not_compiled_and_using_it_is_refused_by_name(make):
    with phantom() as world:
        extension = make()
        assert any("the CUDA extension fast was not compiled" in sentence for sentence in world.assumptions.sentences())
        with pytest.raises(NeedsGpuError, match="softmax of the CUDA extension fast") as raised:
            extension.softmax(torch.ones(3, device="cuda"))
        assert "register_fake" in raised.value.advice
