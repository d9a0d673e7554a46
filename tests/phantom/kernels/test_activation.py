"""Softmax and activations as CUDA runs them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memfit


def operators_of(function, dtype=torch.float32) -> set[str]:
    """The names in the ledger of one forward and backward."""

    def build():
        x = torch.randn(64, 64, device="cuda", dtype=dtype, requires_grad=True)
        return lambda: function(x).sum().backward()

    return {str(name) for name in memfit.predict(build, steps=1).ledger.strings}


@pytest.mark.parametrize("function", [nn.functional.silu, nn.functional.mish], ids=["silu", "mish"])
def test_backward_is_one_kernel(function):
    names = operators_of(function)
    assert any(f"{function.__name__}_backward" in name for name in names)
    assert not any("sigmoid" in name or "tanh" in name for name in names)


@pytest.mark.parametrize(("dtype", "is_copied"), [(torch.float16, False), (torch.bfloat16, True)])
def test_softmax_converts_float16_itself(dtype, is_copied):
    names = operators_of(lambda x: x.softmax(-1, dtype=torch.float32), dtype)
    assert any("_softmax" in name for name in names)
    assert any("_to_copy" in name for name in names) == is_copied
