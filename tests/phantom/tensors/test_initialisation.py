"""Weights are initialised as the torch that is predicted does it."""

import pytest
import torch

import memfit

SIZE = 4 * 2**20


@pytest.mark.parametrize(("version", "masks"), [("2.11+cu130", 0), ("2.13+cu130", 3)])
def test_truncated_normals_take_masks_since_2_13(version: str, masks: int):
    """Three of them at once, a byte an element."""

    def build():
        torch.nn.init.trunc_normal_(torch.empty(SIZE, device="cuda"))
        return lambda: None

    assert memfit.predict(build, gpu="H200", steps=1, torch_version=version).peak_allocated == SIZE * (4 + masks)
