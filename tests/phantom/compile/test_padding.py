"""Matrix products whose sizes are not aligned: where padding them would be faster on the GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from memfit.phantom.compile.padding import should_pad

TOKENS, DIM = 8192, 768
PARTS = SimpleNamespace(
    inductor_config=SimpleNamespace(force_shape_pad=False),
    inductor_utils=SimpleNamespace(get_device_tflops=lambda dtype: 989, get_gpu_dram_gbps=lambda: 4800),
    pad_mm=SimpleNamespace(
        is_mm_compute_bound=lambda *sizes: True,
        # What the kernel before writes in order can be written padded.
        should_exclude_padding_time=lambda match, name: match[name].is_contiguous() and not match[name].requires_grad,
    ),
    sizes_for_planning=list,
)


def is_padded(mat1: torch.Tensor, mat2: torch.Tensor) -> bool:
    return should_pad(PARTS)({"mat1": mat1, "mat2": mat2}, mat1, mat2, torch.ops.aten.mm)


def matrix(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16, is_weight: bool = False) -> torch.Tensor:
    return torch.empty(rows, columns, dtype=dtype, device="meta", requires_grad=is_weight)


@pytest.mark.parametrize(("vocab", "of_input", "of_weight"), [(50257, True, True), (30522, True, False), (50304, False, False)])
def test_gradients_of_a_language_models_head(vocab: int, of_input: bool, of_weight: bool):
    """As an H200 decided for GPT-2's and BERT's vocabulary; the third needs no padding."""
    gradient, weight, hidden = matrix(TOKENS, vocab), matrix(vocab, DIM, is_weight=True), matrix(TOKENS, DIM, is_weight=True)
    assert is_padded(gradient, weight) == of_input
    assert is_padded(gradient.t(), hidden) == of_weight


def test_without_tensor_cores_nothing_is_gained():
    assert not is_padded(matrix(TOKENS, 50257, torch.float32), matrix(50257, DIM, torch.float32))


def test_rows_that_are_aligned_are_left_alone():
    assert not is_padded(matrix(TOKENS - 1, DIM), matrix(DIM, 4 * DIM))
