"""What a kernel's source says that it moves, by hand."""

from __future__ import annotations

import pytest
import torch

from memfit.phantom.clock.launches import read_source

POINTWISE = """
@triton.jit
def triton_poi_fused_add_0(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    tmp0 = tl.load(in_out_ptr0 + (x0), xmask)
    tmp1 = tl.load(in_ptr0 + (x0), xmask)
    tl.store(in_out_ptr0 + (x0), tmp0 + tmp1, xmask)
"""
LOOKED_UP = """
def triton_red_fused_nll_0(in_ptr0, in_ptr1, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_ptr0 + (r0_0), r0_mask)
        tmp1 = tl.load(in_ptr1 + (tmp0 + 1000*r0_0), r0_mask)
    tl.store(out_ptr0 + (0), tmp9, None)
"""
SOFTMAX = LOOKED_UP.replace("tl.store", "tmp2 = tl_math.exp(tmp1)\n    tl.store")


def empty(numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(numel, dtype=dtype, device="meta")


def test_what_is_read_and_written_counts_twice() -> None:
    source = read_source(POINTWISE)
    assert source is not None
    assert source.accesses[:2] == ((1, 1), (1, 0))
    assert source.moved_bytes((empty(1000), empty(1000, torch.bfloat16), 1000)) == 2 * 4000 + 2000


def test_what_is_looked_up_counts_by_how_much_is_looked_up() -> None:
    source = read_source(LOOKED_UP)
    assert source is not None
    arguments = (empty(64, torch.int64), empty(64_000), empty(1), 1, 64)
    assert source.elements(arguments) == 64
    assert source.moved_bytes(arguments) == 64 * 8 + 64 * 4 + 4


@pytest.mark.parametrize(("source", "expected"), [(POINTWISE, False), (LOOKED_UP, False), (SOFTMAX, True)])
def test_loops_with_slow_functions_are_found(source: str, expected: bool) -> None:
    found = read_source(source)
    assert found is not None
    assert found.has_slow_loop is expected


def test_what_is_no_kernel_of_inductors_is_left_alone() -> None:
    assert read_source("") is None
