"""A file of the family: head, policy, style and script around what a page shows.

Nothing leaves it: the content policy allows the one script and the one style that are in it, known by their hashes, and no request
to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from memfit import __version__
from memfit.views.html.markup import Markup, element


def document(title: str, subtitle: str, main: Sequence[Markup], *, origin: str = "", packed: str = "") -> str:
    """One HTML file. ``origin`` says when and by which command its subject was made; ``packed`` is what the script draws."""
    script, style = _built("page.js"), _built("page.css")
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    head = (
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        element("title", f"{title} – memfit"),
        Markup(f"<style>{style}</style>"),
    )
    origins = [element("p", origin, class_="quiet origin")] if origin else []
    body = (
        element("header", element("h1", title), element("p", subtitle, class_="quiet"), *origins),
        element("noscript", element("p", "The drawings need JavaScript; the tables do not.", class_="alarm")),
        element("main", *main),
        element("footer", element("p", f"memfit {__version__}", class_="quiet")),
        *([Markup(f'<script id="packed" type="application/octet-stream">{packed}</script>')] if packed else []),
        Markup(f"<script>{script}</script>"),
    )
    return f"<!doctype html>\n{element('html', element('head', *head), element('body', *body), lang='en')}\n"


def _built(name: str) -> str:
    return (files("memfit.views.html") / "built" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
