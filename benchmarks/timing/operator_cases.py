"""What ``operators_on_gpu.py`` times: ``CASES[family]`` is a list of functions that each make one case on the GPU, ready to be
called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from benchmarks.kernels.kernel_cases import tensor

Work = Callable[[], Any]
CASES: dict[str, list[Callable[[], Work]]] = {}
B16 = torch.bfloat16


def add(family: str, make: Callable[[], Work]) -> None:
    CASES.setdefault(family, []).append(make)


def op(family: str, function: Callable[..., Any], *specs: str) -> None:
    """A function of tensors (written as in kernel_cases.py), and the gradients of those that need one."""

    def make() -> Work:
        inputs = [tensor(spec) for spec in specs]
        leaves = [x for x in inputs if x.requires_grad]

        def work() -> None:
            out = function(*inputs)
            outs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.requires_grad] if leaves else []
            if outs:
                torch.autograd.grad(outs, leaves, [torch.ones_like(x) for x in outs], allow_unused=True)

        return work

    add(family, make)


# -- products ------------------------------------------------------------------------------------------------------------------

WIDTHS = (
    (768, 768), (768, 3072), (1024, 512), (1024, 1024), (1024, 2816), (1024, 32000), (2048, 1024), (2048, 2048), (2048, 5632),
    (4096, 1024), (4096, 4096), (4096, 14336), (5120, 13824), (8192, 8192), (8192, 28672),
)  # fmt: skip
for tokens in (64, 256, 1024, 2048, 4096, 8192, 16384):
    for k, n in WIDTHS:
        if tokens * k * n < 2**42:
            op("products", F.linear, f"bf16[{tokens},{k}]", f"bf16[{n},{k}]")
for tokens, k, n in (
    (6304, 768, 768), (6304, 768, 3072), (6304, 3072, 768), (4096, 1024, 50257), (4096, 1024, 50304), (4096, 4096, 128256),
    (2048, 1024, 151936), (32, 768, 10), (32, 768, 1000), (8192, 768, 30522), (4096, 16384, 53248), (1, 4096, 4096),
    (16, 4096, 4096), (32768, 4096, 4096), (1000, 1000, 1000), (3000, 3000, 3000), (131072, 256, 256), (65536, 64, 256),
):  # fmt: skip
    op("products", F.linear, f"bf16[{tokens},{k}]", f"bf16[{n},{k}]")
for tokens, k, n in ((2048, 768, 3072), (8192, 768, 768), (6304, 768, 768), (512, 1024, 1024), (8192, 4096, 4096)):
    op("products", F.linear, f"bf16[{tokens},{k}]", f"bf16[{n},{k}]", f"bf16[{n}]")
    op("products", F.linear, f"f32[{tokens},{k}]", f"f32[{n},{k}]", f"f32[{n}]")
for tokens, k, n in (
    (256, 1024, 1024), (2048, 1024, 1024), (8192, 1024, 512), (8192, 1024, 1024), (8192, 1024, 2816), (8192, 1024, 32000),
    (4096, 2048, 2048), (4096, 2048, 5632), (2048, 768, 3072), (8192, 768, 3072), (2048, 4096, 4096), (32, 2048, 10),
):  # fmt: skip
    op("products", F.linear, f"f32[{tokens},{k}]", f"f32[{n},{k}]")
for tokens, k, n in ((2048, 1024, 1024), (8192, 1024, 4096), (8192, 4096, 4096), (4096, 2048, 5632), (16384, 8192, 8192)):
    op("products", F.linear, f"f16[{tokens},{k}]", f"f16[{n},{k}]")
for batch, s, d in ((32, 1024, 128), (64, 2048, 64), (384, 197, 64), (192, 512, 64), (96, 512, 64), (16, 128, 64), (8, 4096, 128)):
    for kind in ("bf16", "f32"):
        op("products", torch.bmm, f"{kind}[{batch},{s},{d}]", f"{kind}[{batch},{d},{s}]")
        op("products", torch.bmm, f"{kind}[{batch},{s},{s}]", f"{kind}[{batch},{s},{d}]")
for experts, m, k, n in ((8, 512, 768, 2048), (16, 256, 768, 768), (8, 2048, 2048, 1408)):
    op("products", torch.bmm, f"bf16[{experts},{m},{k}]", f"bf16[{experts},{k},{n}]")


def tf32(tokens: int, k: int, n: int) -> None:
    def make() -> Work:
        a, b = tensor(f"f32[{tokens},{k}]!"), tensor(f"f32[{k},{n}]!")

        def work() -> None:
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.mm(a, b)
            torch.backends.cuda.matmul.allow_tf32 = False

        return work

    add("tf32", make)


def float8(tokens: int, k: int, n: int, by_row: bool) -> None:
    def make() -> Work:
        a = tensor(f"bf16[{tokens},{k}]!").to(torch.float8_e4m3fn)
        b = tensor(f"bf16[{n},{k}]!").to(torch.float8_e4m3fn).t()
        scales = (
            (torch.ones(tokens, 1, device="cuda"), torch.ones(1, n, device="cuda"))
            if by_row
            else (torch.ones((), device="cuda"),) * 2
        )
        return lambda: torch._scaled_mm(a, b, scale_a=scales[0], scale_b=scales[1], out_dtype=B16, use_fast_accum=True)

    add("float8", make)


for sizes in (
    (2048, 1024, 1024),
    (8192, 1024, 4096),
    (8192, 4096, 4096),
    (4096, 2048, 5632),
    (16384, 8192, 8192),
    (256, 4096, 4096),
):
    tf32(*sizes)
    float8(*sizes, by_row=False)
    float8(*sizes, by_row=True)

# -- attention -----------------------------------------------------------------------------------------------------------------

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "math": SDPBackend.MATH}  # fmt: skip


def attention(
    backend: str, b: int, h: int, s: int, d: int, causal: bool, kind: str = "bf16", mask: bool = False, kv: int = 0
) -> None:
    def make() -> Work:
        # Heads come out of a linear layer: batch, sequence, heads, head.
        q, k, v = (
            tensor(f"{kind}[{b},{s},{heads},{d}]").transpose(1, 2).detach().requires_grad_() for heads in (h, kv or h, kv or h)
        )
        bias = tensor(f"{kind}[{b},1,{s},{s}]!") if mask else None

        def work() -> None:
            with sdpa_kernel(BACKENDS[backend]):
                out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=bool(kv))
            torch.autograd.grad([out], [q, k, v], [torch.ones_like(out)])

        return work

    add("attention", make)


HEADS = (
    (4, 16, 2048, 64), (2, 16, 2048, 128), (1, 32, 8192, 128), (1, 32, 4096, 128), (16, 12, 512, 64), (32, 12, 197, 64),
    (4, 16, 1024, 64), (1, 64, 4096, 128), (1, 16, 16384, 128), (2, 8, 1024, 256), (2, 4, 128, 64), (64, 8, 64, 32),
    (8, 12, 577, 96),
)  # fmt: skip
for shape in HEADS:
    for backend in ("flash", "efficient", "cudnn"):
        for causal in (False, True):
            if not (backend == "cudnn" and shape[3] > 128):
                attention(backend, *shape, causal)
for shape in ((4, 16, 2048, 64), (2, 16, 2048, 128), (16, 12, 512, 64), (8, 8, 1024, 64)):
    attention("efficient", *shape, False, mask=True)
    attention("efficient", *shape, True, kind="f32")
attention("efficient", 8, 8, 512, 64, False, kind="f32", mask=True)
attention("math", 4, 8, 512, 64, True)
for backend in ("flash", "cudnn"):
    attention(backend, 1, 32, 4096, 128, True, kv=8)

# -- what memory bounds --------------------------------------------------------------------------------------------------------

for exponent in (10, 14, 16, 18, 20, 22, 24, 26, 28):
    for kind in ("f32", "bf16"):
        op("elementwise", torch.mul, f"{kind}[{2**exponent}]!", f"{kind}[{2**exponent}]!")
        op("elementwise", torch.clone, f"{kind}[{2**exponent}]!")
UNARY: tuple[Callable[..., Any], ...] = (
    torch.relu, F.silu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), torch.sigmoid, torch.tanh, torch.exp, torch.log,
    torch.sqrt, lambda x: x.pow(2), lambda x: x.pow(3), lambda x: x.pow(0.5), torch.rsqrt, lambda x: x * 2, lambda x: x + 1,
    lambda x: x / 3, torch.abs, F.dropout, F.softplus,
    F.leaky_relu, F.hardswish, torch.cos, torch.neg,
)  # fmt: skip
for function in UNARY:
    for kind in ("f32", "bf16"):
        for size in ("8192,512", "8192,8192"):
            op("elementwise", function, f"{kind}[{size}]")
for size in ("8192,512", "8192,8192"):
    op("elementwise", lambda x: x.to(B16), f"f32[{size}]")
    op("elementwise", lambda x: x.float(), f"bf16[{size}]")
    op("elementwise", lambda x, y: x * y, f"f32[{size}]", f"bf16[{size}]")
    op("elementwise", lambda x, y: x + y, f"bf16[{size}]", f"bf16[{size}]")
    op("elementwise", lambda x, y: x / y, f"f32[{size}]", f"f32[{size}]")
    op("elementwise", lambda x, m: x.masked_fill(m, 0.0), f"f32[{size}]", f"bool[{size}]")
    op("elementwise", lambda m, x, y: torch.where(m, x, y), f"bool[{size}]", f"f32[{size}]", f"f32[{size}]")
    op("elementwise", lambda x, y: x == y, f"i64[{size}]<9", f"i64[{size}]<9")
    op("elementwise", lambda x: x > 0, f"f32[{size}]!")
    op("elementwise", lambda x, y: x.add_(y), f"f32[{size}]!", f"f32[{size}]!")
    op("elementwise", lambda x, y: x.lerp_(y, 0.1), f"f32[{size}]!", f"f32[{size}]!")
    op("elementwise", lambda x, y: x.addcmul_(y, y, value=0.1), f"f32[{size}]!", f"f32[{size}]!")
    op("elementwise", lambda x: x.zero_(), f"f32[{size}]!")
    op("elementwise", lambda x: torch.randn_like(x), f"f32[{size}]!")
    op("elementwise", lambda x: torch.nan_to_num(x), f"f32[{size}]!")


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.transpose(1, 2).float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).type_as(x)


def rotate_half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    x = x.transpose(1, 2)
    half = x.shape[-1] // 2
    return x * cos.unsqueeze(1) + torch.cat((-x[..., half:], x[..., :half]), -1) * sin.unsqueeze(1)


for b, s, h, d in ((4, 2048, 16, 64), (2, 2048, 16, 128), (1, 8192, 32, 128), (8, 512, 12, 64)):
    for kind in ("bf16", "f32"):
        shape = f"{kind}[{b},{s},{h},{d}]"
        op("layouts", rotate, shape, f"f32[{s},{d // 2}]!", f"f32[{s},{d // 2}]!")
        op("layouts", rotate_half, shape, f"{kind}[1,{s},{d}]!", f"{kind}[1,{s},{d}]!")
        op("layouts", lambda x: x.transpose(1, 2).contiguous(), shape)
        op("layouts", lambda x: x.transpose(1, 2).repeat_interleave(2, 1), shape)
        op("layouts", lambda x: x[:, None].expand(x.shape[0], 4, *x.shape[1:]).reshape(-1, *x.shape[2:]), shape)
        op("layouts", lambda x: x.permute(0, 2, 3, 1).contiguous(), shape)
for rows, cols in ((8192, 1024), (8192, 4096), (4096, 8192), (512, 512)):
    for kind in ("bf16", "f32"):
        op("layouts", lambda x: x.t().contiguous(), f"{kind}[{rows},{cols}]")
        op("layouts", lambda x, w: x * w, f"{kind}[{rows},{cols}]", f"{kind}[{cols}]")
        op("layouts", lambda x, w: x + w, f"{kind}[{rows},{cols}]", f"{kind}[{cols}]")
        op("layouts", lambda x, w: x * w, f"{kind}[{rows},{cols}]", f"{kind}[{rows},1]")
        op("layouts", lambda x: x[:, : x.shape[1] // 2] * 2, f"{kind}[{rows},{cols}]")
        op("layouts", lambda x: [part * 2 for part in x.split(x.shape[1] // 4, 1)], f"{kind}[{rows},{cols}]")
        op("layouts", lambda x, y: torch.cat((x, y), 0), f"{kind}[{rows},{cols}]", f"{kind}[{rows},{cols}]")
        op("layouts", lambda x, y: torch.cat((x, y), 1), f"{kind}[{rows},{cols}]", f"{kind}[{rows},{cols}]")
        op("layouts", lambda x, y: torch.stack((x, y), 1), f"{kind}[{rows},{cols}]", f"{kind}[{rows},{cols}]")
        op("layouts", lambda x: x.roll(1, 0), f"{kind}[{rows},{cols}]")
        op("layouts", lambda x: F.pad(x, (1, 1)), f"{kind}[{rows},{cols}]")
        op("layouts", lambda x: x.tril(), f"{kind}[{rows},{cols}]")

REDUCTIONS: tuple[Callable[..., Any], ...] = (
    lambda x: x.sum(-1), lambda x: x.sum(0), lambda x: x.sum(), lambda x: x.mean(-1, keepdim=True), lambda x: x.amax(-1),
    lambda x: x.var(-1), torch.linalg.vector_norm, lambda x: x.softmax(-1), lambda x: x.log_softmax(-1), lambda x: x.cumsum(-1),
)  # fmt: skip
for rows, cols in ((8192, 1024), (8192, 4096), (4096, 32000), (65536, 64), (512, 768), (131072, 128)):
    for kind in ("bf16", "f32"):
        for function in REDUCTIONS:
            op("reductions", function, f"{kind}[{rows},{cols}]")
        op("reductions", lambda x: x.argmax(-1), f"{kind}[{rows},{cols}]!")
op("reductions", lambda x: x.softmax(-1), "bf16[16,16,1024,1024]")
op("reductions", lambda x: x.softmax(-1, dtype=torch.float32), "bf16[16,16,1024,1024]")
op("reductions", lambda x: x.log_softmax(-1), "f32[4096,128256]")
op("reductions", lambda x: x.log_softmax(-1), "f32[4096,50257]")
for rows, classes in ((8192, 32000), (4096, 128256), (32, 1000)):
    op("losses", F.cross_entropy, f"f32[{rows},{classes}]", f"i64[{rows}]<{classes}")
op("losses", F.mse_loss, "f32[32,4,64,64]", "f32[32,4,64,64]!")
op("losses", F.binary_cross_entropy_with_logits, "f32[8192,1024]", "f32[8192,1024]!")

for kind in ("bf16", "f32"):
    for rows, cols in ((8192, 768), (6304, 768), (8192, 1024), (4096, 2048), (4096, 4096), (16384, 8192), (512, 512)):
        shape, weight = f"{kind}[{rows},{cols}]", f"{kind}[{cols}]"
        op("norms", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), shape, weight, weight)
        op("norms", lambda x, w: F.rms_norm(x, x.shape[-1:], w), shape, weight)
    for shape in ("32,64,112,112", "32,256,56,56", "32,2048,7,7", "8,128,64,64"):
        channels = shape.split(",")[1]
        for layout in ("", "cl"):
            images, weight = f"{kind}[{shape}]{layout}", f"f32[{channels}]"
            op("norms", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), images, weight, weight)
            op("norms", lambda x, w, b: F.group_norm(x, 32, w.to(x.dtype), b.to(x.dtype)), images, weight, weight)

for rows, words, width in ((8192, 32000, 1024), (4096, 128256, 4096), (16384, 30522, 768), (64, 1000, 64)):
    for kind in ("bf16", "f32"):
        op("indexing", lambda i, w: F.embedding(i, w), f"i64[{rows}]<{words}", f"{kind}[{words},{width}]")
        op("indexing", lambda i, w: w[i], f"i64[{rows}]<{words}", f"{kind}[{words},{width}]")
        op("indexing", lambda i, w: w.index_select(0, i), f"i64[{rows}]<{words}", f"{kind}[{words},{width}]")
        op(
            "indexing",
            lambda i, w: torch.zeros_like(w).index_add(0, i, w[: len(i)]),
            f"i64[{rows}]=i",
            f"{kind}[{max(words, rows)},{width}]",
        )
op("indexing", lambda x: x.topk(2, -1), "f32[8192,64]")
op("indexing", lambda x: x.topk(50, -1), "f32[64,32000]")
op("indexing", lambda x: x.sort(-1), "f32[8192,1024]")
op("indexing", lambda x: x.sort(-1), "i64[65536]<16")
op("indexing", lambda x: x.argsort(), "i64[16384]<16")
op("indexing", lambda x, i: x.gather(1, i), "f32[8192,1024]", "i64[8192,128]<1024")
op("indexing", lambda x, i: torch.zeros_like(x).scatter(1, i, x), "f32[8192,1024]", "i64[8192,1024]<1024")
op("indexing", lambda m: m.nonzero(), "bool[8192,16]")
op("indexing", lambda x, m: x[m], "f32[8192,64]", "bool[8192]")
op("indexing", lambda i: F.one_hot(i, 16), "i64[8192]<16")

# -- convolution ---------------------------------------------------------------------------------------------------------------

CONVOLUTIONS = (
    # batch, channels in, size, channels out, kernel, stride, groups
    (32, 3, 224, 64, 7, 2, 1), (32, 64, 56, 64, 1, 1, 1), (32, 64, 56, 64, 3, 1, 1), (32, 64, 56, 256, 1, 1, 1),
    (32, 128, 28, 128, 3, 1, 1), (32, 256, 56, 128, 1, 1, 1), (32, 128, 56, 128, 3, 2, 1), (32, 256, 14, 256, 3, 1, 1),
    (32, 1024, 14, 256, 1, 1, 1), (32, 512, 7, 512, 3, 1, 1), (32, 512, 7, 2048, 1, 1, 1), (32, 3, 224, 768, 16, 16, 1),
    (32, 96, 56, 96, 7, 1, 96), (32, 384, 14, 384, 7, 1, 384), (32, 32, 112, 32, 3, 1, 32), (8, 320, 64, 320, 3, 1, 1),
    (8, 640, 32, 640, 3, 1, 1), (16, 128, 128, 128, 3, 1, 1), (128, 64, 32, 64, 3, 1, 1), (32, 192, 14, 192, 3, 1, 4),
)  # fmt: skip
for n, cin, size, cout, kernel, stride, groups in CONVOLUTIONS:
    for kind in ("f32", "bf16"):
        for layout in ("", "cl"):
            padding = kernel // 2 if kernel < 16 else 0
            op("convolution", lambda x, w, s=stride, p=padding, g=groups: F.conv2d(x, w, None, s, p, 1, g),
               f"{kind}[{n},{cin},{size},{size}]{layout}", f"{kind}[{cout},{cin // groups},{kernel},{kernel}]{layout}")  # fmt: skip
for kind in ("f32", "bf16"):
    op("convolution", lambda x: F.max_pool2d(x, 3, 2, 1), f"{kind}[32,64,112,112]")
    op("convolution", lambda x: F.adaptive_avg_pool2d(x, 1), f"{kind}[32,2048,7,7]")
    op("convolution", lambda x: F.avg_pool2d(x, 2), f"{kind}[32,64,112,112]")
    op("convolution", lambda x: F.interpolate(x, scale_factor=2), f"{kind}[8,320,32,32]")
    op("convolution", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), f"{kind}[8,320,32,32]")
    op("convolution", lambda x, w: F.conv1d(x, w, None, 2, 1), f"{kind}[4,512,9600]", f"{kind}[512,512,3]")

# -- optimizers ----------------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "adamw loop": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, fused=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-4),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-4, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-4),
}


def parameters(sizes: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.randn(size, device="cuda", dtype=dtype)) for size in sizes]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


LISTS = {
    "blocks": ((1024, 1024), (1024, 512), (1024,), (2816, 1024), (1024, 2816)) * 8 + ((32000, 1024),),
    "large": ((4096, 4096),) * 6,
    "shards": ((256, 2048), (128, 2048), (256,), (704, 2048), (256, 5632)) * 16,
    "small": ((64, 64), (64,)) * 60,
}


def optimizer(name: str, sizes: str, dtype: torch.dtype) -> None:
    def make() -> Work:
        made = parameters(LISTS[sizes], dtype)
        stepper = OPTIMIZERS[name](made)
        stepper.step()
        return stepper.step

    add("optimizers", make)


for name in OPTIMIZERS:
    for sizes in LISTS:
        if not ("loop" in name or name == "adafactor") or sizes in ("large", "small"):
            optimizer(name, sizes, torch.float32)
for sizes in ("blocks", "large"):
    optimizer("adamw", sizes, B16)
    optimizer("adamw fused", sizes, B16)


def clipping(sizes: str) -> None:
    def make() -> Work:
        made = parameters(LISTS[sizes])
        return lambda: nn.utils.clip_grad_norm_(made, 1.0)

    add("optimizers", make)


for sizes in LISTS:
    clipping(sizes)

# -- copies between host and device ----------------------------------------------------------------------------------------------


def copy(size_bytes: int, pinned: bool) -> None:
    def make() -> Work:
        host = torch.ones(size_bytes, dtype=torch.uint8, pin_memory=pinned)
        device = torch.ones(size_bytes, dtype=torch.uint8, device="cuda")

        def work() -> None:
            device.copy_(host, non_blocking=pinned)
            host.copy_(device, non_blocking=pinned)

        return work

    add("copies", make)


for exponent in (3, 10, 16, 20, 24, 28):
    for pinned in (False, True):
        copy(2**exponent, pinned)

# -- by access pattern: rows that are gathered, scattered with atomics, scanned, sorted; odd products; resized images -------------

for count, nodes, width in (
    (500_000, 50_000, 64), (500_000, 50_000, 256), (300_000, 30_000, 16), (1_000_000, 100_000, 1), (200_000, 20_000, 128),
    (4096, 1024, 512), (100_000, 1000, 96), (16_384, 256, 1024),
):  # fmt: skip
    for kind in ("f32", "bf16"):
        rows, source, table = f"i64[{count}]<{nodes}", f"{kind}[{count},{width}]", f"{kind}[{nodes},{width}]"
        op("scattered", lambda i, w: w.index_select(0, i), rows, table)
        op("scattered", lambda i, w: w[i], rows, table)
        op("scattered", lambda i, x, w: w.index_add(0, i, x), rows, source, table)
        op("scattered", lambda i, x, w: w.scatter_add(0, i[:, None].expand_as(x), x), rows, source, table)
        op("scattered", lambda i, w: F.embedding(i, w), rows, table)
        if kind == "f32":
            op("scattered", lambda i, x, w: w.gather(0, i[:, None].expand_as(x)), rows, source, table)
            op("scattered", lambda i, x, w: w.index_put((i,), x, accumulate=True), rows, source, table)
            op("scattered", lambda i, x, w: w.index_copy(0, i, x), rows, source + "!", table + "!")
            op("scattered", lambda i, x, w: w.index_put((i,), x), rows, source + "!", table + "!")
for count, nodes, width in ((300_000, 40_000, 128), (100_000, 10_000, 8), (500_000, 50_000, 1)):
    for how in ("amax", "mean"):
        op(
            "scattered",
            lambda i, x, w, how=how: w.scatter_reduce(0, i[:, None].expand_as(x), x, how, include_self=False),
            f"i64[{count}]<{nodes}", f"f32[{count},{width}]", f"f32[{nodes},{width}]!",
        )  # fmt: skip
    op("scattered", lambda i: torch.bincount(i, minlength=1000), f"i64[{count}]<{nodes}")
    op("scattered", lambda i: i.unique(), f"i64[{count}]<{nodes}")
    op("scattered", lambda i, x: x[i > 20], f"i64[{count}]<{nodes}", f"f32[{count},{width}]")
    op("scattered", lambda i, x: torch.where(i == 3), f"i64[{count}]<8", f"f32[{count},{width}]!")

for shape, dim in (
    ("4,1024,512,16", 1), ("8,96,1024,16", 1), ("64,4096", 1), ("4096,64", 0), ("16,512,768", 1), ("1000000", 0), ("2,2048,64", 2)
):  # fmt: skip
    op("scans", lambda x, dim=dim: x.cumsum(dim), f"f32[{shape}]")
    op("scans", lambda x, dim=dim: x.flip(dim), f"f32[{shape}]!")
    if "16" not in shape.split(",")[-1:]:
        op("scans", lambda x, dim=dim: x.cumprod(dim), f"f32[{shape}]!")
        op("scans", lambda x, dim=dim: x.logcumsumexp(dim), f"f32[{shape}]!")
for rows, cols in ((8, 20_000), (4096, 64), (64, 1024), (1, 1_000_000), (8192, 16), (2000, 2000)):
    op("sorts", lambda x: x.sort(-1), f"f32[{rows},{cols}]")
    op("sorts", lambda x: x.topk(min(8, x.shape[-1]), -1), f"f32[{rows},{cols}]!")
    op("sorts", lambda x: x.max(-1), f"f32[{rows},{cols}]")
    op("sorts", lambda x: x.softmax(-1).multinomial(1), f"f32[{rows},{min(cols, 50_000)}]!")
op("sorts", lambda x: x.sort(), "i64[300000]<40000")

for batch, m, k, n in (
    (4096, 16, 64, 16), (8192, 4, 4, 4), (1536, 49, 32, 49), (64, 197, 64, 197), (512, 64, 16, 64), (24, 1, 64, 200),
    (96, 8, 512, 8),
    (3072, 8, 32, 392), (32, 100, 100, 100), (16, 1, 512, 512),
):  # fmt: skip
    for kind in ("f32", "bf16"):
        op("odd products", torch.bmm, f"{kind}[{batch},{m},{k}]", f"{kind}[{batch},{k},{n}]")
for rows, cols in (
    (1024, 2816),
    (768, 2048),
    (768, 768),
    (512, 1408),
    (1024, 1024),
    (1000, 3000),
    (2048, 2048),
    (512, 512),
    (256, 1024),
):
    op("odd products", lambda x: x @ x.T, f"bf16[{rows},{cols}]!")
    op("odd products", lambda x, y: x @ y, f"bf16[{rows},{rows}]!", f"bf16[{rows},{cols}]!")
    op("odd products", lambda x, y: x @ y, f"f32[{rows},{rows}]!", f"f32[{rows},{cols}]!")
for tokens, k, n in (
    (4, 512, 1408), (8, 768, 3072), (8, 768, 20000), (4, 512, 8000), (1, 1024, 4096), (32, 512, 512), (300, 768, 3072),
    (130, 1024, 2048),
    (50_000, 256, 16), (100_000, 128, 256), (100_000, 256, 16), (200_000, 128, 64), (8192, 35, 512), (65_536, 96, 384),
    (16_384, 384, 96),
):  # fmt: skip
    for kind in ("f32", "bf16"):
        op("odd products", F.linear, f"{kind}[{tokens},{k}]", f"{kind}[{n},{k}]", f"{kind}[{n}]")

DILATED = (
    # batch, channels in, size, channels out, kernel, dilation, groups
    (4, 2048, 48, 256, 3, 12, 1), (4, 2048, 48, 256, 3, 36, 1), (4, 512, 48, 512, 3, 2, 1), (4, 512, 48, 512, 3, 4, 1),
    (8, 960, 24, 256, 3, 12, 1), (4, 256, 48, 256, 3, 1, 1), (8, 960, 24, 960, 5, 2, 960), (4, 1280, 48, 256, 1, 1, 1),
)  # fmt: skip
for n, cin, size, cout, kernel, dilation, groups in DILATED:
    for kind in ("f32", "bf16"):
        op("dilated", lambda x, w, d=dilation, g=groups: F.conv2d(x, w, None, 1, d * (w.shape[-1] // 2), d, g),
           f"{kind}[{n},{cin},{size},{size}]", f"{kind}[{cout},{cin // groups},{kernel},{kernel}]")  # fmt: skip
for n, cin, size, cout, kernel, stride in (
    (8, 3, "16,112,112", 64, (3, 7, 7), (1, 2, 2)), (8, 64, "16,56,56", 64, (3, 3, 3), 1), (8, 64, "16,56,56", 144, (1, 3, 3), 1),
    (8, 128, "8,28,28", 128, (3, 3, 3), 1), (8, 144, "16,56,56", 64, (3, 1, 1), 1), (4, 3, "16,112,112", 96, (2, 4, 4), (2, 4, 4)),
):  # fmt: skip
    for kind in ("f32", "bf16"):
        padding = tuple(side // 2 if side % 2 else 0 for side in kernel)
        op("dilated", lambda x, w, s=stride, p=padding: F.conv3d(x, w, None, s, p),
           f"{kind}[{n},{cin},{size}]", f"{kind}[{cout},{cin},{kernel[0]},{kernel[1]},{kernel[2]}]")  # fmt: skip
for n, channels, length, kernel, dilation, groups in (
    (4, 512, 2000, 3, 1, 512), (4, 512, 2000, 3, 64, 512), (8, 256, 400, 31, 1, 256), (4, 512, 2000, 1, 1, 1),
    (4, 768, 199, 128, 1, 16),
):  # fmt: skip
    for kind in ("f32", "bf16"):
        op("dilated", lambda x, w, d=dilation, g=groups: F.conv1d(x, w, None, 1, d * (w.shape[-1] // 2), d, g),
           f"{kind}[{n},{channels},{length}]", f"{kind}[{channels},{channels // groups},{kernel}]")  # fmt: skip

for shape, size in (("4,10,48,48", 384), ("4,256,1,1", 48), ("8,10,64,64", 512), ("8,128,16,16", 32), ("2,256,20,20", 40)):
    for kind in ("f32", "bf16"):
        for mode in ("bilinear", "nearest", "bicubic"):
            op("resized", lambda x, s=size, m=mode: F.interpolate(x, size=(s, s), mode=m), f"{kind}[{shape}]")
for kind in ("f32", "bf16"):
    op("resized", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), f"{kind}[2,32,8,28,28]")
    op("resized", lambda x: F.adaptive_avg_pool2d(x, 1), f"{kind}[4,2048,48,48]")
    op("resized", lambda x: F.avg_pool2d(x, 3, 1, 1), f"{kind}[16,192,28,28]")
    op("resized", lambda x: F.max_pool3d(x, 2), f"{kind}[2,64,16,56,56]")
    op("resized", lambda x: F.avg_pool1d(x, 4), f"{kind}[16,256,4000]")
    op("resized", lambda x: F.unfold(x, 3, padding=1), f"{kind}[8,64,32,32]")
    op("resized", lambda x: F.pixel_shuffle(x, 2), f"{kind}[8,256,64,64]")
op("resized", lambda x, g: F.grid_sample(x, g, align_corners=True), "f32[2560,1,32,40]", "f32[2560,9,9,2]")
op("resized", lambda x, y: F.cross_entropy(x, y), "f32[4,10,384,384]", "i64[4,384,384]<10")
for size, batch in ((512, 1), (128, 16), (2048, 1)):
    op(
        "factors",
        lambda x: torch.linalg.cholesky(x @ x.mT + 9999 * torch.eye(x.shape[-1], device=x.device)),
        f"f32[{batch},{size},{size}]",
    )
    op("factors", lambda a, b: torch.linalg.solve_triangular(a.tril() + 99 * torch.eye(len(a[0]), device=a.device), b, upper=False),
       f"f32[{batch},{size},{size}]!", f"f32[{batch},{size},256]")  # fmt: skip


def kept_on_host(kind: str, shape: tuple[int, ...], turned: bool, pinned: bool) -> None:
    """A tensor that ``save_on_cpu`` packs and unpacks."""

    def make() -> Work:
        x = torch.randn(shape, device="cuda", dtype=B16 if kind == "bf16" else torch.float32)
        x = x.transpose(0, 1) if turned else x

        def work() -> None:
            host = torch.empty(x.size(), dtype=x.dtype, pin_memory=pinned)
            host.copy_(x)
            host.to("cuda", non_blocking=pinned)

        return work

    add("kept on the host", make)


for kind in ("f32", "bf16"):
    for shape in ((1024, 1024), (4096, 4096), (64, 64), (16, 1024, 64)):
        for turned in (False, True):
            kept_on_host(kind, shape, turned, True)
    kept_on_host(kind, (2048, 2048), False, False)
