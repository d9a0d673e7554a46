"""What a kernel that Inductor wrote does with its arguments, read off its source: which it reads and writes, and how often."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

_SIGNATURE = re.compile(r"^def \w+\((.*?)\):", re.MULTILINE | re.DOTALL)
_ACCESS = re.compile(r"tl\.(load|store|atomic_add)\((\w+)")
_LOOP = re.compile(r"^ *for \w*offset in ", re.MULTILINE)
_SLOW_FUNCTION = re.compile(r"\b(?:libdevice|tl_math|tl)\.(?:exp2?|log|tanh|erf|sin|cos|pow|sigmoid)\(")


@dataclass(frozen=True)
class TritonSource:
    """Of one kernel."""

    accesses: tuple[tuple[int, int], ...]
    """For each parameter: in how many places it is read, and in how many written."""
    has_slow_loop: bool
    """It goes through its rows piece by piece, and computes a function of every element that takes many instructions."""

    def elements(self, arguments: Sequence[Any]) -> int:
        """How often its body runs: the numbers that it is given are the sizes of its grid."""
        count = 1
        for value in arguments:
            if isinstance(value, int):
                count *= value
        return count

    def moved_bytes(self, arguments: Sequence[Any]) -> int:
        """A tensor that is read and written counts twice, one of which few elements are looked up by these alone."""
        elements, total = self.elements(arguments), 0
        for value, accesses in zip(arguments, self.accesses, strict=False):  # block sizes are not given
            if isinstance(value, torch.Tensor):
                total += sum(min(value.numel(), elements * places) for places in accesses) * value.element_size()
        return total


@lru_cache(maxsize=4096)
def read_source(source: str) -> TritonSource | None:
    """``None`` where it is not as Inductor writes it."""
    found = _SIGNATURE.search(source)
    if found is None:
        return None
    names = [parameter.split(":")[0].strip() for parameter in found[1].split(",")]
    counts = {name: [0, 0] for name in names}
    for what, name in _ACCESS.findall(source):
        if name in counts:
            counts[name][what != "load"] += 1
    return TritonSource(
        accesses=tuple((reads, writes) for reads, writes in counts.values()),
        has_slow_loop=bool(_LOOP.search(source) and _SLOW_FUNCTION.search(source)),
    )
