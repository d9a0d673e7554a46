"""What Transformer Engine's compiled module allocates, below the package's own Python."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType

import pytest
import torch
from helpers.phantom_worlds import phantom

from memfit.errors import NeedsGpuError
from memfit.phantom.libraries import transformer_engine
from memfit.torch_compat.patches import Patches


def half(*shape):
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda")


def multiply(tex, weight, x, layout="TN", out=None, bias=None, grad=False, quantizer=None):
    """As ``general_gemm`` of the package calls it."""
    workspace = torch.empty(1024, dtype=torch.uint8, device="cuda")
    options = (bias, tex.DType.kBFloat16, False, None, grad, workspace, 1024, False, False)
    transposes = layout[0] == "T", layout[1] == "T"
    return tex.generic_gemm(weight, transposes[0], x, transposes[1], out, quantizer, tex.DType.kBFloat16, *options)


@pytest.mark.parametrize(
    ("layout", "weight", "x", "shape"),
    [
        ("TN", (48, 32), (4, 8, 32), (4, 8, 48)),  # forward
        ("NN", (48, 32), (4, 8, 48), (4, 8, 32)),  # the input's gradient
        ("NT", (32, 16), (32, 48), (48, 16)),  # the weight's gradient
    ],
)
def test_products_have_the_shapes_of_cublas(layout, weight, x, shape):
    with phantom():
        import transformer_engine_torch as tex

        out, bias_grad, *_ = multiply(tex, half(*weight), half(*x), layout)
        assert (tuple(out.shape), bias_grad) == (shape, None)


def test_a_product_into_a_tensor_makes_none_and_gradients_of_a_bias_are_made():
    with phantom():
        import transformer_engine_torch as tex

        into = half(48, 16)
        out, bias_grad, *_ = multiply(tex, half(32, 16), half(32, 48), "NT", out=into, bias=half(48), grad=True)
        assert out is into
        assert bias_grad.shape == (48,)


def test_a_quantizer_is_refused_by_name():
    with phantom():
        import transformer_engine_torch as tex

        with pytest.raises(NeedsGpuError, match="eight-bit"):
            multiply(tex, half(48, 32), half(8, 32), quantizer=object())
        with pytest.raises(NeedsGpuError, match="split_quantize"):
            tex.split_quantize(half(8, 8), [4, 4], [None, None])


def test_norms_keep_numbers_of_rows_and_make_gradients():
    with phantom():
        import transformer_engine_torch as tex

        x, weight = half(4, 8, 64), half(64)
        out, mean, deviation = tex.layernorm_fwd(x, weight, weight, 1e-5, None, None, tex.DType.kBFloat16, 0, False)
        assert (out.shape, mean.shape, deviation.dtype) == (x.shape, (32,), torch.float32)
        assert tex.rmsnorm_fwd(x, weight, 1e-5, None, None, tex.DType.kBFloat16, 0, False)[1] is None
        grads = tex.layernorm_bwd(out, x, mean, deviation, weight, 0, False)
        assert [tuple(grad.shape) for grad in grads] == [(4, 8, 64), (64,), (64,)]


def attend(tex, layout, query, key):
    """Arguments as 2.16 gives them, in their order."""
    starts = torch.empty(3, dtype=torch.int32, device="cuda")
    words = getattr(tex.NVTE_QKV_Layout, layout), tex.NVTE_QKV_Format.NVTE_SBHD, tex.NVTE_Bias_Type.NVTE_NO_BIAS
    out, sums, state = tex.fused_attn_fwd(
        64, 64, True, 1.0, 0.0, True, *words, starts, starts, query, key, key, torch.bfloat16, return_max_logit=False
    )
    grads = tex.fused_attn_bwd(
        64, 64, 1.0, 0.0, True, *words, words[0], starts, starts, query, key, key, out, out, torch.bfloat16, [sums, state]
    )
    return out, sums, grads[:3]


@pytest.mark.parametrize(
    ("layout", "query", "key", "sums"),
    [
        ("NVTE_SBHD_SBHD_SBHD", (64, 2, 8, 16), (64, 2, 4, 16), (2, 8, 64, 1)),
        ("NVTE_BSHD_BSHD_BSHD", (2, 64, 8, 16), (2, 64, 8, 16), (2, 8, 64, 1)),
        ("NVTE_THD_THD_THD", (128, 8, 16), (128, 8, 16), (128, 8, 1)),
    ],
)
def test_attention_keeps_a_number_for_each_row_and_makes_gradients_like_its_inputs(layout, query, key, sums):
    with phantom():
        import transformer_engine_torch as tex

        out, kept, grads = attend(tex, layout, half(*query), half(*key))
        assert (tuple(out.shape), tuple(kept.shape), kept.dtype) == (query, sums, torch.float32)
        assert [tuple(grad.shape) for grad in grads] == [query, key, key]


@pytest.mark.parametrize(("layout", "packed"), [("NVTE_SB3HD", (64, 2, 3, 8, 16)), ("NVTE_SBH3D", (64, 2, 8, 3, 16))])
def test_gradients_of_what_was_one_tensor_are_one_tensor(layout, packed):
    with phantom():
        import transformer_engine_torch as tex

        _, _, grads = attend(tex, layout, half(64, 2, 8, 16), half(64, 2, 8, 16))
        assert {grad.untyped_storage().nbytes() for grad in grads} == {2 * torch.Size(packed).numel()}
        assert {tuple(grad.shape) for grad in grads} == {(64, 2, 8, 16)}


def test_cudnn_attends_where_it_has_kernels():
    def choose(tex, dtype, dim):
        words = tex.NVTE_QKV_Layout.NVTE_SBHD_SBHD_SBHD, tex.NVTE_Bias_Type.NVTE_NO_BIAS, tex.NVTE_Mask_Type.NVTE_CAUSAL_MASK
        return tex.get_fused_attn_backend(
            True, dtype, dtype, *words, tex.NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX, 0.0, 8, 8, 64, 64, dim, dim, -1, 0
        )

    with phantom():
        import transformer_engine_torch as tex

        assert choose(tex, tex.DType.kBFloat16, 128).name == "NVTE_F16_arbitrary_seqlen"
        assert choose(tex, tex.DType.kFloat32, 128).name == "NVTE_No_Backend"
        assert choose(tex, tex.DType.kBFloat16, 100).name == "NVTE_No_Backend"


def test_libraries_are_not_loaded_while_the_package_is_imported_and_the_environment_is_as_before(monkeypatch):
    monkeypatch.delenv(transformer_engine.BUILDING, raising=False)
    monkeypatch.delitem(sys.modules, "transformer_engine", raising=False)
    patches = Patches("a test")
    transformer_engine.install(patches)
    assert os.environ[transformer_engine.BUILDING] == "1"
    patches.undo()
    assert transformer_engine.BUILDING not in os.environ


def test_workspaces_that_the_package_keeps_are_forgotten_when_a_prediction_ends(monkeypatch):
    made = []
    module = ModuleType("transformer_engine.pytorch.gemm")
    module.workspace = functools.lru_cache(lambda: made.append(1))
    module.tex = ModuleType("the compiled module")
    module.tex.__getattr__ = lambda name: pytest.fail(f"{name} of the stand-in is called")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    patches = Patches("a test")
    transformer_engine.install(patches)
    module.workspace()
    patches.undo()
    module.workspace()
    assert len(made) == 2


def test_a_causal_mask_halves_the_time_of_attention():
    def seconds(mask: str) -> float:
        with phantom() as world:
            import transformer_engine_torch as tex

            starts = torch.empty(2, dtype=torch.int32, device="cuda")
            words = tex.NVTE_QKV_Layout.NVTE_BSHD_BSHD_BSHD, tex.NVTE_Bias_Type.NVTE_NO_BIAS, getattr(tex.NVTE_Mask_Type, mask)
            tensors = [half(1, 16384, 16, 128) for _ in range(3)]
            timeline = world.clock.timeline
            began = timeline.arrival(0)
            tex.fused_attn_fwd(16384, 16384, True, 1.0, 0.0, True, *words, (-1, 0), starts, starts, *tensors, torch.bfloat16)
            return timeline.arrival(0) - began

    assert seconds("NVTE_CAUSAL_MASK") == pytest.approx(seconds("NVTE_NO_MASK") / 2, rel=0.1)
