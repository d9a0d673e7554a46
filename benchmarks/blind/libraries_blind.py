"""How far off are detectors, jagged batches with attention, code with torch.distributions, and kernels that scripts bring along?

Each row is three training steps of a model that torchvision or torch itself has, with data that are made up. How many regions of a
detector are kept and which level of the pyramid they are cut from only data can tell: memfit takes its defaults.
The row that begins with ``l_`` was measured by others (``truth/h200_engines.json``).

    python benchmarks/blind/libraries_blind.py --predict [ROW ...]     needs torchvision
    python benchmarks/blind/libraries_blind.py --measure [ROW ...]     on an H200
    python benchmarks/blind/libraries_blind.py --compare
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from functools import partial

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.blind.two_sides import BENCHMARKS, Sides, main, measured_steps, predicted_steps, read

STEPS = 3
KNOWN = read(BENCHMARKS / "truth" / "h200_engines.json")
Step = Callable[[], None]


def training(
    model: nn.Module, loss_of: Callable[[], torch.Tensor], optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW
) -> Step:
    made = optimizer([param for param in model.parameters() if param.requires_grad], lr=1e-4)

    def step() -> None:
        loss_of().backward()
        made.step()
        made.zero_grad()

    return step


# -- detectors -----------------------------------------------------------------------------------------------------------------


def detector(kind: str, batch: int, side: int, num_objects: int = 8, amp: bool = False) -> Step:
    import torchvision

    draw = torch.Generator().manual_seed(0)
    classes = {} if "keypoint" in kind else {"num_classes": 91}
    model = getattr(torchvision.models.detection, kind)(weights=None, weights_backbone=None, **classes).cuda().train()
    images = [torch.rand(3, side, side, generator=draw).cuda() for _ in range(batch)]
    corner = torch.rand(num_objects, 2, generator=draw) * side / 2
    boxes = torch.cat([corner, corner + 20 + torch.rand(num_objects, 2, generator=draw) * side / 3], 1)
    target = {"boxes": boxes, "labels": torch.randint(1, 91, (num_objects,), generator=draw)}
    if "mask" in kind:
        target["masks"] = (torch.rand(num_objects, side, side, generator=draw) > 0.5).to(torch.uint8)
    if "keypoint" in kind:
        points = boxes[:, None, :2].expand(num_objects, 17, 2) + 5
        target |= {
            "labels": torch.ones(num_objects, dtype=torch.int64),
            "keypoints": torch.cat([points, torch.ones(num_objects, 17, 1)], 2),
        }
    targets = [{name: value.cuda() for name, value in target.items()} for _ in range(batch)]

    def loss_of() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            return sum(model(images, targets).values())

    return training(model, loss_of, partial(torch.optim.SGD, momentum=0.9))


# -- jagged batches ------------------------------------------------------------------------------------------------------------


class JaggedBlock(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(x)))


def jagged(lengths: list[int], dim: int = 1024, num_heads: int = 16, num_layers: int = 6) -> Step:
    model = nn.Sequential(*(JaggedBlock(dim, num_heads) for _ in range(num_layers))).cuda().bfloat16()
    sequences = [torch.randn(length, dim, dtype=torch.bfloat16) for length in lengths]

    def loss_of() -> torch.Tensor:
        batch = torch.nested.nested_tensor(sequences, layout=torch.jagged, device="cuda")
        return model(batch).values().float().pow(2).mean()

    return training(model, loss_of)


# -- distributions -------------------------------------------------------------------------------------------------------------


def autoencoder(batch: int = 4096, dim: int = 1024, latent: int = 256) -> Step:
    from torch.distributions import Bernoulli, Normal, kl_divergence

    encoder = nn.Sequential(nn.Linear(784, dim), nn.ReLU(), nn.Linear(dim, 2 * latent)).cuda()
    decoder = nn.Sequential(nn.Linear(latent, dim), nn.ReLU(), nn.Linear(dim, 784)).cuda()
    images = (torch.rand(batch, 784) > 0.5).float().cuda()

    def loss_of() -> torch.Tensor:
        mean, spread = encoder(images).chunk(2, -1)
        posterior = Normal(mean, F.softplus(spread) + 1e-3)
        likelihood = Bernoulli(logits=decoder(posterior.rsample())).log_prob(images).sum(-1)
        return (kl_divergence(posterior, Normal(0.0, 1.0)).sum(-1) - likelihood).mean()

    return training(nn.ModuleList([encoder, decoder]), loss_of)


# -- kernels that scripts bring ------------------------------------------------------------------------------------------------

SQUARE = """
#include <torch/extension.h>
__global__ void square_kernel(const float* x, float* out, long n, float by) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = by * x[i] * x[i];
}
torch::Tensor square(torch::Tensor x, double by) {
  TORCH_CHECK(x.is_cuda(), "x must be on the GPU");
  auto dense = x.contiguous();
  auto out = torch::empty_like(dense);
  const int64_t n = dense.numel();
  const int threads = 256;
  square_kernel<<<(n + threads - 1) / threads, threads>>>(dense.data_ptr<float>(), out.data_ptr<float>(), n, (float)by);
  return out;
}
std::vector<torch::Tensor> halves(torch::Tensor x) {
  const int64_t rows = x.size(0);
  const int64_t columns = x.size(1) / 2;
  auto scratch = torch::zeros({rows, 2 * columns}, x.options().dtype(torch::kFloat64));
  torch::Tensor low = torch::empty({rows, columns}, x.options());
  torch::Tensor high = torch::empty({rows, columns}, x.options());
  return {low, high};
}
"""


def extension(rows: int = 16384, dim: int = 2048) -> Step:
    """``load_inline``: its C++ makes the tensors that it returns, and one that it does not."""
    from torch.utils.cpp_extension import load_inline

    declared = "torch::Tensor square(torch::Tensor x, double by); std::vector<torch::Tensor> halves(torch::Tensor x);"
    made = load_inline("memfit_square", declared, SQUARE, functions=["square", "halves"])

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            halves = made.halves(x)
            squared = made.square(x, 0.5)
            del halves
            return squared

        @staticmethod
        def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
            return grad * ctx.saved_tensors[0]

    model = nn.Sequential(nn.Linear(dim, dim), nn.Linear(dim, dim)).cuda()
    x = torch.randn(rows, dim).cuda()
    return training(model, lambda: model[1](Square.apply(model[0](x))).pow(2).mean())


SCALE = """
extern "C" __global__ void scale(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 0.5f * x[i];
}
"""


def scaling(launch: Callable[[torch.Tensor, torch.Tensor], None], rows: int, dim: int) -> Step:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            launch(x, out)
            return out

        @staticmethod
        def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
            out, dense = torch.empty_like(grad), grad.contiguous()
            launch(dense, out)
            return out

    model = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)).cuda()
    x = torch.randn(rows, dim).cuda()
    return training(model, lambda: Scale.apply(model(x)).pow(2).mean())


def nvrtc() -> Step:
    kernel = torch.cuda._compile_kernel(SCALE, "scale")
    blocks = (256, 1, 1)
    return scaling(lambda x, out: kernel((-(-x.numel() // 256), 1, 1), blocks, (x, out, x.numel())), 8192, 1024)


def cupys() -> Step:
    import cupy

    kernel = cupy.RawKernel(SCALE, "scale")

    def launch(x: torch.Tensor, out: torch.Tensor) -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((-(-x.numel() // 256),), (256,), (x.data_ptr(), out.data_ptr(), cupy.int32(x.numel())))

    return scaling(launch, 12000, 1500)


ROWS: dict[str, Callable[[], Step]] = {
    "l_tv_frcnn": partial(detector, "fasterrcnn_resnet50_fpn", 4, 640),
    "faster_rcnn_2x800": partial(detector, "fasterrcnn_resnet50_fpn", 2, 800),
    "faster_rcnn_v2_4x512": partial(detector, "fasterrcnn_resnet50_fpn_v2", 4, 512),
    "faster_rcnn_amp_8x640": partial(detector, "fasterrcnn_resnet50_fpn", 8, 640, amp=True),
    "mask_rcnn_4x640": partial(detector, "maskrcnn_resnet50_fpn", 4, 640),
    "mask_rcnn_2x800_20_objects": partial(detector, "maskrcnn_resnet50_fpn", 2, 800, num_objects=20),
    "retinanet_4x640": partial(detector, "retinanet_resnet50_fpn", 4, 640),
    "jagged_4": partial(jagged, [1000, 370, 2048, 1500]),
    "jagged_64": partial(jagged, [64 + 17 * number for number in range(64)]),
    "jagged_wide_heads": partial(jagged, [512, 4096, 2048], num_heads=8),
    "autoencoder": autoencoder,
    "keypoint_rcnn_2x640": partial(detector, "keypointrcnn_resnet50_fpn", 2, 640),
    "keypoint_rcnn_4x512_3_objects": partial(detector, "keypointrcnn_resnet50_fpn", 4, 512, num_objects=3),
    "mask_rcnn_v2_2x512_30_objects": partial(detector, "maskrcnn_resnet50_fpn_v2", 2, 512, num_objects=30),
    "mask_rcnn_amp_6x400_5_objects": partial(detector, "maskrcnn_resnet50_fpn", 6, 400, num_objects=5, amp=True),
    "load_inline": extension,
    "compile_kernel": nvrtc,
    "cupy_raw_kernel": cupys,
}


def predict(name: str) -> dict:
    return predicted_steps(ROWS[name], STEPS)


def measure(name: str, trace: pathlib.Path | None) -> dict:
    return measured_steps(ROWS[name], STEPS, trace and trace / f"{name}.gz")


SIDES = Sides(
    script=pathlib.Path(__file__),
    cases=tuple(ROWS),
    place=lambda name: (name, "0 of 1"),
    predict=predict,
    measure=measure,
    choose=lambda names: names or list(ROWS),
    measured_before=KNOWN.get,
    heading=(
        "Detectors of torchvision, jagged batches, torch.distributions and kernels that scripts bring, predicted without a GPU "
        "before anything was measured, "
        "then run on an H200: `python benchmarks/blind/libraries_blind.py`. MiB.",
    ),
    footing=(
        "",
        "\\* measured by others, and known when it was predicted.",
        "",
        "`mask_rcnn_4x640` and `mask_rcnn_2x800_20_objects` were predicted with the share of objects that the sampler aims at. "
        "With the objects themselves, as of a network without loaded weights (afterwards, not blind), the predictions are 5,932.8 "
        "(-0.01%) and 3,245.3 MiB (-0.08%). The four rows of Mask and Keypoint R-CNN below them were predicted so before they were "
        "measured. Keypoint R-CNN draws the size of its images at random, and the prediction had another seed; "
        "with the same one (afterwards) `keypoint_rcnn_2x640` is 2,959 MiB (0.0%) and 4,068 reserved (+2.3%).",
    ),
    limit_s=600,
)


if __name__ == "__main__":
    main(SIDES, __doc__.splitlines()[0])
