"""Kernels that a script compiles: launches are passed over, and named."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom

from memfit.errors import NeedsGpuError


@pytest.mark.skipif(not hasattr(torch.cuda, "_compile_kernel"), reason="this torch has none")
def test_a_launch_takes_nothing_and_leaves_nothing_known():
    with phantom() as world:
        kernel = torch.cuda._compile_kernel("__global__ void twice(int* x) {}", "twice")
        known = torch.tensor([3, 4], device="cuda")
        kernel.set_shared_memory_config(64)
        kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[known, 2])
        assert known.tolist() == [1, 1]  # made up
    assert any("the kernel twice" in said and "takes no time here" in said for said in world.assumptions.sentences())


def test_a_kernel_of_cupy_is_passed_over_and_its_arrays_are_refused():
    with phantom() as world:
        import cupy

        x = torch.ones(64, device="cuda")
        kernel = cupy.RawKernel('extern "C" __global__ void twice(float* x, int n) {}', "twice")
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        kernel((1,), (64,), (x.data_ptr(), cupy.int32(64)), stream=stream)
        with pytest.raises(NeedsGpuError, match=r"cupy\.zeros"):
            cupy.zeros(3)
    assert any("the kernel twice" in said for said in world.assumptions.sentences())
