"""The host's random numbers go on as they would in a real run.

A model that is initialised on the host draws a number for each of its elements, and what is drawn next, the order of shuffled data
for one, depends on how many were drawn before. The elements are not there, so a few numbers are drawn and thrown away, and many are
passed over (``mersenne_twister.py``).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch

from memfit.phantom.values.mersenne_twister import NUM_WORDS, advance
from memfit.torch_compat.dispatch import without_modes

aten = torch.ops.aten

FILLING: Final = frozenset((aten.uniform_.default, aten.normal_.default, aten.random_.default, aten.bernoulli_.float))
"""They draw for each element, in order: a large tensor draws as several small ones do."""
_MAKING: Final = {
    "aten::rand": aten.uniform_.default,
    "aten::randn": aten.normal_.default,
    "aten::normal": aten.normal_.default,
    "aten::randint": getattr(aten.random_, "from"),
}
"""What makes a tensor and fills it like one of these."""

_MOST_DRAWN: Final = 2**20
"""Elements from which on passing over is quicker than drawing."""
_GROUP: Final = 16
"""Normal numbers are drawn in groups of 16, and a last group that is not whole is drawn again."""


class HostDraws:
    """Draws what operators on host tensors without data would."""

    def fill(self, func: Any, tensor: torch.Tensor, args: Any, kwargs: dict[str, Any]) -> None:
        """For one of ``FILLING``, on a tensor of the host."""
        _draw(func, tensor.numel(), tensor.dtype, args, kwargs)

    def make(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """For an operator that has made a tensor of the host."""
        name = func._schema.name
        fill = _MAKING.get(name)
        if fill is None:
            return
        size = next(value for value in args if isinstance(value, (list, tuple)))
        bounds: tuple[int, ...] = ()
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        if name == "aten::randint":
            bounds = (0, args[0]) if size is args[1] else args[:2]
            dtype = kwargs.get("dtype") or torch.int64
        generator = {name: value for name, value in kwargs.items() if name == "generator"}
        _draw(fill, math.prod(size), dtype, bounds, generator)


def _draw(func: Any, count: int, dtype: torch.dtype, args: Any, kwargs: dict[str, Any]) -> None:
    with without_modes(), torch.no_grad():
        if count <= _MOST_DRAWN:
            func(torch.empty(count, dtype=dtype, device="cpu"), *args, **kwargs)
            return
        few = count % _GROUP + _GROUP
        draws_a_group = _num_draws(func, 2 * _GROUP, dtype, args) - _num_draws(func, _GROUP, dtype, args)
        generator = kwargs.get("generator") or torch.default_generator
        _pass_over(generator, _num_draws(func, few, dtype, args) + (count - few) // _GROUP * draws_a_group)


def _num_draws(func: Any, count: int, dtype: torch.dtype, args: Any) -> int:
    """How many words of a generator a call takes; at most 624 of them."""
    generator = torch.Generator().manual_seed(0)
    func(torch.empty(count, dtype=dtype, device="cpu"), *args, generator=generator)
    return _State(generator).num_taken % NUM_WORDS


def _pass_over(generator: torch.Generator, num_draws: int) -> None:
    state = _State(generator)
    num_blocks, num_taken = divmod(state.num_taken + num_draws, NUM_WORDS)
    if num_taken == 0:  # new words are made when the next one is needed, not before
        num_blocks, num_taken = num_blocks - 1, NUM_WORDS
    state.words[:] = advance(state.words.astype(np.uint32), num_blocks)
    state.take(num_taken)
    generator.set_state(state.octets)


class _State:
    """What ``Generator.get_state`` of a CPU gives: a seed, how many words are left and which is next, 624 words of 8 bytes, and a
    normal number that is kept for later (``aten/src/ATen/CPUGeneratorImpl.cpp``)."""

    def __init__(self, generator: torch.Generator) -> None:
        self.octets = generator.get_state()
        self._raw = self.octets.numpy()
        self._left, self._next = self._raw[8:12].view(np.int32), self._raw[16:24].view(np.uint64)
        self.words = self._raw[24 : 24 + 8 * NUM_WORDS].view(np.uint64)

    @property
    def num_taken(self) -> int:
        """Of the words at hand; all of them where new ones are due, as after seeding."""
        return NUM_WORDS + 1 - int(self._left[0])

    def take(self, num_taken: int) -> None:
        self._left[0], self._next[0] = NUM_WORDS + 1 - num_taken, num_taken
