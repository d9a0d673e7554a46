"""What a script asserts of data holds in a run that goes well: ``assert labels.max() < vocabulary``."""

from __future__ import annotations

import ast
import functools
import linecache
from types import FrameType


def asserted(frame: FrameType) -> bool | None:
    """The truth value with which the ``assert`` that this frame is at passes; ``None`` where it is at none."""
    for first, last, value in _assertions(frame.f_code.co_filename):
        if first <= frame.f_lineno <= last:
            return value
    return None


@functools.cache
def _assertions(file: str) -> tuple[tuple[int, int, bool], ...]:
    """From which line to which each goes, and what its condition must be."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    return tuple(
        (node.lineno, node.test.end_lineno or node.lineno, not _is_negated(node.test))
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    )


def _is_negated(test: ast.expr) -> bool:
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
