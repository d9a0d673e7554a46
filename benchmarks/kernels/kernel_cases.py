"""Single operators, modules and optimizer steps whose memory is measured one by one: ``CASES[name]()`` makes one on ``cuda``.

A case is a line: a function and its inputs, each written as ``type[shape]``:

    f32[4,1024]       random, needs a gradient          i64[4,128]<1000   integers below 1000
    bf16[4,1024]!     random, needs none                bool[4,128]       about half of it set
    f32[8,3,64,64]cl  with channels last                i64[4,128]=i      0, 1, 2, ... in order
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "bool": torch.bool,
    "c64": torch.complex64,
}
HALVES = ("f16", "bf16")


@dataclass
class Work:
    """One case, ready to run: ``forward()``, then gradients of its result by ``leaves``."""

    forward: Callable[[], Any]
    leaves: list[torch.Tensor] = field(default_factory=list)


CASES: dict[str, Callable[[], Work]] = {}


def tensor(spec: str) -> torch.Tensor:
    kind, shape, rest = re.fullmatch(r"(\w+)\[([\d,]*)\](.*)", spec).groups()
    dtype, sizes = DTYPES[kind], [int(size) for size in shape.split(",") if size]
    if rest.startswith("<"):
        return torch.randint(0, int(rest[1:]), sizes, device="cuda", dtype=dtype)
    if rest == "=i":
        return torch.arange(torch.Size(sizes).numel(), device="cuda", dtype=dtype).view(sizes)
    if dtype == torch.bool:
        return torch.rand(sizes, device="cuda") > 0.5
    made = torch.randn(sizes, device="cuda", dtype=dtype)
    if "cl" in rest:
        made = made.to(memory_format=torch.channels_last if len(sizes) == 4 else torch.channels_last_3d)
    return made if "!" in rest else made.requires_grad_()


def op(name: str, function: Callable[..., Any], *specs: str) -> None:
    """A function of tensors."""

    def make() -> Work:
        inputs = [tensor(spec) for spec in specs]
        return Work(lambda: function(*inputs), [x for x in inputs if x.requires_grad])

    add(f"{name} {' '.join(specs)}", make)


def module(name: str, factory: Callable[[], nn.Module], *specs: str, autocast: Any = None, dtype: Any = None) -> None:
    """A module, with its parameters in the type of the first input unless told."""

    def make() -> Work:
        inputs = [tensor(spec) for spec in specs]
        layer = factory().to("cuda", dtype or DTYPES[specs[0].partition("[")[0]])
        if "cl" in specs[0]:
            layer = layer.to(memory_format=torch.channels_last)

        def forward() -> Any:
            with torch.autocast("cuda", dtype=autocast) if autocast else nullcontext():
                return layer(*inputs)

        return Work(forward, [x for x in (*inputs, *layer.parameters()) if x.requires_grad])

    note = f" autocast {str(autocast)[6:]}" if autocast else f" in {str(dtype)[6:]}" if dtype else ""
    add(f"{name} {' '.join(specs)}{note}", make)


def stepping(name: str, make_optimizer: Callable[[list[torch.Tensor]], Any], dtype: str = "f32") -> None:
    """One step of an optimizer over parameters of several sizes, gradients set."""

    def make() -> Work:
        sizes = ([4096, 1024], [1024, 1024], [1024], [3, 7], [50000, 64])
        params = [nn.Parameter(torch.randn(size, device="cuda", dtype=DTYPES[dtype])) for size in sizes]
        for param in params:
            param.grad = torch.randn_like(param)
        optimizer = make_optimizer(params)
        return Work(lambda: optimizer.step())

    add(f"optimizer {name} {dtype}", make)


def add(name: str, make: Callable[[], Work]) -> None:
    assert name not in CASES, name
    CASES[name] = make


# -- attention -----------------------------------------------------------------------------------------------------------------

BACKENDS: dict[str, SDPBackend | None] = {
    "default": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def attention(
    backend: str,
    dtype: str,
    batch: int = 2,
    heads: int = 16,
    length: int = 1024,
    dim: int = 64,
    *,
    keys: int | None = None,
    kv_heads: int | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    mask: str | None = None,
    layout: str = "blhd",
) -> None:
    """``layout``: how the inputs lie in memory; ``blhd`` is what a projection leaves, ``qkv`` one projection for all three."""
    keys, kv_heads = keys or length, kv_heads or heads

    def made(num: int, of: int) -> torch.Tensor:
        if layout == "bhld":
            return torch.randn(batch, of, num, dim, device="cuda", dtype=DTYPES[dtype], requires_grad=True)
        return torch.randn(batch, num, of, dim, device="cuda", dtype=DTYPES[dtype], requires_grad=True)

    def make() -> Work:
        if layout == "qkv":
            leaves = [torch.randn(batch, length, 3, heads, dim, device="cuda", dtype=DTYPES[dtype], requires_grad=True)]
            inputs = [x.transpose(1, 2) for x in leaves[0].unbind(2)]
        else:
            leaves = [made(length, heads), made(keys, kv_heads), made(keys, kv_heads)]
            inputs = [x if layout == "bhld" else x.transpose(1, 2) for x in leaves]
        bias = tensor(mask) if mask else None

        def forward() -> torch.Tensor:
            with sdpa_kernel(BACKENDS[backend]) if BACKENDS[backend] else nullcontext():
                return F.scaled_dot_product_attention(
                    *inputs, attn_mask=bias, dropout_p=dropout, is_causal=causal, enable_gqa=kv_heads != heads
                )

        return Work(forward, leaves)

    words = [f"{batch}x{heads}x{length}x{dim}", layout]
    words += [f"keys {keys}"] * (keys != length) + [f"kv {kv_heads}"] * (kv_heads != heads) + ["causal"] * causal
    words += [f"dropout {dropout}"] * bool(dropout) + [f"mask {mask}"] * bool(mask)
    add(f"sdpa {backend} {dtype} {' '.join(words)}", make)


def add_attention() -> None:
    for dtype in ("bf16", "f16", "f32"):
        for backend in BACKENDS:
            if dtype != "f32" or backend in ("default", "math"):
                attention(backend, dtype, causal=True)
    for dim in (32, 40, 72, 80, 96, 112, 128, 160, 192, 256):
        attention("default", "bf16", 2, 8, 512, dim, causal=True)
        attention("flash", "bf16", 2, 8, 512, dim, causal=True)
        attention("efficient", "bf16", 2, 8, 512, dim)
        attention("default", "f32", 2, 8, 512, dim)
    for length in (1, 77, 128, 197, 577, 1000, 1023, 2048):
        attention("default", "bf16", 4, 12, length)
        attention("flash", "bf16", 4, 12, length)
        attention("default", "f32", 4, 12, length)
    for backend in ("default", "flash", "efficient"):
        attention(backend, "bf16", 2, 8, 1024, 64, keys=77)
        attention(backend, "bf16", 2, 8, 512, 64, layout="bhld")
        attention(backend, "bf16", 2, 8, 512, 64, layout="qkv")
        attention(backend, "bf16", 2, 8, 512, 64, dropout=0.1)
    attention("default", "f32", 2, 8, 1024, 64, keys=77)
    attention("default", "f32", 2, 8, 512, 64, layout="qkv")
    attention("default", "f32", 2, 8, 512, 64, layout="bhld")
    attention("default", "f32", 2, 8, 512, 64, dropout=0.1)
    attention("math", "bf16", 2, 8, 512, 64, dropout=0.1)
    for backend in ("default", "flash", "math"):
        attention(backend, "bf16", 2, 16, 512, 64, kv_heads=4, causal=True)
        attention(backend, "bf16", 2, 32, 1024, 128, kv_heads=8, causal=True)
    attention("default", "f32", 2, 16, 512, 64, kv_heads=4, causal=True)
    for mask in (
        "bool[2,1,512,512]",
        "bool[2,1,1,512]",
        "bool[512,512]",
        "bf16[2,1,512,512]!",
        "bf16[2,8,512,512]",
        "bf16[1,8,512,512]!",
    ):
        attention("default", "bf16", 2, 8, 512, mask=mask)
        attention("efficient", "bf16", 2, 8, 512, mask=mask)
    for mask in ("bool[2,1,500,500]", "bf16[2,1,500,500]!"):
        attention("default", "bf16", 2, 8, 500, mask=mask)
        attention("efficient", "bf16", 2, 8, 500, mask=mask)
    for mask in ("bool[2,1,512,512]", "f32[2,1,512,512]!", "f32[2,8,512,512]", "bool[512,512]"):
        attention("default", "f32", 2, 8, 512, mask=mask)
    attention("default", "bf16", 1, 64, 4096, 128, kv_heads=8, causal=True)
    attention("default", "bf16", 16, 12, 512, 64)
    attention("default", "bf16", 1, 4, 8192, 128, causal=True)
    attention("flash", "bf16", 1, 2, 2048, 64)


# -- recurrent -----------------------------------------------------------------------------------------------------------------


def add_recurrent() -> None:
    for cell in (nn.LSTM, nn.GRU, nn.RNN):
        name = cell.__name__
        for steps, batch, width, hidden, layers, both in (
            (128, 32, 256, 512, 1, False),
            (128, 32, 256, 512, 2, False),
            (128, 32, 256, 512, 2, True),
            (35, 20, 650, 650, 2, False),
            (512, 64, 1024, 1024, 1, False),
            (7, 3, 5, 11, 3, True),
        ):

            def factory(cell=cell, width=width, hidden=hidden, layers=layers, both=both) -> nn.Module:
                return cell(width, hidden, layers, bidirectional=both)

            words = f"{name} layers {layers} hidden {hidden}" + " both ways" * both
            module(words, factory, f"f32[{steps},{batch},{width}]")
        half = f"{name} layers 2 hidden 512"
        module(half, lambda cell=cell: cell(256, 512, 2), "bf16[128,32,256]")
        module(half, lambda cell=cell: cell(256, 512, 2), "f16[128,32,256]")
        module(half, lambda cell=cell: cell(256, 512, 2), "f32[128,32,256]", autocast=torch.bfloat16)
        module(f"{half} dropout", lambda cell=cell: cell(256, 512, 2, dropout=0.2), "f32[128,32,256]")
        module(f"{half} batch first", lambda cell=cell: cell(256, 512, 2, batch_first=True), "f32[32,128,256]")
        module(f"{half} no bias", lambda cell=cell: cell(256, 512, 2, bias=False), "f32[128,32,256]")
    module("LSTM projection", lambda: nn.LSTM(256, 512, 2, proj_size=128), "f32[128,32,256]")
    module("LSTM eval", lambda: nn.LSTM(256, 512, 2).eval().requires_grad_(False), "f32[128,32,256]!")
    module("GRU eval", lambda: nn.GRU(256, 512, 2).eval().requires_grad_(False), "f32[128,32,256]!")
    module("LSTMCell", lambda: nn.LSTMCell(256, 512), "f32[64,256]")
    module("GRUCell", lambda: nn.GRUCell(256, 512), "f32[64,256]")

    def packed() -> Work:
        layer = nn.LSTM(256, 512, 2).cuda()
        x = torch.randn(128, 32, 256, device="cuda", requires_grad=True)
        lengths = torch.arange(128, 96, -1)
        return Work(lambda: layer(nn.utils.rnn.pack_padded_sequence(x, lengths))[0].data, [x, *layer.parameters()])

    add("LSTM packed f32[128,32,256]", packed)


# -- convolutions --------------------------------------------------------------------------------------------------------------


def add_convolutions() -> None:
    shapes = (
        # batch, channels in, out, height, kernel, stride, padding, groups
        (32, 3, 64, 224, 7, 2, 3, 1),
        (32, 64, 64, 56, 3, 1, 1, 1),
        (32, 64, 256, 56, 1, 1, 0, 1),
        (32, 256, 64, 56, 1, 1, 0, 1),
        (32, 128, 128, 28, 3, 1, 1, 1),
        (32, 256, 512, 56, 1, 2, 0, 1),
        (32, 256, 256, 28, 3, 2, 1, 1),
        (32, 512, 512, 7, 3, 1, 1, 1),
        (32, 2048, 512, 7, 1, 1, 0, 1),
        (4, 320, 320, 64, 3, 1, 1, 1),
        (4, 640, 640, 32, 3, 1, 1, 1),
        (4, 1280, 640, 32, 3, 1, 1, 1),
        (4, 4, 320, 64, 3, 1, 1, 1),
        (4, 320, 4, 64, 3, 1, 1, 1),
        (8, 3, 32, 128, 3, 1, 1, 1),
        (32, 3, 768, 224, 16, 16, 0, 1),
        (32, 3, 96, 224, 4, 4, 0, 1),
        (32, 96, 192, 56, 2, 2, 0, 1),
        (32, 96, 96, 56, 7, 1, 3, 96),
        (32, 192, 192, 28, 3, 1, 1, 192),
        (32, 128, 128, 56, 3, 1, 1, 4),
        (2, 64, 64, 57, 3, 1, 1, 1),
        (16, 64, 128, 33, 5, 1, 2, 1),
    )
    for batch, inputs, outputs, size, kernel, stride, padding, groups in shapes:
        for dtype, layout in (("f32", ""), ("bf16", ""), ("f16", ""), ("f32", "cl"), ("bf16", "cl")):
            if dtype == "f16" and groups == 1 and kernel not in (3, 7):
                continue

            def factory(a=inputs, b=outputs, k=kernel, s=stride, p=padding, g=groups) -> nn.Module:
                return nn.Conv2d(a, b, k, s, p, groups=g, bias=a % 64 == 0)

            words = f"conv2d {outputs} kernel {kernel} stride {stride}" + f" groups {groups}" * (groups > 1)
            module(words, factory, f"{dtype}[{batch},{inputs},{size},{size}]{layout}")
    for dtype in ("f32", "bf16"):
        for batch, inputs, outputs, size, kernel, stride, groups in (
            (8, 1, 512, 16000, 10, 5, 1),
            (8, 512, 512, 3199, 3, 2, 1),
            (8, 512, 512, 799, 2, 2, 1),
            (8, 80, 384, 3000, 3, 1, 1),
            (8, 384, 384, 3000, 3, 2, 1),
            (8, 768, 768, 399, 128, 1, 16),
            (8, 256, 256, 1024, 1, 1, 1),
            (4, 1536, 1536, 512, 4, 1, 1536),
        ):

            def conv1d(a=inputs, b=outputs, k=kernel, s=stride, g=groups) -> nn.Module:
                return nn.Conv1d(a, b, k, s, padding=k // 2, groups=g)

            module(f"conv1d {outputs} kernel {kernel} stride {stride} groups {groups}", conv1d, f"{dtype}[{batch},{inputs},{size}]")
        for kernel, stride, outputs in ((2, 2, 64), (4, 2, 64), (3, 2, 128)):
            module(
                f"transposed2d {outputs} kernel {kernel} stride {stride}",
                lambda k=kernel, s=stride, o=outputs: nn.ConvTranspose2d(128, o, k, s),
                f"{dtype}[8,128,32,32]",
            )
        module("conv3d kernel 3", lambda: nn.Conv3d(32, 64, 3, padding=1), f"{dtype}[2,32,16,32,32]")
        module("conv3d patches", lambda: nn.Conv3d(3, 768, (2, 16, 16), (2, 16, 16)), f"{dtype}[2,3,16,224,224]")
    module("conv2d dilated", lambda: nn.Conv2d(64, 64, 3, padding=2, dilation=2), "f32[8,64,64,64]")
    module("conv2d 64 kernel 3 stride 1", lambda: nn.Conv2d(64, 64, 3, padding=1), "f32[8,64,56,56]", autocast=torch.bfloat16)
    module("conv2d eval", lambda: nn.Conv2d(64, 64, 3, padding=1).requires_grad_(False), "f32[32,64,56,56]!")


# -- norms, losses, activations ------------------------------------------------------------------------------------------------


def add_norms() -> None:
    for spec in (
        "f32[32,64,56,56]",
        "bf16[32,64,56,56]",
        "f16[32,64,56,56]",
        "f32[32,64,56,56]cl",
        "f16[32,64,56,56]cl",
        "bf16[32,64,56,56]cl",
    ):
        module("batch norm", lambda: nn.BatchNorm2d(64), spec)
        module("group norm 32", lambda: nn.GroupNorm(32, 64), spec)
        module("batch norm eval", lambda: nn.BatchNorm2d(64).eval(), spec)
        module("instance norm", lambda: nn.InstanceNorm2d(64, affine=True), spec)
    for spec in ("f16[32,64,56,56]", "bf16[32,64,56,56]", "bf16[32,64,56,56]cl", "f16[32,64,56,56]cl"):
        module("batch norm", lambda: nn.BatchNorm2d(64), spec, dtype=torch.float32)
    module("batch norm 1d", lambda: nn.BatchNorm1d(512), "f32[256,512]")
    module("batch norm 1d", lambda: nn.BatchNorm1d(512), "f32[32,512,100]")
    module("batch norm 3d", lambda: nn.BatchNorm3d(32), "f32[2,32,16,32,32]")
    module("group norm 32", lambda: nn.GroupNorm(32, 320), "f32[4,320,64,64]")
    module("group norm 32", lambda: nn.GroupNorm(32, 320), "bf16[4,320,64,64]")
    module("group norm 8", lambda: nn.GroupNorm(8, 512), "f32[4,512,1000]")
    module("group norm all", lambda: nn.GroupNorm(512, 512), "f32[8,512,3199]")
    for shape, width in (
        ("16,512,768", 768),
        ("4,2048,4096", 4096),
        ("131072,64", 64),
        ("100352,96", 96),
        ("256,197,192", 192),
        ("3,7,50", 50),
    ):
        for dtype in ("f32", "bf16"):
            module("layer norm", lambda width=width: nn.LayerNorm(width), f"{dtype}[{shape}]")
            module("rms norm", lambda width=width: nn.RMSNorm(width), f"{dtype}[{shape}]")
    module("layer norm no bias", lambda: nn.LayerNorm(768, bias=False), "f32[16,512,768]")
    module("layer norm", lambda: nn.LayerNorm(768), "f32[16,512,768]", autocast=torch.bfloat16)
    module("layer norm plain", lambda: nn.LayerNorm(768, elementwise_affine=False), "f32[16,512,768]")


def add_losses() -> None:
    for dtype in ("f32", "bf16", "f16"):
        op("softmax", lambda x: F.softmax(x, -1), f"{dtype}[16,512,1000]")
        op("softmax dim 1", lambda x: F.softmax(x, 1), f"{dtype}[16,512,1000]")
        op("softmax to float32", lambda x: F.softmax(x, -1, dtype=torch.float32), f"{dtype}[16,512,1000]")
        op("log_softmax", lambda x: F.log_softmax(x, -1), f"{dtype}[2048,32000]")
        op("cross_entropy", lambda x, y: F.cross_entropy(x, y), f"{dtype}[2048,32000]", "i64[2048]<32000")
        op("gelu", lambda x: F.gelu(x), f"{dtype}[16,512,3072]")
        op("dropout", lambda x: F.dropout(x, 0.1), f"{dtype}[16,512,768]")
        op("silu", lambda x: F.silu(x), f"{dtype}[16,512,3072]")
    rows = ("f32[2048,32000]", "i64[2048]<32000")
    op("cross_entropy smoothed", lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), *rows)
    op("cross_entropy sum", lambda x, y: F.cross_entropy(x, y, reduction="sum"), *rows)
    op("cross_entropy none", lambda x, y: F.cross_entropy(x, y, reduction="none"), *rows)
    op("cross_entropy weighted", lambda x, y, w: F.cross_entropy(x, y, weight=w), *rows, "f32[32000]!")
    op("cross_entropy probabilities", lambda x, y: F.cross_entropy(x, y), "f32[2048,1000]", "f32[2048,1000]!")
    op("cross_entropy images", lambda x, y: F.cross_entropy(x, y), "f32[4,21,128,128]", "i64[4,128,128]<21")
    op("cross_entropy small", lambda x, y: F.cross_entropy(x, y), "f32[32,10]", "i64[32]<10")
    op("nll_loss", lambda x, y: F.nll_loss(x, y), *rows)
    op("mse_loss", lambda x, y: F.mse_loss(x, y), "f32[16,4,64,64]", "f32[16,4,64,64]!")
    op("l1_loss", lambda x, y: F.l1_loss(x, y), "f32[16,4,64,64]", "f32[16,4,64,64]!")
    op("smooth_l1", lambda x, y: F.smooth_l1_loss(x, y), "f32[1000,400]", "f32[1000,400]!")
    op("bce logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y), "f32[1000,400]", "f32[1000,400]!")
    op("kl_div", lambda x, y: F.kl_div(x, y, reduction="batchmean"), "f32[1000,400]", "f32[1000,400]!")
    op("cosine_similarity", lambda x, y: F.cosine_similarity(x, y), "f32[4096,768]", "f32[4096,768]")
    op("normalize", lambda x: F.normalize(x, dim=-1), "f32[4096,768]")
    op("cdist", lambda x, y: torch.cdist(x, y), "f32[1000,64]", "f32[900,64]")
    op("logsumexp", lambda x: torch.logsumexp(x, -1), "f32[2048,32000]")
    op("glu", lambda x: F.glu(x, -1), "f32[16,512,1024]")
    op("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), "bf16[16,512,3072]")
    op("prelu", lambda x, w: F.prelu(x, w), "f32[32,64,56,56]", "f32[64]")
    op("relu", lambda x: F.relu(x), "f32[16,512,768]")
    op("leaky_relu", lambda x: F.leaky_relu(x), "f32[16,512,768]")
    op("softplus", lambda x: F.softplus(x), "f32[16,512,768]")

    def ctc() -> Work:
        x = torch.randn(200, 16, 40, device="cuda", requires_grad=True)
        targets = torch.randint(1, 40, (16, 30), device="cuda")
        lengths, target_lengths = torch.full((16,), 200), torch.full((16,), 30)
        return Work(lambda: F.ctc_loss(x.log_softmax(-1), targets, lengths, target_lengths), [x])

    add("ctc_loss f32[200,16,40]", ctc)


def add_reductions() -> None:
    for dtype in ("f32", "bf16"):
        op("sum all", lambda x: x.sum(), f"{dtype}[16,512,768]")
        op("sum last", lambda x: x.sum(-1), f"{dtype}[16,512,768]")
        op("sum first two", lambda x: x.sum((0, 1)), f"{dtype}[16,512,768]")
        op("sum first two", lambda x: x.sum((0, 1)), f"{dtype}[4,2048,1000]")
        op("sum first", lambda x: x.sum(0), f"{dtype}[8192,3072]")
        op("mean last", lambda x: x.mean(-1), f"{dtype}[4,2048,4096]")
        op("mean all", lambda x: x.mean(), f"{dtype}[100,100]")
        op("mean all", lambda x: x.mean(), f"{dtype}[4,2048,4096]")
        op("norm all", lambda x: x.norm(), f"{dtype}[4096,4096]")
        op("max last", lambda x: x.max(-1).values, f"{dtype}[16,512,768]")
        op("amax all", lambda x: x.amax(), f"{dtype}[16,512,768]")
        op("sum images", lambda x: x.sum((0, 2, 3)), f"{dtype}[32,64,56,56]")
        op("mean images", lambda x: x.mean((2, 3)), f"{dtype}[32,2048,7,7]")
    op("sum all narrow", lambda x: x.sum(), "f32[5000]")
    op("sum to float32", lambda x: x.sum(dtype=torch.float32), "bf16[16,512,768]")
    op("sum integers", lambda x: x.sum(), "i64[16,512]<9")
    op("sum mask", lambda x: x.sum(), "bool[16,512]")
    op("sum mask last", lambda x: x.sum(-1), "bool[16,512]")
    op("sum mask large", lambda x: x.sum(), "bool[4096,4096]")
    op("argmax", lambda x: x.argmax(-1), "f32[2048,32000]!")
    op("argmax all", lambda x: x.argmax(), "f32[2048,32000]!")
    op("max all", lambda x: x.max(), "f32[2048,3200]!")
    op("any", lambda x: x.any(), "bool[4096,4096]")
    op("all last", lambda x: x.all(-1), "bool[64,4096]")
    op("std", lambda x: x.std(-1), "f32[16,512,768]")
    op("var all", lambda x: x.var(), "f32[16,512,768]")
    op("prod", lambda x: x.prod(-1), "f32[100,50]")
    op("sum bias", lambda x: x.sum(0, keepdim=True), "bf16[16384,4096]!")
    op("sum bias", lambda x: x.sum(0, keepdim=True), "bf16[16384,50]!")
    op("sum bias", lambda x: x.sum(0, keepdim=True), "bf16[2048,151936]!")
    op("count_nonzero", lambda x: x.count_nonzero(), "f32[1000,1000]!")


# -- indices -------------------------------------------------------------------------------------------------------------------


def add_indices() -> None:
    for dtype in ("f32", "bf16"):
        for count, rows, width in (
            ("8,64", 1000, 64),
            ("3,1024", 32000, 768),
            ("4,1024", 32000, 768),
            ("4,1024", 100, 768),
            ("16,512", 2, 768),
            ("16,512", 512, 768),
            ("16,512", 30522, 768),
            ("4,2048", 151936, 1024),
            ("1,65536", 1000, 64),
        ):
            op(f"embedding {rows}", lambda x, w: F.embedding(x, w), f"i64[{count}]<{rows}", f"{dtype}[{rows},{width}]")
    index, weight = "i64[16,512]<30522", "f32[30522,768]"
    op("embedding few values", lambda x, w: F.embedding(x, w), "i64[16,512]<1000", weight)
    op("embedding positions", lambda x, w: F.embedding(x, w), "i64[1,4096]=i", "f32[8192,768]")
    op("embedding padding", lambda x, w: F.embedding(x, w, padding_idx=0), index, weight)
    op("embedding scaled", lambda x, w: F.embedding(x, w, scale_grad_by_freq=True), index, weight)
    op("embedding sparse", lambda x, w: F.embedding(x, w, sparse=True), index, weight)
    op("embedding int32", lambda x, w: F.embedding(x, w), "i32[16,512]<30522", weight)
    for mode in ("sum", "mean", "max"):
        op(f"embedding_bag {mode}", lambda x, w, mode=mode: F.embedding_bag(x, w, mode=mode), "i64[4096,8]<10000", "f32[10000,64]")
    for spec in (
        "f32[10000]!",
        "f32[1000000]!",
        "f32[1024,1000]!",
        "f32[64,10000]!",
        "f32[8,4096]!",
        "f32[8,5000]!",
        "f32[2000,6000]!",
        "i64[1000000]<999",
        "bf16[64,10000]!",
        "f32[4096,128]",
        "i64[32768]<8",
        "i32[32768]<8",
        "bool[32768]",
    ):
        op("sort", lambda x: x.sort(-1), spec)
        op("argsort", lambda x: x.argsort(-1), spec)
    op("sort stable", lambda x: x.sort(dim=-1, stable=True), "f32[1000000]!")
    op("sort dim 0", lambda x: x.sort(0), "f32[10000,64]!")
    op("sort descending", lambda x: x.sort(-1, descending=True), "f32[64,10000]!")
    for k, spec in (
        (2, "f32[8192,8]"),
        (8, "f32[4096,128]"),
        (50, "f32[1024,32000]!"),
        (10, "f32[4,1000000]!"),
        (2000, "f32[8,100000]!"),
        (300, "f32[8,8400]"),
        (6, "bf16[8192,64]"),
    ):
        op(f"topk {k}", lambda x, k=k: x.topk(k, -1), spec)
    op("topk unsorted", lambda x: x.topk(8, -1, sorted=False), "f32[4096,128]")
    for spec in ("i64[10000]<100", "i64[1000000]<1000"):
        op("unique", lambda x: x.unique(), spec)
        op("unique inverse", lambda x: x.unique(return_inverse=True, return_counts=True), spec)
        op("unique_consecutive", lambda x: x.unique_consecutive(), spec)
        op("bincount", lambda x: x.bincount(minlength=1000), spec)
    op("unique dim", lambda x: x.unique(dim=0), "i64[1000,8]<3")
    for spec in ("bool[10000]", "bool[1000000]", "bool[64,512]", "f32[1000000]!"):
        op("nonzero", lambda x: x.nonzero(), spec)
    op("where one", lambda x: torch.where(x), "bool[64,512]")
    op("masked_select", lambda x, m: x.masked_select(m), "f32[1000000]", "bool[1000000]")
    op("index by mask", lambda x, m: x[m], "f32[8192,768]", "bool[8192]")
    op("masked_fill", lambda x, m: x.masked_fill(m, 0.0), "f32[8192,768]", "bool[8192,768]")
    op("masked_scatter", lambda x, m, y: x.masked_scatter(m, y), "f32[8192,768]", "bool[8192,768]", "f32[8192,768]")
    for spec in ("f32[1000000]", "f32[1024,1000]", "f32[1000,1024]", "i64[1000000]<9", "i64[16,512]<9", "bool[16,512]"):
        op("cumsum", lambda x: x.cumsum(-1), spec)
    op("cumsum dim 0", lambda x: x.cumsum(0), "f32[8192,64]")
    op("cumprod", lambda x: x.cumprod(-1), "f32[1024,1000]")
    op("cummax", lambda x: x.cummax(-1), "f32[1024,1000]!")
    op("logcumsumexp", lambda x: x.logcumsumexp(-1), "f32[1024,1000]")
    op("multinomial", lambda x: x.softmax(-1).multinomial(4), "f32[64,32000]!")
    op("multinomial replaced", lambda x: x.softmax(-1).multinomial(4, replacement=True), "f32[64,32000]!")
    op("randperm", lambda x: torch.randperm(len(x), device="cuda"), "f32[1000000]!")
    op("randperm", lambda x: torch.randperm(len(x), device="cuda"), "f32[10000]!")
    op("histc", lambda x: x.histc(100), "f32[1000000]!")
    op("searchsorted", lambda x, y: torch.searchsorted(x.sort().values, y), "f32[1000]!", "f32[100000]!")
    for width in (1, 64, 768):
        op("index rows", lambda x, i: x[i], f"f32[8192,{width}]", "i64[4096]<8192")
    op("index rows", lambda x, i: x[i], "bf16[8192,768]", "i64[4096]<8192")
    op("index pairs", lambda x, i, j: x[i, j], "f32[64,512,768]", "i64[64]<64", "i64[64]<512")
    op("index columns", lambda x, i: x[:, i], "f32[64,512,768]", "i64[100]<512")
    op("index large", lambda x, i: x[i], "f32[529,12]", "i64[2401]<529")
    op("index_select", lambda x, i: x.index_select(0, i), "f32[8192,768]", "i64[4096]<8192")
    op("index_add", lambda x, i, y: x.index_add(0, i, y), "f32[8192,768]", "i64[4096]<8192", "f32[4096,768]")
    op("index_add", lambda x, i, y: x.index_add(0, i, y), "bf16[8192,768]", "i64[4096]<8192", "bf16[4096,768]")
    op("index_copy", lambda x, i, y: x.index_copy(0, i, y), "f32[8192,768]", "i64[4096]<8192", "f32[4096,768]")
    op("index_put", lambda x, i, y: x.index_put((i,), y), "f32[8192,768]", "i64[4096]<8192", "f32[4096,768]")
    op(
        "index_put accumulate",
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        "f32[8192,768]",
        "i64[4096]<8192",
        "f32[4096,768]",
    )
    op("scatter_add", lambda x, i, y: x.scatter_add(0, i, y), "f32[8192,768]", "i64[4096,768]<8192", "f32[4096,768]")
    op("scatter", lambda x, i, y: x.scatter(0, i, y), "f32[8192,768]", "i64[4096,768]<8192", "f32[4096,768]")
    op("scatter_reduce", lambda x, i, y: x.scatter_reduce(0, i, y, "mean"), "f32[8192,768]", "i64[4096,768]<8192", "f32[4096,768]")
    op("gather", lambda x, i: x.gather(1, i), "f32[2048,32000]", "i64[2048,1]<32000")
    op("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), "f32[2048,3200]", "i64[2048,4]<3200")
    op("where", lambda m, x, y: torch.where(m, x, y), "bool[8192,768]", "f32[8192,768]", "f32[8192,768]")
    op("one_hot", lambda x: F.one_hot(x, 128), "i64[4096,8]<128")
    op("repeat_interleave", lambda x: x.repeat_interleave(4, 1), "bf16[2,4,512,64]")
    op("repeat_interleave counts", lambda x, n: x.repeat_interleave(n, 0), "f32[1000,64]", "i64[1000]<4")
    op("roll", lambda x: x.roll((3, 3), (1, 2)), "f32[32,56,56,96]")
    op("flip", lambda x: x.flip(1), "f32[32,512,96]")
    op("tril", lambda x: x.tril(), "f32[1024,1024]")
    op("cat", lambda x, y: torch.cat((x, y), -1), "f32[16,512,768]", "f32[16,512,768]")
    op("stack", lambda x, y: torch.stack((x, y), -1), "f32[16,512,768]", "f32[16,512,768]")
    op("pad", lambda x: F.pad(x, (0, 1, 2, 3)), "f32[16,512,768]")
    op("pad reflect", lambda x: F.pad(x, (1, 1, 2, 2), mode="reflect"), "f32[16,3,64,64]")
    op("unfold", lambda x: F.unfold(x, 3, padding=1), "f32[8,16,64,64]")


# -- images --------------------------------------------------------------------------------------------------------------------


def add_images() -> None:
    for spec in ("f32[8,64,32,32]", "bf16[8,64,32,32]", "f32[8,64,32,32]cl"):
        for mode in ("nearest", "bilinear", "bicubic", "area"):
            op(f"interpolate {mode}", lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode), spec)
        op("interpolate smooth", lambda x: F.interpolate(x, size=(20, 20), mode="bilinear", antialias=True), spec)
        op("max_pool", lambda x: F.max_pool2d(x, 3, 2, 1), spec)
        op("avg_pool", lambda x: F.avg_pool2d(x, 2), spec)
        op("adaptive_avg_pool 1", lambda x: F.adaptive_avg_pool2d(x, 1), spec)
        op("adaptive_avg_pool 7", lambda x: F.adaptive_avg_pool2d(x, 7), spec)
        op("adaptive_max_pool 7", lambda x: F.adaptive_max_pool2d(x, 7), spec)
        op("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), spec)
    op("interpolate linear", lambda x: F.interpolate(x, scale_factor=2, mode="linear"), "f32[8,64,512]")
    op("interpolate trilinear", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), "f32[2,16,8,16,16]")
    op("avg_pool1d", lambda x: F.avg_pool1d(x, 2), "f32[8,64,512]")
    op("max_pool1d", lambda x: F.max_pool1d(x, 2), "f32[8,64,512]")
    op("max_pool3d", lambda x: F.max_pool3d(x, 2), "f32[2,16,8,16,16]")
    op("grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=False), "f32[8,64,32,32]", "f32[8,16,16,2]")
    op("affine_grid", lambda t: F.affine_grid(t, (8, 3, 64, 64), align_corners=False), "f32[8,2,3]")


# -- matrices ------------------------------------------------------------------------------------------------------------------


def add_matrices() -> None:
    for dtype in ("f32", "bf16", "f16"):
        op("linear bias", F.linear, f"{dtype}[16,512,768]", f"{dtype}[3072,768]", f"{dtype}[3072]")
        op("linear", F.linear, f"{dtype}[16,512,768]", f"{dtype}[3072,768]")
        op("linear one output", F.linear, f"{dtype}[4096,768]", f"{dtype}[1,768]", f"{dtype}[1]")
        op("bmm", torch.bmm, f"{dtype}[64,128,256]", f"{dtype}[64,256,128]")
        op("matmul 4d", torch.matmul, f"{dtype}[8,12,256,64]", f"{dtype}[8,12,64,256]")
        op("matmul broadcast", torch.matmul, f"{dtype}[8,12,256,64]", f"{dtype}[64,256]")
        op("einsum bhid", lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k), f"{dtype}[8,12,256,64]", f"{dtype}[8,12,256,64]")
        op("einsum bnd", lambda x, w: torch.einsum("bnd,dhk->bhnk", x, w), f"{dtype}[8,256,768]", f"{dtype}[768,12,64]")
        op("matmul transposed", lambda x, y: x.transpose(1, 2) @ y, f"{dtype}[8,256,64]", f"{dtype}[8,256,128]")
        op("matmul strided", lambda x, y: x[..., ::2] @ y, f"{dtype}[8,256,128]", f"{dtype}[8,64,128]")
        op("mv", torch.mv, f"{dtype}[4096,768]", f"{dtype}[768]")
        op("outer", torch.outer, f"{dtype}[4096]", f"{dtype}[768]")
        op("addmm", torch.addmm, f"{dtype}[4096,768]", f"{dtype}[4096,256]", f"{dtype}[256,768]")
        op("baddbmm", torch.baddbmm, f"{dtype}[64,128,128]", f"{dtype}[64,128,256]", f"{dtype}[64,256,128]")
        op(
            "addmm gelu",
            lambda b, x, w: torch._addmm_activation(b, x, w, use_gelu=True),
            f"{dtype}[3072]!",
            f"{dtype}[4096,768]!",
            f"{dtype}[768,3072]!",
        )
        module("bilinear", lambda: nn.Bilinear(64, 64, 32), f"{dtype}[256,64]", f"{dtype}[256,64]")
    op("dot", torch.dot, "f32[100000]", "f32[100000]")
    op("grouped_mm", lambda x, w, o: torch._grouped_mm(x, w, offs=o), "bf16[4096,512]", "bf16[8,512,1024]", "i32[8]=i")
    op("matmul integers", lambda x, y: x.double() @ y.double(), "i64[100,100]<9", "i64[100,100]<9")
    for count, size in ((1, 512), (16, 64), (1, 64)):
        spec = f"f32[{count},{size},{size}]"
        op("cholesky", lambda x: torch.linalg.cholesky(x @ x.mT + 100 * torch.eye(x.shape[-1], device="cuda")), spec)
        op("inverse", lambda x: torch.linalg.inv(x), spec)
        op("solve", lambda x, y: torch.linalg.solve(x, y), spec, f"f32[{count},{size},4]")
        op("qr", lambda x: torch.linalg.qr(x)[0], spec)
        op("svd", lambda x: torch.linalg.svdvals(x), spec)
        op("eigh", lambda x: torch.linalg.eigvalsh(x + x.mT), spec)
        op("det", lambda x: torch.linalg.det(x), spec)
    for spec in ("f32[64,4096]", "f32[8,3,64,64]", "f32[64,1000]"):
        op("rfft", lambda x: torch.fft.rfft(x), spec)
        op("rfft2", lambda x: torch.fft.irfft2(torch.fft.rfft2(x)), spec)
    op(
        "stft",
        lambda x: torch.stft(x, 400, 160, window=torch.hann_window(400, device="cuda"), return_complex=True),
        "f32[8,16000]!",
    )


# -- optimizers ----------------------------------------------------------------------------------------------------------------


def add_optimizers() -> None:
    optim = torch.optim
    for dtype in ("f32", "bf16"):
        stepping("AdamW", lambda p: optim.AdamW(p, lr=1e-4), dtype)
        stepping("AdamW fused", lambda p: optim.AdamW(p, lr=1e-4, fused=True), dtype)
        stepping("AdamW loop", lambda p: optim.AdamW(p, lr=1e-4, foreach=False), dtype)
        stepping("SGD momentum", lambda p: optim.SGD(p, lr=1e-4, momentum=0.9), dtype)
        stepping("Adafactor", lambda p: optim.Adafactor(p, lr=1e-4), dtype)
    stepping("AdamW amsgrad", lambda p: optim.AdamW(p, lr=1e-4, amsgrad=True))
    stepping("AdamW capturable", lambda p: optim.AdamW(p, lr=1e-4, capturable=True))
    stepping("AdamW maximize", lambda p: optim.AdamW(p, lr=1e-4, maximize=True))
    stepping("Adam decayed", lambda p: optim.Adam(p, lr=1e-4, weight_decay=0.1))
    stepping("SGD", lambda p: optim.SGD(p, lr=1e-4))
    stepping("SGD decayed", lambda p: optim.SGD(p, lr=1e-4, weight_decay=0.1, momentum=0.9, nesterov=True))
    stepping("SGD fused", lambda p: optim.SGD(p, lr=1e-4, momentum=0.9, fused=True))
    stepping("Adafactor loop", lambda p: optim.Adafactor(p, lr=1e-4, foreach=False))
    for kind in (optim.RMSprop, optim.Adagrad, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adadelta, optim.ASGD, optim.Rprop):
        stepping(kind.__name__, lambda p, kind=kind: kind(p, lr=1e-4))
    stepping("Adagrad fused", lambda p: optim.Adagrad(p, lr=1e-4, fused=True))
    stepping("Muon", lambda p: optim.Muon([x for x in p if x.dim() == 2], lr=1e-4))

    def with_gradients(act: Callable[[list[torch.Tensor]], Any], dtype: str, count: int = 40) -> Callable[[], Work]:
        def make() -> Work:
            params = [nn.Parameter(torch.randn(1024, 64 * (1 + i % 7), device="cuda", dtype=DTYPES[dtype])) for i in range(count)]
            for param in params:
                param.grad = torch.randn_like(param)
            return Work(lambda: act(params))

        return make

    for dtype in ("f32", "bf16"):
        for count in (1, 40, 300):
            add(f"clip_grad_norm {dtype} {count}", with_gradients(lambda p: nn.utils.clip_grad_norm_(p, 1.0), dtype, count))
        add(f"clip_grad_norm loop {dtype}", with_gradients(lambda p: nn.utils.clip_grad_norm_(p, 1.0, foreach=False), dtype))
        add(f"clip_grad_value {dtype}", with_gradients(lambda p: nn.utils.clip_grad_value_(p, 1.0), dtype))
        add(f"foreach_norm {dtype}", with_gradients(lambda p: torch._foreach_norm([x.grad for x in p]), dtype))
        add(f"foreach_norm inf {dtype}", with_gradients(lambda p: torch._foreach_norm([x.grad for x in p], float("inf")), dtype))
        add(f"foreach_add {dtype}", with_gradients(lambda p: torch._foreach_add([x.grad for x in p], 1.0), dtype))
        add(
            f"foreach_mul scalar tensor {dtype}",
            with_gradients(lambda p: torch._foreach_mul_([x.grad for x in p], p[0].grad.sum()), dtype),
        )

    def scaled(p: list[torch.Tensor]) -> None:
        scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.SGD(p, lr=1e-4)
        scaler.scale(torch.ones((), device="cuda"))
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    add("GradScaler f32", with_gradients(scaled, "f32"))


for add_some in (
    add_attention,
    add_recurrent,
    add_convolutions,
    add_norms,
    add_losses,
    add_reductions,
    add_indices,
    add_images,
    add_matrices,
    add_optimizers,
):
    add_some()
