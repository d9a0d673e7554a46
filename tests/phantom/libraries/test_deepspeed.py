"""Operators that DeepSpeed compiles have stand-ins; nothing of DeepSpeed is needed for these tests."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from helpers.phantom_worlds import phantom

import memfit
from memfit.errors import NeedsGpuError, PredictionError
from memfit.phantom.libraries.deepspeed import OPERATORS, _load, _name_overflow
from memfit.torch_compat.patches import Patches


def test_an_update_takes_nothing_and_lamb_two_sums_and_a_coefficient():
    def build():
        tensors = [torch.ones(1024, device="cuda", dtype=torch.float16) for _ in range(5)]  # 2 KiB each
        sizes["tensors"] = torch.cuda.memory_allocated()
        OPERATORS["fused_adam"]().multi_tensor_adam(2048, tensors[0], [[tensor] for tensor in tensors], 0.1)
        host = OPERATORS["cpu_adam"]()
        host.create_adam(0, 0.1)
        host.adam_update(0, 1, *tensors)
        host.destroy_adam(0)
        sizes["adam"] = torch.cuda.max_memory_allocated()
        tensors.append(OPERATORS["fused_lamb"]().lamb(*tensors))
        sizes["lamb"] = torch.cuda.max_memory_allocated()
        return lambda: tensors.append(torch.ones(1, device="cuda"))

    sizes: dict[str, int] = {}
    prediction = memfit.predict(build, gpu="H200", steps=1)
    assert sizes == {"tensors": 5 * 2048, "adam": 5 * 2048, "lamb": 5 * 2048 + 2 * 4 * 512 + 512}
    assert any("cpu_adam" in sentence for sentence in prediction.assumptions)


@pytest.mark.parametrize(("bits", "columns"), [(8, 64), (4, 32)])
def test_values_of_four_bits_are_two_in_a_byte(bits: int, columns: int):
    quantizer = OPERATORS["quantizer"]()
    with phantom():
        values = torch.ones(16, 64, device="cuda", dtype=torch.float16)
        small, scales = quantizer.quantize(values, 8, bits, quantizer.Asymmetric)
        assert (small.shape, small.dtype, scales.shape, scales.dtype) == ((16, columns), torch.int8, (8, 2), torch.float32)
        for name, dtype in (("dequantize", torch.float16), ("dequantize_fp32", torch.float32)):
            whole = getattr(quantizer, name)(small, scales, 8, bits, quantizer.Symmetric)
            assert (whole.shape, whole.dtype) == (values.shape, dtype)
        flat, scales = quantizer.swizzle_quant(values, 8, bits, quantizer.Symmetric, 1, 1, 4)
        assert (flat.shape, scales.shape) == ((16 * columns,), (8, 1))
        reduced, scales = quantizer.quantized_reduction(flat, scales, 8, 2, bits, quantizer.Symmetric, 4)
        assert (reduced.shape, scales.shape) == ((4 * columns,), (2, 1))


def test_other_operators_are_refused_when_they_are_used():
    with phantom():
        operator = _load(SimpleNamespace(name="evoformer_attn"))
        with pytest.raises(NeedsGpuError, match="attention of the CUDA extension evoformer_attn of DeepSpeed"):
            operator.attention()


class _Engine:
    def __init__(self, *, overflow: bool) -> None:
        self.optimizer = SimpleNamespace(overflow=overflow)

    def fp16_enabled(self) -> bool:
        return True

    def _take_model_step(self) -> str:
        return "stepped"


@pytest.mark.parametrize(("overflow", "said"), [(False, "no gradient was taken to overflow"), (True, "skipped a step")])
def test_what_becomes_of_overflows_is_said(overflow: bool, said: str):
    patches = Patches("a test")
    _name_overflow(patches, _Engine)
    with phantom() as world:
        assert _Engine(overflow=overflow)._take_model_step() == "stepped"
        assert [sentence for sentence in world.assumptions.sentences() if said in sentence]
    patches.undo()


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_where_deepspeed_is_not_installed_its_engine_asks_for_it():
    with phantom():
        import deepspeed

        with pytest.raises(PredictionError, match="DS_BUILD_OPS=0 pip install deepspeed"):
            deepspeed.initialize(model=None)
