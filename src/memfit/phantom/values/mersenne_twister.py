"""The Mersenne Twister, advanced by any number of draws in milliseconds.

The words of the generator, one after another, are a linear recurrence over GF(2)::

    x[k+624] = x[k+397] ^ twist(top bit of x[k], low 31 bits of x[k+1])

so each word ``n`` further on is a sum of words at hand. ``t**n`` modulo the recurrence's characteristic polynomial says of which;
that polynomial has degree 19,937 and 135 terms.

Sources: M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998, for the recurrence and the polynomial (in its
appendix); H. Haramoto et al., "Efficient Jump Ahead for F2-Linear Random Number Generators", INFORMS Journal on Computing 20(3),
2008, for the method.

A polynomial is a Python integer here: bit ``i`` is the coefficient of ``t**i``.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import numpy.typing as npt

NUM_WORDS: Final = 624
_MIDDLE: Final = 397
_DEGREE: Final = 19937
_TWIST: Final = 0x9908B0DF
_LOW_BITS: Final = 31

Words = npt.NDArray[np.uint32]


def advance(words: Words, num_blocks: int) -> Words:
    """The generator's words after it has made them anew ``num_blocks`` times; ``words`` stays as it is."""
    if num_blocks == 0:
        return words.copy()
    if num_blocks == 1:
        return _sequence(words, NUM_WORDS)[NUM_WORDS:]
    # Word 0 has 31 bits that are no part of the recurrence: the sum begins with word 1.
    sequence = _sequence(words, _DEGREE + NUM_WORDS)[1:]
    chosen = _terms(_power_of_t(num_blocks * NUM_WORDS - 1))
    windows = np.lib.stride_tricks.sliding_window_view(sequence, NUM_WORDS)
    total: Words = np.bitwise_xor.reduce(windows[chosen], axis=0)
    return total


def _sequence(words: Words, num_more: int) -> Words:
    """``words`` and at least ``num_more`` words that follow them."""
    made = np.empty(NUM_WORDS + num_more, np.uint32)
    made[:NUM_WORDS] = words
    step = NUM_WORDS - _MIDDLE  # this many follow from words at hand
    for first in range(0, num_more, step):
        last = min(first + step, num_more)
        joined = (made[first:last] & 0x80000000) | (made[first + 1 : last + 1] & 0x7FFFFFFF)
        twisted = (joined >> 1) ^ np.where(joined & 1, np.uint32(_TWIST), np.uint32(0))
        made[NUM_WORDS + first : NUM_WORDS + last] = made[_MIDDLE + first : _MIDDLE + last] ^ twisted
    return made


@functools.lru_cache(maxsize=64)
def _power_of_t(exponent: int) -> int:
    """``t**exponent`` modulo the characteristic polynomial."""
    power = 1
    for bit in f"{exponent:b}":
        power = _reduce(_square(power))
        if bit == "1":
            power = _reduce(power << 1)
    return power


def _square(polynomial: int) -> int:
    """Squaring puts a zero between any two coefficients."""
    octets = np.frombuffer(polynomial.to_bytes((polynomial.bit_length() + 7) // 8 or 1, "little"), np.uint8)
    return int.from_bytes(_spread()[octets].tobytes(), "little")


@functools.cache
def _spread() -> npt.NDArray[Any]:
    octets = np.arange(256, dtype=np.uint16)
    spread = np.zeros(256, np.uint16)
    for bit in range(8):
        spread |= ((octets >> bit) & 1) << (2 * bit)
    return spread.astype("<u2")


def _reduce(polynomial: int) -> int:
    """The remainder of a division by the characteristic polynomial."""
    while (above := polynomial >> _DEGREE) != 0:
        polynomial ^= above << _DEGREE
        for exponent in _lower_terms():
            polynomial ^= above << exponent
    return polynomial


@functools.cache
def _lower_terms() -> tuple[int, ...]:
    return tuple(_terms(_characteristic_polynomial())[:-1].tolist())


@functools.cache
def _characteristic_polynomial() -> int:
    """A sum over the bits of the twist, each a product of powers of two binomials: for a word's top bit and its low ones."""
    top, low = (1 << NUM_WORDS) ^ (1 << _MIDDLE), (1 << (NUM_WORDS - 1)) ^ (1 << (_MIDDLE - 1))
    total = _product(top, 32 - _LOW_BITS, low, _LOW_BITS)
    for bit in range(32):
        if _TWIST >> bit & 1:
            num_low = max(_LOW_BITS - 1 - bit, 0)
            total ^= _product(top, 31 - bit - num_low, low, num_low)
    return total


def _product(first: int, first_power: int, second: int, second_power: int) -> int:
    product = 1
    for factor, power in ((first, first_power), (second, second_power)):
        for _ in range(power):
            product = functools.reduce(lambda total, exponent: total ^ (product << exponent), _terms(factor).tolist(), 0)
    return product


def _terms(polynomial: int) -> npt.NDArray[np.int64]:
    """The exponents that occur, in ascending order."""
    octets = np.frombuffer(polynomial.to_bytes((polynomial.bit_length() + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(octets, bitorder="little"))
