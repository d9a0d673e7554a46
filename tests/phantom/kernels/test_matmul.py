"""Matrix products: workspaces of the libraries, and operands that are copied first."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom

import memfit
from memfit.errors import StepFailedError
from memfit.phantom.kernels import RULES
from memfit.phantom.kernels.matmul import cublas_workspace, cublaslt_workspace
from memfit.phantom.target import Target

aten = torch.ops.aten
H200 = Target.parse("H200", "2.11+cu130")


def test_workspaces_of_cublas_and_cublaslt():
    assert (cublas_workspace(H200), cublaslt_workspace(H200)) == (32 * 2**20, 2**20)
    assert cublas_workspace(Target.parse("A100-80GB", "2.11")) == 8519680
    assert cublaslt_workspace(Target.parse("H200", "2.12")) == 0


@pytest.mark.parametrize(
    ("said", "size"), [(":4096:8", 32 * 2**20), (":16:8", 2**17), (":4096:2:16:8", 8519680), ("nothing", 8519680)]
)
def test_the_environment_says_how_large_workspaces_are(monkeypatch: pytest.MonkeyPatch, said: str, size: int):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", said)
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "512")
    a100 = Target.parse("A100-80GB", "2.11")
    assert (cublas_workspace(a100), cublaslt_workspace(a100)) == (size, 2**19)


def test_an_operand_with_gaps_both_ways_is_copied():
    dense, gaps = torch.empty(8, 8, device="meta"), torch.empty(8, 16, 2, device="meta")[:, ::2, 0]
    assert RULES.get(aten.mm.default).takes(H200, (dense.t(), gaps), None) == [8 * 8 * 4]
    assert RULES.get(aten.addmm.default).takes(H200, (gaps[0], dense, gaps), None) == [8 * 8 * 4]


@pytest.mark.parametrize(
    ("shape", "strides", "is_copied"),
    [
        ((6, 1), (0, 0), True),  # the gradient of a sum
        ((6, 4), (0, 0), True),
        ((6, 4), (0, 1), True),
        ((1, 6), (0, 2), True),
        ((6, 1), (3, 1), False),
        ((1, 6), (0, 1), False),
        ((1, 6), (1, 9), False),
        ((1, 1), (0, 0), False),
        ((5, 6, 1), (0, 0, 0), True),
        ((5, 6, 1), (12, 2, 2), True),
        ((5, 6, 4), (0, 4, 1), False),
        ((5, 6, 1), (6, 1, 1), False),
        ((5, 6, 1), (6, 1, 3), False),
        ((5, 1, 1), (1, 0, 0), True),
    ],
)
def test_operands_that_are_one_number_wide(shape: tuple[int, ...], strides: tuple[int, ...], is_copied: bool):
    operand = torch.empty_strided(shape, strides, device="meta")
    other = torch.empty(*shape[:-2], shape[-1], 8, device="meta")
    multiply = aten.mm.default if len(shape) == 2 else aten.bmm.default
    assert RULES.get(multiply).takes(H200, (operand, other), None) == [4 * operand.numel()] * is_copied


@pytest.mark.parametrize(
    ("is_turned", "made"),
    [(False, ["aten.addmm"]), (True, ["aten.clone", "aten.mm"])],
)
def test_a_bias_is_added_in_place_to_an_input_in_pieces(is_turned: bool, made: list[str]):
    def build():
        layer = torch.nn.Linear(64, 96).cuda()
        x = torch.randn(8, 16, 64, device="cuda")
        x = x.transpose(0, 1) if is_turned else x

        def step():
            layer(x).sum().backward()

        return step

    ledger = memfit.predict(build, gpu="H200", steps=1).ledger
    blocks = [ledger.strings[op].removesuffix(".default") for op in ledger.blocks.op]
    assert [op for op in blocks if op in ("aten.clone", "aten.mm", "aten.addmm", "aten.add")][: len(made)] == made
    assert not any(op.startswith("aten.add.") for op in blocks)


def test_a_linear_layer_is_what_it_is_without_a_phantom():
    """Shapes and strides of outputs and gradients, for inputs of each kind."""
    for shape, turned in (((64,), False), ((8, 64), False), ((3, 8, 64), False), ((3, 8, 64), True), ((0, 8, 64), False)):

        def run(device: str, shape=shape, turned=turned) -> tuple[object, ...]:
            here = torch.nn.Linear(64, 96).to(device)
            x = torch.zeros(shape, device=device, requires_grad=True)
            y = here(x.transpose(0, 1) if turned else x)
            y.sum().backward()
            return y.shape, y.stride(), x.grad.shape, here.bias.grad.shape, here.weight.grad.shape

        with phantom():
            found = run("cuda")
        assert found == run("cpu")


def test_products_of_groups_in_any_type():
    with phantom():
        for dtype in (torch.bfloat16, torch.float32):
            left, right = torch.empty(32, 16, device="cuda", dtype=dtype), torch.empty(2, 16, 64, device="cuda", dtype=dtype)
            ends = torch.tensor([16, 32], device="cuda", dtype=torch.int32)
            out = torch._grouped_mm(left, right, ends)
            assert (out.shape, out.dtype) == ((32, 64), dtype)


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
def test_blocks_with_a_scale_each_need_a_gpu_that_has_them(kind: str):
    rows, columns = 512, 1024
    packed, scales, block = (torch.float8_e4m3fn, torch.float8_e8m0fnu, 32)
    if kind == "nvfp4":
        packed, scales, block = torch.float4_e2m1fn_x2, torch.float8_e4m3fn, 16
    width = columns // (2 if kind == "nvfp4" else 1)

    def build():
        left, right = (torch.empty(rows, width, device="cuda", dtype=packed) for _ in range(2))
        of_left, of_right = (torch.empty(rows * columns // block, device="cuda", dtype=scales) for _ in range(2))
        return lambda: torch._scaled_mm(left, right.t(), of_left, of_right, out_dtype=torch.bfloat16)

    with pytest.raises(StepFailedError, match="has no products of MXFP8 and NVFP4"):
        memfit.predict(build, gpu="H200", steps=1)
    assert memfit.predict(build, gpu="B200", steps=1).peak_allocated > rows * rows * 2
