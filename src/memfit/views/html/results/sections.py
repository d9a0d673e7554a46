"""Parts that the pages of results share."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.views.html.markup import Child, Markup, element, join
from memfit.views.words.moments import count


def headline(text: str, *, fits: bool | None = None) -> Markup:
    """The answer; green, red, or neither where it is no verdict."""
    kind = {True: " fits", False: " fails", None: ""}[fits]
    return element("section", element("h2", text, class_=f"answer{kind}"), class_="verdict")


def sentences(lines: Sequence[str]) -> Markup:
    return element("ul", *(element("li", line) for line in lines), class_="remarks") if lines else join()


def section(title: str, *children: Child) -> Markup:
    return element("section", element("h2", title), *children, aria_label=title)


def folded(what: str, lines: Sequence[str]) -> Markup:
    """Lines that are shown when their number is clicked; nothing where there are none."""
    if not lines:
        return join()
    inside = element("ul", *(element("li", line) for line in lines))
    return element("details", element("summary", count(len(lines), what)), inside, class_="assumptions")
