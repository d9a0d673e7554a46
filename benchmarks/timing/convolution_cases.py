"""What ``convolution_times.py`` times: the convolutions of nets that people train, what stands around them, and recurrent layers.

A convolution is written ``batch x channels x sizes > channels, kernel sizes s(tride) p(adding) d(ilation) g(roups)``, with ``t`` if
it is transposed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Work = Callable[[], Any]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

NETS = {
    # ResNet-50
    "plain": """
        32x3x224x224>64,7x7 s2 p3; 32x64x56x56>64,1x1; 32x64x56x56>64,3x3 p1; 64x64x56x56>256,1x1; 32x256x56x56>64,1x1;
        16x256x56x56>128,1x1; 32x128x56x56>128,3x3 s2 p1; 64x128x28x28>512,1x1; 32x512x28x28>128,1x1; 64x128x28x28>128,3x3 p1;
        32x256x56x56>512,1x1 s2; 128x512x28x28>256,1x1; 32x256x28x28>256,3x3 s2 p1; 128x256x14x14>1024,1x1; 32x1024x14x14>256,1x1;
        64x256x14x14>256,3x3 p1; 16x512x28x28>1024,1x1 s2; 32x1024x14x14>512,1x1; 32x512x14x14>512,3x3 s2 p1; 64x512x7x7>2048,1x1;
        32x2048x7x7>512,1x1; 128x512x7x7>512,3x3 p1; 8x1024x14x14>2048,1x1 s2; 4x256x14x14>256,3x3 p1; 1x128x28x28>128,3x3 p1;
        256x64x32x32>64,3x3 p1; 128x16x32x32>16,3x3 p1; 128x32x32x32>64,3x3 s2 p1; 32x24x112x112>48,3x3 p1; 16x80x40x40>80,3x3 p1
    """,
    # U-Nets, detection, segmentation: few large images; odd kernels
    "large": """
        4x64x256x256>64,3x3 p1; 2x128x256x256>64,3x3 p1; 4x128x128x128>128,3x3 p1; 4x512x64x64>256,3x3 p1; 4x1024x32x32>512,3x3 p1;
        8x320x64x64>320,3x3 p1; 4x640x64x64>320,3x3 p1; 8x640x32x32>640,3x3 p1; 8x1280x16x16>1280,3x3 p1; 8x2560x16x16>1280,3x3 p1;
        8x1280x8x8>1280,3x3 p1; 8x320x64x64>320,3x3 s2 p1; 8x960x32x32>640,1x1; 8x4x64x64>320,3x3 p1; 8x320x64x64>4,3x3 p1;
        2x3x512x512>64,3x3 p1; 2x256x200x304>256,3x3 p1; 2x256x50x76>256,3x3 p1; 4x2048x33x33>256,3x3 p12 d12;
        8x256x33x33>256,3x3 p2 d2; 16x192x17x17>192,1x7 p0,3; 16x192x17x17>192,7x1 p3,0; 16x64x35x35>96,5x5 p2;
        8x1024x16x16>512,2x2 s2 t; 4x512x32x32>256,2x2 s2 t; 4x256x64x64>128,2x2 s2 t; 64x512x8x8>256,4x4 s2 p1 t;
        64x128x32x32>64,4x4 s2 p1 t; 64x64x32x32>3,4x4 s2 p1 t; 64x3x64x64>64,4x4 s2 p1
    """,
    "grouped": """
        32x128x56x56>128,3x3 p1 g2; 32x192x28x28>192,3x3 p1 g3; 32x512x14x14>512,3x3 p1 g8; 32x1088x7x7>1088,3x3 p1 g17;
        32x512x28x28>512,3x3 s2 p1 g8; 32x128x56x56>128,3x3 p1 g32; 32x256x28x28>256,3x3 p1 g32; 32x512x14x14>512,3x3 p1 g32;
        32x1024x7x7>1024,3x3 p1 g32; 16x256x56x56>256,3x3 s2 p1 g32; 64x96x28x28>96,3x3 p1 g4; 32x240x28x28>240,3x3 p1 g10;
        32x448x14x14>448,3x3 p1 g4; 32x640x14x14>640,3x3 p1 g40; 32x128x56x56>256,1x1 g2; 32x256x28x28>256,1x1 g4;
        4x512x14x14>512,3x3 p1 g8; 128x64x32x32>64,3x3 p1 g2
    """,
    # RegNets and their kin: how wide are the groups?
    "groups": """
        32x256x28x28>256,3x3 p1 g4; 8x512x28x28>512,3x3 p1 g8; 64x512x14x14>512,3x3 p1 g8; 32x256x14x14>256,3x3 p1 g4;
        16x256x56x56>256,3x3 p1 g4; 32x1024x14x14>1024,3x3 p1 g16; 32x256x28x28>256,3x3 p1 g8; 32x256x28x28>256,3x3 p1 g2;
        32x512x14x14>512,3x3 p1 g4; 32x336x14x14>336,3x3 p1 g14; 32x392x14x14>392,3x3 p1 g7; 32x432x14x14>432,3x3 p1 g9;
        32x160x14x14>160,3x3 p1 g10; 32x888x7x7>888,3x3 p1 g37; 32x128x28x28>128,3x3 s2 p1 g8; 32x896x14x14>896,3x3 s2 p1 g8
    """,
    # Groups with long kernels
    "long": """
        1x768x499>768,128 p64 g16; 16x768x49>768,128 p64 g16; 4x1024x149>1024,128 p64 g16; 8x512x200>512,31 p15 g8;
        8x512x200>512,33 p16 g8; 8x256x400>256,64 p32 g4; 4x768x149>768,19 p9 g16; 4x256x32x32>256,7x7 p3 g4;
        4x256x32x32>256,5x5 p2 g4; 16x768x299>768,128 p64 g16; 4x768x149>768,128 p64
    """,
    "depthwise": """
        32x32x112x112>32,3x3 p1 g32; 32x96x112x112>96,3x3 s2 p1 g96; 32x144x56x56>144,3x3 p1 g144; 32x144x56x56>144,3x3 s2 p1 g144;
        64x192x28x28>192,3x3 p1 g192; 32x192x28x28>192,3x3 s2 p1 g192; 32x384x14x14>384,3x3 p1 g384; 128x576x14x14>576,3x3 p1 g576;
        32x960x7x7>960,3x3 p1 g960; 16x144x56x56>144,5x5 s2 p2 g144; 32x240x28x28>240,5x5 p2 g240; 32x480x14x14>480,5x5 p2 g480;
        32x672x14x14>672,5x5 s2 p2 g672; 32x1152x7x7>1152,5x5 p2 g1152; 32x96x56x56>96,7x7 p3 g96; 32x192x28x28>192,7x7 p3 g192;
        64x384x14x14>384,7x7 p3 g384; 32x768x7x7>768,7x7 p3 g768; 4x128x56x56>128,7x7 p3 g128; 8x64x64x64>64,3x3 p1 g64;
        8x1024x512>1024,4 p3 g1024; 8x512x400>512,31 p15 g512; 1x96x112x112>96,3x3 p1 g96
    """,
    "around": """
        32x16x112x112>96,1x1; 32x96x56x56>24,1x1; 32x24x56x56>144,1x1; 32x144x56x56>24,1x1; 32x192x28x28>32,1x1;
        64x32x28x28>192,1x1;
        32x384x14x14>64,1x1; 32x576x14x14>96,1x1; 64x160x7x7>960,1x1; 32x320x7x7>1280,1x1; 32x240x1x1>10,1x1; 32x96x1x1>4,1x1;
        32x3x224x224>32,3x3 s2 p1; 32x960x7x7>160,1x1; 32x1152x7x7>192,1x1
    """,
    "patches": """
        32x3x224x224>768,16x16 s16; 32x3x224x224>1280,14x14 s14; 16x3x224x224>768,32x32 s32; 32x3x224x224>96,4x4 s4;
        32x96x56x56>192,2x2 s2; 32x192x28x28>384,2x2 s2; 32x384x14x14>768,2x2 s2; 16x1x128x1024>768,16x16 s16;
        64x3x32x32>192,4x4 s4;
        96x3x256x256>512,8x8 s8
    """,
    "sound": """
        4x1x48000>512,10 s5; 4x512x9599>512,3 s2; 4x512x2399>512,3 s2; 8x512x599>512,2 s2; 4x768x149>768,128 p64 g16;
        8x80x3000>512,3 p1; 8x512x3000>512,3 s2 p1; 16x256x1024>256,3 p1; 16x256x400>512,1; 8x64x8192>64,7 p3;
        32x128x512>128,3 p2 d2
    """,
    "video": """
        8x3x16x112x112>64,3x7x7 s1,2,2 p1,3,3; 8x64x16x56x56>64,3x3x3 p1; 8x128x8x28x28>128,3x3x3 p1; 8x64x16x56x56>128,3x3x3 s2 p1;
        8x256x4x14x14>256,3x3x3 p1; 8x64x16x56x56>144,1x3x3 p0,1,1; 8x144x16x56x56>64,3x1x1 p1,0,0; 2x32x64x64x64>32,3x3x3 p1;
        2x64x32x32x32>32,2x2x2 s2 t; 4x3x16x224x224>768,2x16x16 s2,16,16
    """,
}

WAYS = {
    "plain": ("bf16", "bf16 last", "f32", "f32 last"),
    "large": ("bf16", "bf16 last", "f32"),
    "grouped": ("bf16", "bf16 last", "f32", "f32 last"),
    "groups": ("bf16", "bf16 last", "f32", "f32 last"),
    "long": ("bf16", "f32", "f16"),
    "depthwise": ("bf16", "bf16 last", "f32", "f32 last"),
    "around": ("bf16", "f32", "bf16 last"),
    "patches": ("bf16", "f32"),
    "sound": ("bf16", "f32"),
    "video": ("bf16", "f32"),
}
"""Types and layouts; float32 is with tf32, torch's default for convolutions."""

