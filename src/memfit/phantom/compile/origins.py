"""Which kernel and which module a compiled graph's buffers are for, read off the wrapper that Inductor writes.

::

    buf3 = empty_strided_cuda(...)           the buffer is for the first kernel that is given it,
    triton_poi_fused_gelu_2.run(buf1, buf3)  and that kernel was made from operators of these modules
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

from memfit.phantom.compile.allocation import Origin

ALLOCATE = "empty_strided_cuda"
_ROOT = re.compile(r"^(?:[LG]\['?\w+'?\]|L__\w+?__)")
_MODULES = re.compile(r"\._modules\['([^']+)'\]|\['([^']+)'\]")


def label(source: str, nodes: Sequence[tuple[int, Any]], is_backward: bool, filename: str) -> tuple[CodeType, list[Origin]]:
    """The wrapper's code, in which each allocation says the number of its origin; and the origins.

    ``nodes`` has the nodes of the graph, each with the line from which on the wrapper is about it.
    """
    tree = ast.parse(source)
    lines = [line for line, _ in nodes]
    origins: list[Origin] = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        waiting: dict[str, ast.Call] = {}
        for statement in _statements(function.body):
            if (allocated := _allocated(statement)) is not None:
                waiting[allocated[0]] = allocated[1]
                continue
            used = waiting.keys() & {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            if used and (kernel := _kernel(statement)):
                position = bisect_right(lines, statement.lineno) - 1
                module = module_path(nodes[position][1]) if position >= 0 else ""
                for name in used:
                    waiting.pop(name).keywords.append(ast.keyword(arg="origin", value=ast.Constant(len(origins))))
                origins.append(Origin(kernel, module, is_backward))
    ast.fix_missing_locations(tree)
    return compile(tree, filename, "exec"), origins


def module_path(node: Any) -> str:
    """``layers.3.attention``, for a node that was traced there, seen from what was compiled."""
    meta = getattr(node, "meta", None) or {}
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    return _MODULES.sub(lambda found: f".{found[1] or found[2]}", _ROOT.sub("", path)).strip(".")


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        inner = getattr(statement, "body", None)
        if inner and not isinstance(statement, ast.FunctionDef):
            yield from _statements(inner)
        else:
            yield statement


def _allocated(statement: ast.stmt) -> tuple[str, ast.Call] | None:
    if (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Name)
        and statement.value.func.id == ALLOCATE
    ):
        return statement.targets[0].id, statement.value
    return None


def _kernel(statement: ast.stmt) -> str:
    """``triton_poi_fused_gelu_2`` for its launch, ``mm`` for the library's; nothing for what is no call."""
    value = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return ""
    parts = ast.unparse(value.func).split(".")
    return parts[-2] if parts[-1] in ("run", "default", "out") else parts[-1]
