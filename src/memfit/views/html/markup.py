"""HTML from Python, in which text cannot be anything but text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from memfit.views.escaping import printable


class Markup(str):
    """HTML that stands as it is. Any other string is text, and is escaped."""

    __slots__ = ()


_PARTS: Final = re.compile(r"(?<=[./])(?=\w)|(?<=[A-Za-z0-9]_)(?=\w)")
"""Places in a name at which a line may break."""

Child = Markup | str | Iterable["Markup | str"]
Attribute = str | int | float | bool | None


def element(name: str, *children: Child, **attributes: Attribute) -> Markup:
    """``element("td", "a < b", class_="n")``. An underscore in an attribute's name stands for a dash."""
    words = [name, *(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())]
    return Markup(f"<{' '.join(filter(None, words))}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """One after the other."""
    return Markup("".join(_html(child) for child in children))


def dotted(text: str, tag: str = "code", **attributes: Attribute) -> Markup:
    """A name of code, or where it is written; where there is little room, it breaks between its parts."""
    parts = _PARTS.split(text)
    return element(tag, *(join(Markup("<wbr>") if number else "", part) for number, part in enumerate(parts)), **attributes)


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[Child]], *, class_: str = "") -> Markup:
    """A heading that ends in ``>`` stands over figures. The first column names the row. The caption is for those who listen."""
    numeric = [heading.endswith(">") for heading in headings]
    head = element("tr", *(_heading(heading) for heading in headings))
    body = [element("tr", *(_cell(i, cell, numeric[i]) for i, cell in enumerate(row))) for row in rows]
    parts = (element("caption", caption, class_="quiet"), element("thead", head), element("tbody", *body))
    return element("div", element("table", *parts), class_=f"scroll {class_}".strip(), tabindex=0, role="group", aria_label=caption)


def _heading(heading: str) -> Markup:
    return element("th", heading.rstrip(">"), scope="col", class_="n" if heading.endswith(">") else None)


def _cell(column: int, cell: Child, numeric: bool) -> Markup:
    kind = "n" if numeric else None
    return element("td", cell, class_=kind) if column else element("th", cell, class_=kind, scope="row")


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    return name if value is True else f'{name}="{escape(printable(str(value)))}"'


def _html(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    return escape(printable(child)) if isinstance(child, str) else "".join(_html(part) for part in child)
