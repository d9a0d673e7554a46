"""C++ and CUDA that a script compiles when it runs: what it allocates is read from its C++."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch.utils import cpp_extension

from memfit.errors import NeedsGpuError

SOURCE = """
#include <torch/extension.h>
__global__ void twice_kernel(const float* x, float* out, int n) { out[0] = x[0]; }

torch::Tensor twice(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be on the GPU");
  const int n = x.numel();   // elements
  auto out = torch::empty_like(x);
  const int threads = 256;
  dim3 blocks((n + threads - 1) / threads);
  twice_kernel<<<blocks, threads>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
  return out;
}

std::vector<torch::Tensor> pooled(const torch::Tensor& x, int64_t by) {
  auto rows = x.size(0), columns = x.size(1) / by;
  return {x, x};
}

std::tuple<torch::Tensor, torch::Tensor> split(torch::Tensor x, int64_t by) {
  int64_t rows = x.size(0);
  auto options = torch::TensorOptions().dtype(torch::kFloat16).device(x.device());
  torch::Tensor kept = torch::zeros({rows, x.size(1) / by}, options);
  torch::Tensor counts = torch::empty({rows}, x.options().dtype(at::kInt));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "split", ([&] { split_kernel<scalar_t><<<1, 1>>>(counts.data_ptr<int>()); }));
  return std::make_tuple(kept, counts);
}

torch::Tensor chosen(torch::Tensor x) {
  if (x.size(0) > 3) { return torch::empty({1}, x.options()); }
  return x;
}

void fill(torch::Tensor x, double value) { fill_kernel<<<1, 1>>>(x.data_ptr<float>(), value); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("doubled", &twice, "twice"); }
"""


def test_functions_allocate_and_return_what_their_source_says():
    with phantom() as world:
        extension = cpp_extension.load_inline("fast", "torch::Tensor twice(torch::Tensor x);", SOURCE, functions=["twice"])
        x = torch.ones(1024, 1024, device="cuda")
        out = extension.twice(x)
        assert (out.shape, out.dtype, out.is_cuda) == (x.shape, x.dtype, True)
        assert extension.doubled(x).shape == x.shape
        kept, counts = extension.split(x, 4)
        assert (kept.shape, kept.dtype, counts.shape, counts.dtype) == ((1024, 256), torch.float16, (1024,), torch.int32)
        assert extension.fill(x, 2.0) is None
    assert any("the CUDA extension fast was not compiled" in sentence for sentence in world.assumptions.sentences())


@pytest.mark.parametrize("function", ["chosen", "pooled", "softmax"])
def test_what_cannot_be_read_is_refused_by_name(function, tmp_path):
    (tmp_path / "kernel.cu").write_text(SOURCE)
    with phantom():
        extension = cpp_extension.load("fast", [str(tmp_path / "kernel.cu")])
        with pytest.raises(NeedsGpuError, match=f"{function} of the CUDA extension fast") as raised:
            getattr(extension, function)(torch.ones(3, 4, device="cuda"), *([2] if function == "pooled" else []))
        assert "register_fake" in raised.value.advice
