"""How results show themselves in a notebook and on a terminal, without knowing any view.

::

    a result (Ledger, Prediction, Comparison) is Drawn ──> draw by its class's name ──> a Drawing, registered by memfit.views

Results come first and views point at them, so a result cannot import its view. When the first of them is to be drawn, the module
that registers all drawings is loaded by its name.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

REGISTERED_IN: Final = "memfit.views.drawings"
"""Loaded by name, when something is drawn."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How one kind of result is drawn."""

    html: Callable[[Any], str]
    """For a notebook: markup that needs nothing else."""
    terminal: Callable[[Any, Console, ConsoleOptions], Iterable[RenderableType]]
    """For rich: what is printed, part by part."""


_DRAWINGS: dict[str, Drawing] = {}


def register(kind: str, drawing: Drawing) -> None:
    """Says how results of a class are drawn, by the name of the class: to register a prediction must not import torch."""
    _DRAWINGS[kind] = drawing


def drawing_of(result: object) -> Drawing:
    """How a result is drawn."""
    importlib.import_module(REGISTERED_IN)
    for kind in type(result).__mro__:
        if kind.__name__ in _DRAWINGS:
            return _DRAWINGS[kind.__name__]
    raise LookupError(f"it is not registered how a {type(result).__name__} is drawn: add it to {REGISTERED_IN}")


TEXT_WIDTH: Final = 120
"""Characters in a line, where no terminal says otherwise."""


def text_of(result: object) -> str:
    """What a terminal shows of a result, without colours."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=TEXT_WIDTH, color_system=None)
    console.print(result)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


class Drawn:
    """A result that can be displayed: in a notebook, by rich, and as text."""

    def __str__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str:
        return drawing_of(self).html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        return drawing_of(self).terminal(self, console, options)
