"""The overlay that Python keeps, where the operating system gives none: so that scripts see what they have written.

It holds back what goes through Python's file functions and the writers in ``path_writers.py``, and promises nothing about other
ways to write: for those there is the fence.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from memfit.overlay import calls, path_writers, sockets
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
        _lead_temporary_files(patches.because("other programs and libraries find temporary files under the same path"), union)
        yield
    finally:
        patches.undo()
        if union.real.getcwd() != union.outside(union.real.getcwd()):
            union.real.chdir(cwd)  # it was in a directory that the run has made


def _lead_temporary_files(patches: Patches, union: Union) -> None:
    union.real.mkdir(union.temporary)
    patches.replace_item(os.environ, "TMPDIR", union.temporary)
    patches.replace(tempfile, "tempdir", union.temporary)
    # Rust code that writes into the cache itself; the Python code that it replaces is led to the overlay.
    patches.replace_item(os.environ, "HF_HUB_DISABLE_XET", "1")
