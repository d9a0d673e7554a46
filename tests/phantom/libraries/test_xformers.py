"""xformers' attention goes to the kernels that it would choose."""

from __future__ import annotations

import sys

import pytest
import torch
from helpers.phantom_worlds import phantom

from memfit.phantom.libraries import xformers


def inputs(dtype=torch.float16, batch=2):
    return [torch.randn(batch, 128, 4, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize(
    ("dtype", "bias", "node"),
    [
        (torch.float16, None, "Attention"),
        (torch.bfloat16, xformers.LowerTriangularMask(), "Attention"),
        (torch.float32, None, "Efficient"),
        (torch.float32, xformers.LowerTriangularMask(), "Efficient"),
    ],
)
def test_the_type_decides(dtype, bias, node):
    with phantom():
        tensors = inputs(dtype)
        out = xformers.memory_efficient_attention(*tensors, attn_bias=bias)
        assert out.shape == (2, 128, 4, 64)
        grad_fn = out.grad_fn if "Attention" in type(out.grad_fn).__name__ else out.grad_fn.next_functions[0][0]
        assert node in type(grad_fn).__name__
        out.sum().backward()
        assert all(tensor.grad is not None for tensor in tensors)


def test_a_bias_as_a_tensor_and_one_head_without_a_dimension():
    with phantom():
        tensors = inputs()
        bias = torch.zeros(2, 4, 128, 128, device="cuda", dtype=torch.float16)
        assert "Efficient" in type(xformers.memory_efficient_attention(*tensors, bias).grad_fn.next_functions[0][0]).__name__
        flat = [tensor[:, :, 0] for tensor in tensors]
        assert xformers.memory_efficient_attention(*flat).shape == (2, 128, 64)


def test_sequences_one_after_the_other():
    with phantom():
        tensors = inputs(batch=1)
        mask = xformers.BlockDiagonalMask.from_seqlens([100, 28]).make_causal()
        out = xformers.memory_efficient_attention(*tensors, attn_bias=mask)
        assert out.shape == (1, 128, 4, 64)
        mask, packed = xformers.BlockDiagonalMask.from_tensor_list([torch.ones(2, 5, 3), torch.ones(1, 7, 3)])
        assert packed.shape == (1, 17, 3)
        assert [part.shape for part in mask.split(packed)] == [(2, 5, 3), (1, 7, 3)]


def test_the_installed_package_has_its_function_replaced_and_put_back(tmp_path, monkeypatch):
    (tmp_path / "xformers").mkdir()
    (tmp_path / "xformers" / "__init__.py").touch()
    (tmp_path / "xformers" / "ops.py").write_text(
        "class Info:\n    seqstart_py = [0, 100, 128]\n"
        "class BlockDiagonalCausalMask:\n    q_seqinfo = k_seqinfo = Info\n"
        "def memory_efficient_attention(*args):\n    return 'compiled'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with phantom():
            from xformers import ops

            tensors = inputs(batch=1)
            assert ops.memory_efficient_attention(*tensors, ops.BlockDiagonalCausalMask()).shape == (1, 128, 4, 64)
        assert ops.memory_efficient_attention() == "compiled"
    finally:
        for name in ("xformers", "xformers.ops"):
            sys.modules.pop(name, None)