RARER_WAYS = ("f32 plain", "f16", "f16 last")
"""Every third of a net's convolutions: without tf32, and in float16."""


@dataclass(frozen=True)
class Case:
    """``make`` gives what is called, on the device that it is given."""

    name: str
    make: Callable[[str], Work]
    is_tf32: bool = True


@dataclass(frozen=True)
class Convolution:
    given: tuple[int, ...]
    outputs: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    is_transposed: bool

    @classmethod
    def parse(cls, text: str) -> Convolution:
        given, outputs, kernel, rest = re.fullmatch(r"([\dx]+)>(\d+),([\dx]+)(.*)", text.strip()).groups()
        sizes = tuple(map(int, kernel.split("x")))
        words = {word[0]: word[1:] for word in rest.split()}

        def each(letter: str, default: str) -> tuple[int, ...]:
            found = tuple(map(int, words.get(letter, default).split(",")))
            return found * len(sizes) if len(found) == 1 else found

        shape = tuple(map(int, given.split("x")))
        return cls(
            shape, int(outputs), sizes, each("s", "1"), each("p", "0"), each("d", "1"), int(words.get("g", "1")), "t" in words
        )

    def calls(self, dtype: torch.dtype, is_last: bool, device: str) -> Work:
        """Forward, and each of the two gradients in a call of its own."""
        inputs = self.given[1]
        shape = (inputs, self.outputs // self.groups) if self.is_transposed else (self.outputs, inputs // self.groups)
        form = {2: torch.channels_last, 3: torch.channels_last_3d}.get(len(self.kernel)) if is_last else None

        def tensor(*sizes: int) -> torch.Tensor:
            made = torch.randn(sizes, device=device, dtype=dtype)
            return made.to(memory_format=form) if form else made

        x, weight = tensor(*self.given), tensor(*shape, *self.kernel)
        options = (self.stride, self.padding, self.dilation, self.is_transposed, (0,) * len(self.kernel), self.groups)
        gradient = torch.randn_like(torch.ops.aten.convolution(x, weight, None, *options))

        def work() -> None:
            torch.ops.aten.convolution(x, weight, None, *options)
            for wanted in ((True, False, False), (False, True, False)):
                torch.ops.aten.convolution_backward(gradient, x, weight, [0], *options, wanted)

        return work


def convolutions() -> Iterator[Case]:
    number = 0
    for net, text in NETS.items():
        for written in text.split(";"):
            convolution, number = Convolution.parse(written), number + 1
            for way in (*WAYS[net], *((RARER_WAYS[number // 3 % 3],) if number % 3 == 0 else ())):
                kind, *rest = way.split()
                if "last" in rest and len(convolution.kernel) == 1:
                    continue
                make = partial(convolution.calls, DTYPES[kind], "last" in rest)
                yield Case(f"{' '.join(written.split())} {way}", make, "plain" not in rest)


def differentiated(function: Callable[..., Any], *leaves: torch.Tensor) -> Work:
    """Forward and backward by autograd."""

    def work() -> None:
        out = function(*leaves)
        out = out[0] if isinstance(out, tuple) else out
        torch.autograd.grad([out], leaves, [torch.ones_like(out)])

    return work


AROUND: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, torch.zeros_like(w), torch.ones_like(b), w, b, training=True),
        ("32,64,112,112", "32,256,56,56", "32,512,28,28", "64,256,28,28", "32,1024,14,14", "32,2048,7,7", "32,16,112,112",
         "32,144,56,56", "32,32,112,112", "16,128,56,56", "8,128,64,64", "1,256,28,28", "128,64,32,32", "32,1088,7,7",
         "96,256,32,32", "4,64,256,256"),
    ),
    "group norm": (
        lambda x, w, b: F.group_norm(x, 32, w.to(x.dtype), b.to(x.dtype)),
        ("8,320,64,64", "8,640,32,32", "8,1280,16,16", "2,128,256,256", "8,160,64,64", "32,64,56,56"),
    ),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, x.shape[1:], w.to(x.dtype), b.to(x.dtype)),
        ("100352,96", "50176,128", "25088,192", "8192,256", "6272,384", "200704,64", "1568,768", "16384,320"),
    ),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), ("32,64,112,112", "32,256,28,28", "8,64,56,56")),
    "max pool of 2": (lambda x: F.max_pool2d(x, 2), ("4,64,256,256", "32,128,64,64")),
    "avg pool": (lambda x: F.avg_pool2d(x, 3, 1, 1), ("32,192,35,35", "16,256,17,17")),
    "avg pool of 2": (lambda x: F.avg_pool2d(x, 2), ("32,256,56,56", "64,512,28,28")),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, 1), ("32,2048,7,7", "32,96,112,112", "64,480,14,14")),
    "pool to 6": (lambda x: F.adaptive_avg_pool2d(x, 6), ("8,512,33,33", "32,256,13,13")),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), ("8,320,32,32", "4,512,32,32", "2,256,100,152")),
    "bilinear": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        ("8,320,32,32", "4,64,128,128", "8,21,65,65", "32,256,14,14"),
    ),
    "relu": (F.relu, ("32,256,56,56", "32,64,112,112")),
    "silu": (F.silu, ("32,144,56,56",)),
    "scaled": (lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(), ("32,144,56,56", "32,480,14,14")),
    "shuffled": (lambda x: F.pixel_shuffle(x, 2), ("8,256,64,64",)),
    "padded": (lambda x: F.pad(x, (0, 1, 0, 1)), ("32,32,112,112",)),
}  # fmt: skip


