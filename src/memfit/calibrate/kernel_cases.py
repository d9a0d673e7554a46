"""What a card is asked to do while its kernels are timed: some hundred small pieces of training, none above a gibibyte or two.

A case is a function of tensors, each written as ``type[shape]``; what needs a gradient gets one, so that backward is timed too:

    bf16[4096,1024]    random, needs a gradient        i64[4096]<1000   integers below 1000
    f32[4096,1024]!    random, needs none              f32[8,3,64,64]cl with channels last
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from memfit.torch_compat.dispatch import tree_leaves

Work = Callable[[], Any]
Make = Callable[[], Work]

DTYPES: Final = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64, "bool": torch.bool}
BACKENDS: Final = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def make_tensor(spec: str, device: str = "cuda") -> torch.Tensor:
    match = re.fullmatch(r"(\w+)\[([\d,]*)\](.*)", spec)
    assert match is not None, spec
    kind, shape, rest = match.groups()
    dtype, sizes = DTYPES[kind], [int(size) for size in shape.split(",") if size]
    if rest.startswith("<"):
        return torch.randint(0, int(rest[1:]), sizes, device=device, dtype=dtype)
    if dtype == torch.bool:
        return torch.rand(sizes, device=device) > 0.5
    made = torch.randn(sizes, device=device, dtype=dtype)
    if "cl" in rest:
        made = made.to(memory_format=torch.channels_last)
    return made if "!" in rest else made.requires_grad_()


def op(function: Callable[..., Any], *specs: str) -> Make:
    """A function, and the gradients of what needs one."""

    def make() -> Work:
        inputs = [make_tensor(spec) for spec in specs]
        leaves = [each for each in inputs if each.requires_grad]

        def work() -> None:
            out = function(*inputs)
            outs = [each for each in tree_leaves(out) if isinstance(each, torch.Tensor) and each.requires_grad] if leaves else []
            if outs:
                torch.autograd.grad(outs, leaves, [torch.ones_like(each) for each in outs], allow_unused=True)

        return work

    return make


def attention(backend: str, batch: int, heads: int, length: int, width: int, is_causal: bool, kind: str) -> Make:
    def make() -> Work:
        # Heads come out of a linear layer: batch, sequence, heads, head.
        query, key, value = (
            make_tensor(f"{kind}[{batch},{length},{heads},{width}]").transpose(1, 2).detach().requires_grad_() for _ in range(3)
        )

        def work() -> None:
            with sdpa_kernel(BACKENDS[backend]):
                out = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
            torch.autograd.grad([out], [query, key, value], [torch.ones_like(out)])

        return work

    return make


def optimizer(factory: Callable[[Any], torch.optim.Optimizer], sizes: tuple[tuple[int, ...], ...]) -> Make:
    def make() -> Work:
        made = [nn.Parameter(torch.randn(size, device="cuda")) for size in sizes]
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        stepper = factory(made)
        stepper.step()

        def work() -> None:
            nn.utils.clip_grad_norm_(made, 1.0)
            stepper.step()

        return work

    return make


def tf32(tokens: int, inner: int, columns: int) -> Make:
    def make() -> Work:
        a, b = make_tensor(f"f32[{tokens},{inner}]!"), make_tensor(f"f32[{inner},{columns}]!")
        return lambda: torch.mm(a, b)

    return make


def kernel_cases(half: str) -> dict[str, list[Make]]:
    """By family, most important first. ``half`` is the half type that the card has: bf16, or f16."""
    return {
        "products": _products(half),
        "attention": _attention(half),
        "elementwise": _elementwise(half),
        "optimizers": _optimizers(),
        "norms": _norms(half),
        "layouts": _layouts(half),
        "reductions": _reductions(half),
        "indexing": _indexing(half),
        "convolutions": _convolutions(half),
        "tf32": [tf32(*sizes) for sizes in ((2048, 1024, 1024), (8192, 1024, 4096), (8192, 4096, 4096))],
    }


def _products(half: str) -> list[Make]:
    widths = (
        (768, 768),
        (768, 3072),
        (1024, 1024),
        (1024, 2816),
        (2048, 2048),
        (2048, 5632),
        (4096, 4096),
        (4096, 14336),
        (8192, 8192),
    )
    cases = [
        op(F.linear, f"{half}[{tokens},{k}]", f"{half}[{n},{k}]")
        for tokens in (64, 512, 2048, 8192)
        for k, n in widths
        if tokens * k * n < 2**40
    ]
    for tokens, k, n in (
        (4096, 1024, 50257),
        (8192, 768, 30522),
        (6304, 768, 3072),
        (32, 768, 10),
        (1, 4096, 4096),
        (3000, 3000, 3000),
    ):
        cases.append(op(F.linear, f"{half}[{tokens},{k}]", f"{half}[{n},{k}]"))
    for tokens, k, n in ((512, 1024, 1024), (2048, 768, 3072), (8192, 768, 768)):
        cases.append(op(F.linear, f"{half}[{tokens},{k}]", f"{half}[{n},{k}]", f"{half}[{n}]"))
    for tokens, k, n in (
        (256, 1024, 1024),
        (2048, 1024, 1024),
        (8192, 1024, 2816),
        (4096, 2048, 2048),
        (2048, 768, 3072),
        (32, 2048, 10),
    ):
        cases.append(op(F.linear, f"f32[{tokens},{k}]", f"f32[{n},{k}]"))
    for batch, length, width in ((32, 1024, 128), (64, 512, 64), (16, 128, 64)):
        for kind in (half, "f32"):
            cases.append(op(torch.bmm, f"{kind}[{batch},{length},{width}]", f"{kind}[{batch},{width},{length}]"))
    return cases


def _attention(half: str) -> list[Make]:
    shapes = (
        (4, 16, 2048, 64), (2, 16, 2048, 128), (1, 16, 4096, 128), (16, 12, 512, 64), (32, 12, 197, 64), (2, 8, 1024, 256),
        (2, 4, 128, 64), (8, 12, 577, 96),
    )  # fmt: skip
    cases = [attention(backend, *shape, is_causal, half) for backend in BACKENDS for shape in shapes for is_causal in (False, True)]
    return cases + [
        attention("efficient", *shape, True, "f32") for shape in ((4, 16, 1024, 64), (2, 16, 1024, 128), (8, 8, 512, 64))
    ]


def _elementwise(half: str) -> list[Make]:
    cases = []
    for kind in ("f32", half):
        for exponent in (10, 16, 20, 24, 26):
            cases.append(op(torch.mul, f"{kind}[{2**exponent}]!", f"{kind}[{2**exponent}]!"))
            cases.append(op(torch.clone, f"{kind}[{2**exponent}]!"))
        functions: tuple[Callable[..., Any], ...] = (
            F.silu, F.gelu, torch.relu, torch.exp, torch.log, torch.sqrt, torch.cos, lambda x: x.pow(2), lambda x: x / 3, F.dropout,
            F.softplus, torch.rsqrt,
        )  # fmt: skip
        for function in functions:
            cases.append(op(function, f"{kind}[8192,4096]"))
    cases.append(op(lambda x: x.to(DTYPES[half]), "f32[8192,4096]"))
    cases.append(op(lambda x: x.float(), f"{half}[8192,4096]"))
    cases.append(op(lambda x, y: x * y, "f32[8192,4096]", f"{half}[8192,4096]"))
    cases.append(op(lambda x, y: x / y, "f32[8192,4096]", "f32[8192,4096]"))
    cases.append(op(lambda x, m: x.masked_fill(m, 0.0), "f32[8192,4096]", "bool[8192,4096]"))
    cases.append(op(lambda x, y: x.add_(y), "f32[8192,4096]!", "f32[8192,4096]!"))
    cases.append(op(lambda x: x.zero_(), "f32[8192,4096]!"))
    cases.append(op(torch.randn_like, "f32[8192,4096]!"))
    cases.append(op(lambda x: x.uniform_(), "f32[8192,4096]!"))
    return cases


def _layouts(half: str) -> list[Make]:
    cases = []
    for kind in (half, "f32"):
        heads = f"{kind}[2,2048,16,128]"
        cases.append(op(lambda x: x.transpose(1, 2).contiguous(), heads))
        cases.append(op(lambda x: x.transpose(1, 2).repeat_interleave(2, 1), heads))
        cases.append(op(lambda x: x.permute(0, 2, 3, 1).contiguous(), heads))
        cases.append(op(lambda x: x[:, None].expand(x.shape[0], 4, *x.shape[1:]).reshape(-1, *x.shape[2:]), heads))
        shape = f"{kind}[8192,1024]"
        cases.append(op(lambda x: x.t().contiguous(), shape))
        cases.append(op(lambda x, w: x * w, shape, f"{kind}[1024]"))
        cases.append(op(lambda x, w: x * w, shape, f"{kind}[8192,1]"))
        cases.append(op(lambda x: x[:, :512] * 2, shape))
        cases.append(op(lambda x: [part * 2 for part in x.split(256, 1)], shape))
        cases.append(op(lambda x, y: torch.cat((x, y), 0), shape, shape))
        cases.append(op(lambda x, y: torch.cat((x, y), 1), shape, shape))
        cases.append(op(lambda x, y: torch.stack((x, y), 1), shape, shape))
        cases.append(op(lambda x: x.roll(1, 0), shape))
        cases.append(op(lambda x: F.pad(x, (1, 1)), shape))
        cases.append(op(lambda x: x.tril(), shape))
        cases.append(op(lambda x: torch.cat((-x[..., 64:], x[..., :64]), -1), heads))
    return cases


def _reductions(half: str) -> list[Make]:
    cases = []
    functions: tuple[Callable[..., Any], ...] = (
        lambda x: x.sum(-1), lambda x: x.sum(0), lambda x: x.sum(), lambda x: x.mean(-1, keepdim=True), lambda x: x.amax(-1),
        lambda x: x.var(-1), torch.linalg.vector_norm, lambda x: x.softmax(-1), lambda x: x.log_softmax(-1), lambda x: x.cumsum(-1),
    )  # fmt: skip
    for kind in (half, "f32"):
        for rows, columns in ((8192, 1024), (2048, 32000), (65536, 64)):
            for function in functions:
                cases.append(op(function, f"{kind}[{rows},{columns}]"))
            cases.append(op(lambda x: x.argmax(-1), f"{kind}[{rows},{columns}]!"))
    cases.append(op(F.cross_entropy, "f32[4096,32000]", "i64[4096]<32000"))
    cases.append(op(F.cross_entropy, "f32[32,1000]", "i64[32]<1000"))
    cases.append(op(F.mse_loss, "f32[32,4,64,64]", "f32[32,4,64,64]!"))
    cases.append(op(F.binary_cross_entropy_with_logits, "f32[8192,1024]", "f32[8192,1024]!"))
    return cases


def _norms(half: str) -> list[Make]:
    cases = []
    for kind in (half, "f32"):
        for rows, columns in ((8192, 768), (8192, 1024), (4096, 4096), (512, 512)):
            shape, weight = f"{kind}[{rows},{columns}]", f"{kind}[{columns}]"
            cases.append(op(lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), shape, weight, weight))
            cases.append(op(lambda x, w: F.rms_norm(x, x.shape[-1:], w), shape, weight))
        for images in ("32,64,56,56", "32,256,28,28", "8,128,64,64"):
            channels = images.split(",")[1]
            for layout in ("", "cl"):
                given, weight = f"{kind}[{images}]{layout}", f"f32[{channels}]"
                cases.append(op(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), given, weight, weight))
                cases.append(op(lambda x, w, b: F.group_norm(x, 32, w.to(x.dtype), b.to(x.dtype)), given, weight, weight))
    return cases


def _indexing(half: str) -> list[Make]:
    cases = []
    for rows, words, width in ((8192, 32000, 1024), (16384, 30522, 768), (64, 1000, 64)):
        for kind in (half, "f32"):
            cases.append(op(lambda i, w: F.embedding(i, w), f"i64[{rows}]<{words}", f"{kind}[{words},{width}]"))
            cases.append(op(lambda i, w: w[i], f"i64[{rows}]<{words}", f"{kind}[{words},{width}]"))
            cases.append(op(lambda i, w: w.index_select(0, i), f"i64[{rows}]<{words}", f"{kind}[{words},{width}]"))
    cases.append(op(lambda x: x.topk(2, -1), "f32[8192,64]"))
    cases.append(op(lambda x: x.sort(-1), "f32[8192,1024]"))
    cases.append(op(lambda x, i: x.gather(1, i), "f32[8192,1024]", "i64[8192,128]<1024"))
    cases.append(op(lambda x, i: torch.zeros_like(x).scatter(1, i, x), "f32[8192,1024]", "i64[8192,1024]<1024"))
    return cases


def _convolutions(half: str) -> list[Make]:
    shapes = (
        # batch, channels in, size, channels out, kernel, stride, groups
        (32, 3, 224, 64, 7, 2, 1), (32, 64, 56, 64, 1, 1, 1), (32, 64, 56, 64, 3, 1, 1), (32, 128, 28, 128, 3, 1, 1),
        (32, 128, 56, 128, 3, 2, 1), (32, 256, 14, 256, 3, 1, 1), (32, 1024, 14, 256, 1, 1, 1), (32, 512, 7, 512, 3, 1, 1),
        (32, 3, 224, 768, 16, 16, 1), (32, 96, 56, 96, 7, 1, 96), (32, 32, 112, 32, 3, 1, 32), (8, 320, 64, 320, 3, 1, 1),
        (32, 192, 14, 192, 3, 1, 4),
    )  # fmt: skip
    cases = []
    for batch, given, size, made, kernel, stride, groups in shapes:
        padding = kernel // 2 if kernel < 16 else 0
        for kind in ("f32", half):
            for layout in ("", "cl"):
                images, weight = (
                    f"{kind}[{batch},{given},{size},{size}]{layout}",
                    f"{kind}[{made},{given // groups},{kernel},{kernel}]{layout}",
                )
                cases.append(op(_convolution(stride, padding, groups), images, weight))
    for kind in ("f32", half):
        cases.append(op(lambda x: F.max_pool2d(x, 3, 2, 1), f"{kind}[32,64,112,112]"))
        cases.append(op(lambda x: F.avg_pool2d(x, 2), f"{kind}[32,64,112,112]"))
        cases.append(op(lambda x: F.adaptive_avg_pool2d(x, 1), f"{kind}[32,2048,7,7]"))
        cases.append(op(lambda x: F.interpolate(x, scale_factor=2), f"{kind}[8,320,32,32]"))
        cases.append(op(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), f"{kind}[8,320,32,32]"))
    return cases


def _convolution(stride: int, padding: int, groups: int) -> Callable[..., Any]:
    return lambda images, weight: F.conv2d(images, weight, None, stride, padding, 1, groups)


def _optimizers() -> list[Make]:
    # So large that no cache holds them, as in training.
    blocks = (*((1024, 1024), (1024, 512), (1024,), (2816, 1024), (1024, 2816)) * 8, (32000, 1024))
    small = ((64, 64), (64,)) * 60
    factories: tuple[Callable[[Any], torch.optim.Optimizer], ...] = (
        lambda p: torch.optim.AdamW(p, lr=1e-4),
        lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
        lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9),
    )
    return [optimizer(factory, sizes) for factory in factories for sizes in (blocks, small)]
