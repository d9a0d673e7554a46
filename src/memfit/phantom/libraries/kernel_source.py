"""Which tensors a Triton kernel may write to, read from its source: what is known of the data of the others stays known."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

_WRITERS = ("store", "atomic_", "descriptor_store", "async_", "inline_asm")
"""What writes, by how its name begins: ``tl.store``, ``tl.atomic_add``, ``descriptor.store``."""
_PURE = frozenset(("range", "min", "max", "abs", "float", "int", "len", "print", "static_range", "constexpr", "bool", "sum"))


@functools.cache
def written_parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    """The parameters through which it may write; ``None`` where its source does not tell."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
    if definition is None:
        return None
    return _Kernel(definition).written()


class _Kernel:
    """Follows pointers: from a parameter to the variables that are computed from it, to what is done with those."""

    def __init__(self, definition: ast.FunctionDef) -> None:
        arguments = definition.args
        self._body = definition.body
        self._from: dict[str, set[str]] = {
            argument.arg: {argument.arg} for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        }

    def written(self) -> frozenset[str]:
        while self._follow_assignments():
            pass
        found: set[str] = set()
        for call in self._nodes(ast.Call):
            found |= self._written_by(call)
        return frozenset(found)

    def _nodes(self, kind: type[ast.AST]) -> Iterator[Any]:
        return (node for statement in self._body for node in ast.walk(statement) if isinstance(node, kind))

    def _follow_assignments(self) -> bool:
        """Is anything new known?"""
        is_new = False
        pairs = [(target, node.value) for node in self._nodes(ast.Assign) for target in node.targets]
        pairs += [(node.target, node.value) for node in self._nodes(ast.AugAssign)]
        pairs += [(node.target, node.value) for node in self._nodes(ast.AnnAssign) if node.value is not None]
        pairs += [(node.target, node.iter) for node in self._nodes(ast.For)]
        for target, value in pairs:
            sources = self._sources(value)
            for name in (node.id for node in ast.walk(target) if isinstance(node, ast.Name)):
                known = self._from.setdefault(name, set())
                is_new = is_new or not sources <= known
                known |= sources
        return is_new

    def _sources(self, expression: ast.AST) -> set[str]:
        """The parameters that an expression is computed from; what is loaded from memory is no pointer to it."""
        if isinstance(expression, ast.Call) and _called(expression) == "load":
            return set()
        found = set(self._from.get(expression.id, ())) if isinstance(expression, ast.Name) else set()
        for part in ast.iter_child_nodes(expression):
            found |= self._sources(part)
        return found

    def _written_by(self, call: ast.Call) -> set[str]:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if isinstance(call.func, ast.Name):  # a function of the kernel's author
            return set() if call.func.id in _PURE else {name for value in given for name in self._sources(value)}
        if not _called(call).startswith(_WRITERS):
            return set()
        if _called(call).startswith("inline_asm"):
            return {name for value in given for name in self._sources(value)}
        target = call.func.value if isinstance(call.func, ast.Attribute) and self._sources(call.func.value) else None
        return self._sources(target) if target is not None else self._sources(given[0]) if given else set()


def _called(call: ast.Call) -> str:
    """``store`` of ``tl.store(...)``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
