"""Workloads in which a library chooses how much memory it takes: cuDNN, long prompts, communication hooks, CTC, solvers.

``CHOICES[name](device)`` returns a ``Run`` as in ``zoo.py``. They are part of ``more_zoo.py``: measured and predicted with
the rest. Needs torchaudio and GPyTorch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.workloads.zoo import Llama, LlamaArgs, Run, lm_batch

Mark = Callable[[str], None]
Build = Callable[[str], Run]


def trained(model: nn.Module, loss_of: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer, half: bool = False) -> Run:
    def step(mark: Mark) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            loss = loss_of()
        mark("forward")
        loss.backward()
        del loss
        mark("backward")
        optimizer.step()
        mark("step")
        optimizer.zero_grad(set_to_none=True)

    return Run(model, optimizer, step)


# -- convolutions over time and space ------------------------------------------------------------------------------------------


def around(inputs: int, outputs: int, stride: int, split: bool) -> nn.Module:
    """A convolution of 3 x 3 x 3, or one over space followed by one over time."""
    if not split:
        return nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False)
    middle = inputs * outputs * 27 // (inputs * 9 + 3 * outputs)
    space = nn.Conv3d(inputs, middle, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
    time = nn.Conv3d(middle, outputs, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False)
    return nn.Sequential(space, nn.BatchNorm3d(middle), nn.ReLU(inplace=True), time)


class VideoBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, split: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(around(inputs, outputs, stride, split), nn.BatchNorm3d(outputs), nn.ReLU(inplace=True))
        self.second = nn.Sequential(around(outputs, outputs, 1, split), nn.BatchNorm3d(outputs))
        plain = stride == 1 and inputs == outputs
        self.skip = (
            nn.Identity() if plain else nn.Sequential(nn.Conv3d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm3d(outputs))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(self.first(x)) + self.skip(x), inplace=True)


def video(batch: int, frames: int, size: int, *, half: bool = False, split: bool = False, benchmark: bool = False) -> Build:
    """A residual net of 18 layers over clips."""

    def build(device: str) -> Run:
        torch.backends.cudnn.benchmark = benchmark
        widths = [64, 64, 128, 256, 512]
        blocks = [
            VideoBlock(inputs if number == 0 else outputs, outputs, 2 if number == 0 and outputs > 64 else 1, split)
            for inputs, outputs in itertools.pairwise(widths)
            for number in range(2)
        ]
        stem = [nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(64), nn.ReLU(inplace=True)]
        model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400)).to(device)
        clips = torch.randn(batch, 3, frames, size, size, device=device)
        labels = torch.randint(0, 400, (batch,), device=device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return trained(model, lambda: F.cross_entropy(model(clips), labels), optimizer, half)

    return build


def image_net(kind: str, batch: int, size: int, *, half: bool = False, channels_last: bool = False) -> Build:
    """A net of transformers for images, with ``cudnn.benchmark``."""

    def build(device: str) -> Run:
        import transformers

        torch.backends.cudnn.benchmark = True
        config = getattr(transformers, f"{kind}Config")(num_labels=10)
        model = getattr(transformers, f"{kind}ForImageClassification")(config).to(device).train()
        images = torch.randn(batch, 3, size, size, device=device)
        if channels_last:
            model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
        labels = torch.randint(0, 10, (batch,), device=device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return trained(model, lambda: model(pixel_values=images, labels=labels).loss, optimizer, half)

    return build


# -- speech --------------------------------------------------------------------------------------------------------------------


def wav2vec2(kind: str, batch: int, samples: int, half: bool = False) -> Build:
    def build(device: str) -> Run:
        import torchaudio

        make = getattr(torchaudio.models, kind)
        model = make(aux_num_out=32).to(device).train()
        waves = torch.randn(batch, samples, device=device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        return trained(model, lambda: model(waves)[0].float().square().mean(), optimizer, half)

    return build


class Recognizer(nn.Module):
    """Features to classes of letters: a Conformer or an LSTM, and a linear layer."""

    def __init__(self, kind: str, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.lift = nn.Linear(80, width)
        if kind == "conformer":
            import torchaudio

            self.body: nn.Module = torchaudio.models.Conformer(width, 4, 4 * width, layers, 31)
        else:
            self.body = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, features: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.lift(features)
        hidden = self.body(x)[0] if isinstance(self.body, nn.LSTM) else self.body(x, lengths)[0]
        out: torch.Tensor = self.head(hidden)
        return out


def speech(
    kind: str, batch: int, frames: int, letters: int, *, classes: int = 1000, half: bool = False, equal: bool = False
) -> Build:
    def build(device: str) -> Run:
        model = Recognizer(kind, 256, 6, classes).to(device).train()
        features = torch.randn(batch, frames, 80, device=device)
        lengths = torch.full((batch,), frames) if equal else torch.linspace(frames // 2, frames, batch).long()
        targets = torch.randint(1, classes, (batch, letters), device=device)
        counts = torch.full((batch,), letters)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def loss() -> torch.Tensor:
            scores = model(features, lengths.to(device)).float().log_softmax(-1).transpose(0, 1)
            return F.ctc_loss(scores, targets, lengths.to(device), counts.to(device))

        return trained(model, loss, optimizer, half)

    return build


# -- long prompts --------------------------------------------------------------------------------------------------------------


def prefill(length: int, batch: int = 1, layers: int = 8, kind: str = "Llama", **config: Any) -> Build:
    """The forward pass over a prompt, with keys and values kept; three prompts, one after the other."""

    def build(device: str) -> Run:
        import transformers

        sizes = {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "vocab_size": 32000,
        }
        settings = getattr(transformers, f"{kind}Config")(**sizes | config, num_hidden_layers=layers, max_position_embeddings=65536)
        with torch.device(device):
            model = getattr(transformers, f"{kind}ForCausalLM")(settings).to(torch.bfloat16).eval()
        tokens = torch.randint(3, 1000, (batch, length), device=device)

        @torch.no_grad()
        def step(mark: Mark) -> None:
            out = model(tokens, use_cache=True, logits_to_keep=1)
            mark("forward")
            out.logits.argmax(-1)

        return Run(model, torch.optim.SGD(model.parameters(), lr=0.1), step)

    return build


# -- communication hooks, Gaussian processes -----------------------------------------------------------------------------------


def hooked(hook: str, *, static: bool, views: bool = False, half: bool = False, batch: int = 4) -> Build:
    """DDP with a hook that compresses gradients before they are summed."""

    def build(device: str) -> Run:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        args = LlamaArgs(layers=4, seq=1024)
        with torch.device(device):
            inner = Llama(args)
        model = nn.parallel.DistributedDataParallel(inner, static_graph=static, gradient_as_bucket_view=views)
        if hook:
            model.register_comm_hook(None, getattr(default_hooks, hook))
        tokens, labels = lm_batch(args, batch, device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        return trained(model, lambda: F.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten()), optimizer, half)

    return build


def gaussian(points: int, features: int, matern: bool) -> Build:
    """An exact Gaussian process: the marginal likelihood of all points."""

    def build(device: str) -> Run:
        import gpytorch

        class Exact(gpytorch.models.ExactGP):
            def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
                super().__init__(x, y, likelihood)
                self.mean_module = gpytorch.means.ConstantMean()
                kernel = gpytorch.kernels.MaternKernel(nu=2.5) if matern else gpytorch.kernels.RBFKernel(ard_num_dims=features)
                self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

            def forward(self, x: torch.Tensor) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        x = torch.randn(points, features, device=device)
        y = x.sin().sum(-1)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
        model = Exact(x, y, likelihood).to(device)
        model.train()
        likelihood.train()
        score = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        return trained(model, lambda: -score(model(x), y), optimizer)

    return build


CHOICES: dict[str, Build] = {
    "video": video(8, 16, 112),
    "video_amp": video(8, 16, 112, half=True),
    "video_split": video(8, 16, 112, split=True),
    "video_split_amp": video(4, 8, 160, split=True, half=True),
    "video_benchmark": video(4, 16, 112, benchmark=True),
    "resnet_benchmark": image_net("ResNet", 32, 224),
    "resnet_benchmark_amp": image_net("ResNet", 64, 224, half=True),
    "resnet_benchmark_last": image_net("ResNet", 32, 192, half=True, channels_last=True),
    "regnet_benchmark": image_net("RegNet", 32, 224),
    "convnext_benchmark": image_net("ConvNext", 16, 224, half=True),
    "wav2vec2_base": wav2vec2("wav2vec2_base", 4, 80000),
    "wav2vec2_base_amp": wav2vec2("wav2vec2_base", 8, 48000, half=True),
    "hubert_base": wav2vec2("hubert_base", 4, 64000),
    "conformer_ctc": speech("conformer", 8, 800, 60),
    "conformer_ctc_amp": speech("conformer", 16, 500, 100, half=True),
    "lstm_ctc": speech("lstm", 16, 600, 80, classes=64),
    "lstm_ctc_equal": speech("lstm", 8, 1000, 200, classes=5000, equal=True),
    "prefill_32k": prefill(32768),
    "prefill_16k_batch": prefill(16384, 2, 6),
    "prefill_neox": prefill(24576, kind="GPTNeoX", num_key_value_heads=16),
    "prefill_qwen": prefill(20000, kind="Qwen2", layers=6),
    "ddp_bf16_static": hooked("bf16_compress_hook", static=True),
    "ddp_bf16_plain": hooked("bf16_compress_hook", static=False, half=True),
    "ddp_fp16_views": hooked("fp16_compress_hook", static=True, views=True),
    "ddp_static": hooked("", static=True, half=True),
    "ddp_allreduce_static": hooked("allreduce_hook", static=True),
    "gaussian_matern": gaussian(6000, 8, matern=True),
    "gaussian_rbf": gaussian(9000, 4, matern=False),
    "gaussian_small": gaussian(700, 4, matern=False),
}  # fmt: skip