def around() -> Iterator[Case]:
    for name, (function, shapes) in AROUND.items():
        for shape in shapes:
            for way in ("bf16", "bf16 last", "f32", "f32 last") if shape.count(",") == 3 else ("bf16", "f32"):

                def make(device: str, f: Any = function, shape: str = shape, way: str = way, name: str = name) -> Work:
                    x = torch.randn(tuple(map(int, shape.split(","))), device=device, dtype=DTYPES[way.split()[0]])
                    x = x.to(memory_format=torch.channels_last) if "last" in way else x
                    weights = [torch.ones(x.shape[1], device=device).requires_grad_() for _ in range(2 if "norm" in name else 0)]
                    return differentiated(f, x.requires_grad_(), *weights)

                yield Case(f"{name} {shape} {way}", make)


RECURRENT = (
    # kind, layers, batch, length, inputs, hidden, both directions
    ("LSTM", 1, 64, 128, 512, 512, False), ("LSTM", 2, 64, 128, 512, 512, False), ("LSTM", 2, 32, 256, 256, 256, False),
    ("LSTM", 2, 128, 64, 1024, 1024, False), ("LSTM", 1, 16, 512, 1024, 1024, False), ("LSTM", 4, 64, 64, 1024, 1024, False),
    ("LSTM", 1, 256, 64, 512, 2048, False), ("LSTM", 2, 32, 128, 512, 512, True), ("LSTM", 1, 8, 1024, 128, 128, False),
    ("GRU", 1, 64, 128, 512, 512, False), ("GRU", 2, 128, 64, 1024, 1024, False), ("GRU", 2, 32, 256, 256, 256, True),
    ("RNN", 2, 64, 128, 512, 512, False), ("LSTM", 3, 20, 35, 650, 650, False), ("LSTM", 2, 512, 32, 1024, 1024, False),
)  # fmt: skip


def recurrent() -> Iterator[Case]:
    for kind, layers, batch, length, inputs, hidden, both in RECURRENT:
        for dtype in ("f32", "bf16") if kind != "RNN" else ("f32",):

            def make(device: str, k: Any = (kind, layers, batch, length, inputs, hidden, both), dtype: str = dtype) -> Work:
                layer = getattr(nn, k[0])(k[4], k[5], k[1], bidirectional=k[6]).to(device, DTYPES[dtype])
                x = torch.randn(k[3], k[2], k[4], device=device, dtype=DTYPES[dtype]).requires_grad_()
                return differentiated(lambda x, *weights: layer(x), x, *layer.parameters())

            yield Case(f"{kind} {layers} layers {batch}x{length}x{inputs} {hidden} {'both ' if both else ''}{dtype}", make)


def cases() -> list[Case]:
    return [*convolutions(), *around(), *recurrent()]
