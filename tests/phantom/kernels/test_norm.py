"""Norms as CUDA runs them."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn

import memfit


def test_group_norm_undoes_channels_last():
    with phantom():
        x = torch.randn(2, 8, 4, 4, device="cuda").to(memory_format=torch.channels_last)
        assert nn.GroupNorm(4, 8).cuda()(x).is_contiguous()


def test_rms_norm_is_one_kernel():
    def build():
        x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
        norm = nn.RMSNorm(1024, device="cuda")
        return lambda: norm(x).sum().backward()

    ops = {str(op) for op in memfit.predict(build, steps=1).ledger.strings}
    assert any("_fused_rms_norm_backward" in op for op in ops)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_statistics_of_sync_batch_norm_are_float32(dtype):
    with phantom():
        x = torch.randn(4, 8, 16, device="cuda", dtype=dtype)
        for statistic in torch.batch_norm_stats(x, 1e-5):
            assert (statistic.shape, statistic.dtype) == ((8,), torch.float32)


def test_rms_norm_copies_what_is_not_contiguous():
    """As DeepSeek's attention has it: the first part of each row."""

    def peak(width: int) -> int:
        def build():
            x, weight = (
                torch.randn(4096, width, device="cuda", dtype=torch.bfloat16),
                torch.ones(512, device="cuda", dtype=torch.bfloat16),
            )
            return lambda: torch.nn.functional.rms_norm(x[:, :512], (512,), weight)

        prediction = memfit.predict(build, gpu="H200", steps=1)
        return prediction.peak_allocated - prediction.init.end_allocated

    assert peak(576) - peak(512) == 4096 * 512 * 2


def test_layer_norm_copies_what_is_not_contiguous():
    def peak(turn: bool) -> int:
        def build():
            x = torch.randn(64, 512, 512, device="cuda")
            x = x.transpose(1, 2) if turn else x
            return lambda: torch.nn.functional.layer_norm(x, (512,))

        prediction = memfit.predict(build, gpu="H200", steps=1)
        return prediction.peak_allocated - prediction.init.end_allocated

    assert peak(turn=True) - peak(turn=False) == 64 * 512 * 512 * 4


@pytest.mark.parametrize(
    ("dtype", "is_kept"), [(torch.float32, True), (torch.bfloat16, False)], ids=["by cuDNN", "bfloat16, which cuDNN does not get"]
)
def test_batch_norm_keeps_the_contiguous_copy_of_a_turned_input(dtype: torch.dtype, is_kept: bool):
    """As PatchTST has it: features last, turned for the norm."""
    kept = []

    def build():
        norm = torch.nn.BatchNorm1d(128).cuda().to(dtype)
        x = torch.randn(64, 32, 128, device="cuda", dtype=dtype)

        def step():
            before = torch.cuda.memory_allocated()
            out = norm(x.transpose(1, 2))
            kept.append(torch.cuda.memory_allocated() - before - out.numel() * out.element_size())

        return step

    memfit.predict(build, gpu="H200", steps=1)
    assert (kept[0] > 64 * 32 * 128 * dtype.itemsize) == is_kept
