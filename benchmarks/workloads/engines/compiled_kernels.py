"""Kernels that NVRTC compiles: a root mean square norm and a gated unit, forward and backward, within a language model."""

import torch
import torch.nn.functional as F
from torch import nn

SOURCE = r"""
extern "C" __global__ void rms(const float* x, const float* w, float* y, float* scale, int width) {
  __shared__ float part[256];
  const long row = blockIdx.x;
  float sum = 0.f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) { float v = x[row * width + i]; sum += v * v; }
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  const float r = rsqrtf(part[0] / width + 1e-6f);
  if (threadIdx.x == 0) scale[row] = r;
  for (int i = threadIdx.x; i < width; i += blockDim.x) y[row * width + i] = x[row * width + i] * r * w[i];
}
"""
GATE = r"""
extern "C" __global__ void gate(const float* a, const float* b, const float* d, float* da, float* db, long n) {
  const long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float s = 1.f / (1.f + expf(-a[i]));
  const float v = a[i] * s;
  da[i] = d[i] * b[i] * (s + v * (1.f - s));
  db[i] = d[i] * v;
}
"""
rms_kernel = torch.cuda._compile_kernel(SOURCE, "rms")
gate_kernel = torch.cuda._compile_kernel(GATE, "gate")


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        rows, width = x.numel() // x.shape[-1], x.shape[-1]
        y, scale = torch.empty_like(x), x.new_empty(rows)
        rms_kernel((rows, 1, 1), (256, 1, 1), (x, weight, y, scale, width))
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        scaled = x * scale.view(*x.shape[:-1], 1)
        inner = grad * weight
        grad_x = (inner - scaled * (inner * scaled).mean(-1, keepdim=True)) * scale.view(*x.shape[:-1], 1)
        return grad_x, (grad * scaled).flatten(0, -2).sum(0)


class Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return F.silu(a) * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a, grad_b = torch.empty_like(a), torch.empty_like(b)
        grad = grad.contiguous()
        gate_kernel(((a.numel() + 255) // 256, 1, 1), (256, 1, 1), (a, b, grad, grad_a, grad_b, a.numel()))
        return grad_a, grad_b


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norms = nn.ParameterList([torch.ones(dim), torch.ones(dim)])
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.gate, self.down = (
            nn.Linear(*shape, bias=False) for shape in ((dim, 4 * dim), (dim, 4 * dim), (4 * dim, dim))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in self.qkv(RMSNorm.apply(x, self.norms[0])).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        hidden = RMSNorm.apply(x, self.norms[1])
        return x + self.down(Gated.apply(self.gate(hidden), self.up(hidden)))


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(20_000, 768), *(Block(768) for _ in range(8)), nn.Linear(768, 20_000)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for step, length in enumerate((512, 1024, 700, 1024, 256)):
    tokens = torch.randint(20_000, (8, length + 1)).cuda()
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
