"""The overlay that Python keeps, where the operating system gives none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memfit.overlay import calls, path_writers, sockets
from memfit.overlay.state import BY_PYTHON, declared
from memfit.overlay.union import Union
from memfit.torch_compat.patches import Patches


@contextmanager
def keeping_apart(store: str) -> Iterator[None]:
    """While it lasts, what this process and its forks write goes to ``store``, and is seen where it was meant to be."""
    union, patches = Union(store), Patches("the overlay of files")
    cwd = union.real.getcwd()
    try:
        sockets.install(patches.because("processes meet at sockets, which have paths"), union)
        calls.install(patches.because("files of before are kept as they are"), union)
        path_writers.install(patches.because("libraries that open paths themselves are given another"), union)
        with declared(BY_PYTHON):
            yield
    finally:
        patches.undo()
        if union.real.getcwd() != union.outside(union.real.getcwd()):
            union.real.chdir(cwd)  # it was in a directory that the run has made
