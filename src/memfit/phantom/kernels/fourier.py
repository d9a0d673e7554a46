"""Complex numbers and Fourier transforms.

What cuFFT takes was read off 1,515 transforms of 70 lengths, and not proven on others: nothing for lengths that are done in one
pass, several times the data for a prime factor that its kernels do not have, else as much as the data, or twice.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from memfit.phantom.kernels.rule import Arguments, ResultPlace, Rule, TakenBlocks, bytes_of
from memfit.phantom.target import Target

MEASURED: Final = "measured on an H200 with cuFFT 12.0 (benchmarks/truth/fourier.json)"

LONGEST_POWER_OF_TWO: Final = 16384
"""Powers of two are transformed in one pass up to here."""
LONGEST: Final = {True: 480, False: 10000}
"""Other lengths of real and of complex numbers, and further ones that were seen to be."""
FURTHER: Final = {True: frozenset((600, 640, 704, 800, 960, 1000, 2187, 3072)), False: frozenset((16000, 24000))}
LARGEST_PRIME: Final = 127
"""A larger prime factor goes through a convolution."""
OF_PRIMES: Final = {True: (2, 5), False: (0, 4)}
"""What that takes of real and of complex numbers, as multiples of the data: up to the length below, and above."""
LONG: Final = 4096
SMALL_PRIMES: Final = 7
"""With several dimensions, one pass each is enough where no prime factor is larger."""


def of_complex(target: Target, args: Arguments, result: object) -> TakenBlocks:
    """For complex numbers a result that is complex too, of which the real part is copied."""
    return (ResultPlace(0), bytes_of(args[0])) if args[0].is_complex() else ()


def into_complex(target: Target, args: Arguments, result: torch.Tensor) -> TakenBlocks:
    """What cuFFT takes, by lengths and layout."""
    workspace = _workspace(args[0], args[1], list(args[0].shape))
    return (ResultPlace(0), workspace) if workspace else ()


def into_real(target: Target, args: Arguments, result: torch.Tensor) -> TakenBlocks:
    """A copy of the input, over which cuFFT writes, and what cuFFT takes."""
    workspace = _workspace(result, args[1], list(result.shape))
    return (ResultPlace(0), bytes_of(args[0]), *([workspace] if workspace else []))


def _workspace(data: torch.Tensor, dims: list[int], shape: list[int]) -> int:
    """``data`` are the real numbers of a transform between real and complex ones."""
    lengths, is_real, size = [shape[dim] for dim in dims], not data.is_complex(), bytes_of(data)
    if dims[-1] % len(shape) != len(shape) - 1:
        return size
    if len(lengths) > 1:
        return 0 if all(_largest_prime(length) <= SMALL_PRIMES for length in lengths) else size * (1 + is_real)
    length = lengths[0]
    if length.bit_count() == 1:
        return size if length > LONGEST_POWER_OF_TWO else 0
    if _largest_prime(length) > LARGEST_PRIME:
        return size * OF_PRIMES[is_real][length > LONG]
    if length <= LONGEST[is_real] or length in FURTHER[is_real]:
        return 0
    return size * (1 + length % 2) if is_real else size


def _largest_prime(number: int) -> int:
    found, factor = 1, 2
    while factor <= math.isqrt(number):
        if number % factor:
            factor += 1
        else:
            found, number = factor, number // factor
    return max(found, number)


RULES = (
    Rule(operators=("abs", "angle"), takes=of_complex, source="ATen/native/UnaryOps.cpp"),
    Rule(operators=("_fft_r2c", "_fft_c2c"), takes=into_complex, source="ATen/native/cuda/SpectralOps.cpp; " + MEASURED),
    Rule(operators=("_fft_c2r",), takes=into_real, source="ATen/native/cuda/SpectralOps.cpp; " + MEASURED),
)
