"""The workspaces that cuBLAS keeps: blocks of known sizes that no tensor shows and that stay.

Source: ATen/cuda/CublasHandlePool.cpp (``getChosenWorkspaceSize``) and ATen/cuda/CUDABlas.cpp of torch. Each thread has one for
each stream, made when it is first needed: the program's own thread one, and autograd's another. So a block of such a size is taken
for a workspace only if it has no role, outlives the step that it was born in, and is the first that does on its stream, in forward
or in backward.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from memfit.units import KIB, MIB

_SMALL, _LARGE, _CUBLASLT = (4096 * 2 + 16 * 8) * KIB, 4096 * 8 * KIB, MIB


def workspace_sizes() -> frozenset[int]:
    """The sizes that such a block can have, in bytes."""
    chosen = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    pairs = re.findall(r":(\d+):(\d+)", chosen)
    own = {sum(int(size) * int(count) for size, count in pairs) * KIB} if pairs else {_SMALL, _LARGE}
    chosen_lt = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return frozenset(own | {int(chosen_lt) * KIB if chosen_lt.isdecimal() else _CUBLASLT})


_Block = TypeVar("_Block")


class KeptBlocks(Generic[_Block]):
    """Blocks that could be workspaces, until their step is over."""

    def __init__(self) -> None:
        self._waiting: list[tuple[_Block, tuple[int, int, bool]]] = []
        self._found: set[tuple[int, int, bool]] = set()

    def add(self, block: _Block, size: int, stream: int, *, is_backward: bool) -> None:
        key = size, stream, is_backward
        if key not in self._found:
            self._waiting.append((block, key))

    def take(self, stays: Callable[[_Block], bool]) -> Iterator[_Block]:
        """A step is over: the first of each kind that stays."""
        waiting, self._waiting = self._waiting, []
        for block, key in waiting:
            if key not in self._found and stays(block):
                self._found.add(key)
                yield block
