"""What the documentation's site does that MkDocs does not do by itself.

Some pages lie outside ``docs/``, where people look for them: CONTRIBUTING.md, the tables of the benchmarks, the examples. They are
pages of the site too, and links to them are changed from what GitHub needs to what the site needs.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
OUTSIDE = (
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/results/*.md",
    "benchmarks/README.md",
    "benchmarks/truth/README.md",
    "examples/README.md",
    "examples/*/*.md",
    "examples/*/*.py",
    "examples/*/*.ipynb",
)
"""What becomes part of the site although it is not in docs/."""
EXAMPLE = ROOT / "docs" / "llama3-8b.memfit.gz"
"""The ledger of the command that README begins with. Its report page is part of the site."""


def outside_files() -> list[str]:
    """Their paths from the root of the repository."""
    return sorted(path.relative_to(ROOT).as_posix() for pattern in OUTSIDE for path in ROOT.glob(pattern))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in outside_files():
        made = File.generated(config, path, abs_src_path=str(ROOT / path))
        made.inclusion = made.inclusion.INCLUDED if path in _in_nav(config.nav) else made.inclusion.NOT_IN_NAV
        files.append(made)
    files.append(File.generated(config, "example-report.html", content=example_report()))
    return files


def example_report() -> str:
    """A real report, drawn by the page that this checkout has."""
    sys.path.insert(0, str(ROOT / "src"))
    try:
        from memfit.ledger import Ledger
        from memfit.views.html import render_page, study

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "llama3-8b.memfit")
            path.write_bytes(gzip.decompress(EXAMPLE.read_bytes()))
            return render_page([study("llama3-8b", Ledger.load(path))], path.name)
    finally:
        sys.path.pop(0)


def _in_nav(entries: Any) -> set[str]:
    """The pages that the menu names."""
    if isinstance(entries, str):
        return {entries}
    values = entries.values() if isinstance(entries, dict) else entries or []
    return {page for entry in values for page in _in_nav(entry)}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead where they lead on GitHub: from a file in the repository to a file in the repository."""
    source = page.file.src_uri
    if source == "cli.md":
        markdown = re.sub("<!-- the help of every command: .*-->", lambda _: help_of_every_command(), markdown)
    lies_in = os.path.dirname(source if source in outside_files() else f"docs/{source}")

    def on_site(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(lies_in, link["path"])).replace(os.sep, "/")
        uri = target.removeprefix("docs/")
        if files.get_file_from_path(uri) is None:
            return link[0]  # MkDocs says that it leads nowhere
        return f"]({os.path.relpath(uri, os.path.dirname(source) or '.').replace(os.sep, '/')}{link['anchor'] or ''})"

    return re.sub(r"\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)", on_site, markdown)


def help_of_every_command() -> str:
    """What ``--help`` prints, as Markdown."""
    os.environ["COLUMNS"] = "110"
    sys.path.insert(0, str(ROOT / "src"))
    try:
        from memfit.cli import COMMANDS, build_parser

        subparsers = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
        texts = {name: subparsers.choices[name].format_help() for name in COMMANDS}
    finally:
        sys.path.pop(0)
    return "\n\n".join(f"## memfit {name}\n\n```text\n{text}```" for name, text in texts.items())


class PlainDocstrings(griffe.Extension):
    """Docstrings mark a drawing or an example with ``::`` on a line of its own; Markdown needs only the indentation."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"::$", ":", re.sub(r"^::\n", "", obj.docstring.value, flags=re.M), flags=re.M)
