"""What cuFFT takes from the allocator, by lengths, batches, types and layouts.

    python benchmarks/kernels/fourier_on_gpu.py      # on a CUDA GPU: truth/fourier.json

Each row: between which numbers (r2c, c2c, c2r), the shape of the real numbers (of the complex ones for c2c), the dimensions, the
type, the bytes of the result, and what the allocator did in order (what was given back is negative).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.kernels.recorded_calls import recorded

TRUTH = Path(__file__).parents[1] / "truth" / "fourier.json"
LENGTHS = (
    *(
        2,
        4,
        5,
        7,
        8,
        16,
        25,
        32,
        49,
        64,
        100,
        120,
        127,
        128,
        200,
        243,
        251,
        256,
        300,
        400,
        480,
        500,
        509,
        512,
        513,
        600,
        640,
        704,
        800,
    ),
    *(
        832,
        960,
        1000,
        1001,
        1021,
        1024,
        1088,
        1100,
        1200,
        1536,
        2000,
        2039,
        2048,
        2187,
        2400,
        3000,
        3072,
        4000,
        4096,
        4097,
        5000,
        6000,
    ),
    *(
        8191,
        8192,
        10000,
        12000,
        16000,
        16384,
        22050,
        22051,
        24000,
        32768,
        44100,
        48000,
        65536,
        100000,
        131072,
        160000,
        262144,
        480000,
    ),
    *(524288, 1000000, 1048576),
)
BATCHES = {torch.float32: (1, 2, 16, 100, 528), torch.float64: (2, 100)}
MOST = 6e7
SEVERAL: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    *(
        ((8, 64, 64), (1, 2)),
        ((8, 256, 256), (1, 2)),
        ((4, 3, 224, 224), (2, 3)),
        ((16, 32, 85, 85), (2, 3)),
        ((2, 1, 100, 120), (2, 3)),
    ),
    *(((8, 512, 512), (1, 2)), ((1, 1024, 1024), (1, 2)), ((3, 2, 96, 96, 96), (2, 3, 4)), ((8, 64, 64, 20), (1, 2))),
    *(((16, 256, 64), (1,)), ((32, 1000, 128), (1,)), ((16, 80, 513), (1,))),
)
"""Shapes with several dimensions, and dimensions that are not the last."""
COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def transform(kind: str, shape: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    if kind == "r2c":
        real = torch.randn(shape, device="cuda", dtype=dtype)
        return lambda: torch.fft.rfftn(real, dim=dims)
    halved = [size // 2 + 1 if kind == "c2r" and place == dims[-1] else size for place, size in enumerate(shape)]
    given = torch.randn(halved, device="cuda", dtype=COMPLEX[dtype])
    if kind == "c2c":
        return lambda: torch.fft.fftn(given, dim=dims)
    return lambda: torch.fft.irfftn(given, s=[shape[dim] for dim in dims], dim=dims)


def measured(run: Callable[[], torch.Tensor]) -> tuple[int, list[int]]:
    run()  # plans are made once
    result, events = recorded(run)
    return result.numel() * result.element_size(), events


def main() -> None:
    one = [((batch, n), (1,), dtype) for dtype, found in BATCHES.items() for n in LENGTHS for batch in found if batch * n <= MOST]
    cases = [*one, *((shape, dims, torch.float32) for shape, dims in SEVERAL)]
    rows = []
    for shape, dims, dtype in cases:
        for kind in ("r2c", "c2c", "c2r"):
            result_bytes, events = measured(transform(kind, shape, dims, dtype))
            rows.append([kind, shape, dims, str(dtype).removeprefix("torch."), result_bytes, events])
    TRUTH.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
