"""Calls as text, and what a tensor's layout says."""

from __future__ import annotations

import pytest

from memfit.timing.operators.calls import Call, Operand

TEXTS = (
    "mm bf16[4096,1024] bf16[1024,4096]@1,1024 > bf16[4096,4096]",
    "_foreach_add_ (3*f32[1024,1024];f32[1024]) 1.0 >",
    "sum.dim_IntList f32[8,4] (0) T > f32[1,4]",
    "convolution f32[2,3,8,8] f32[4,3,3,3] - (2*1) (2*1) (2*1) F (2*0) 1 > f32[2,4,8,8]",
    "copy_ f32[16] p:f32[16] T > f32[16]",
    "fill_.Scalar f32[] -1e-05 > f32[]",
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_call_reads_what_it_wrote(text: str) -> None:
    assert str(Call.parse(text)) == text


def test_lists_of_tensors_are_inputs_too() -> None:
    call = Call.parse("_foreach_add_ (3*f32[1024];f32[8]) 1.0 >")
    assert [tensor.shape for tensor in call.inputs] == [(1024,)] * 3 + [(8,)]
    assert call.outputs == ()


def test_an_expanded_dimension_is_read_once() -> None:
    assert Operand("f32", (4, 8, 16), (0, 16, 1)).touched_bytes == 8 * 16 * 4
    assert Operand("f32", (4, 8, 16)).touched_bytes == 4 * 8 * 16 * 4


def test_a_transposed_tensor_is_dense_and_a_slice_is_not() -> None:
    assert Operand("bf16", (8, 4), (1, 8)).is_dense
    assert not Operand("bf16", (8, 4), (16, 1)).is_dense
