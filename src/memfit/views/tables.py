"""The tables of every view on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def block_of(console: Console) -> str:
    """What bars are made of."""
    return "#" if console.options.ascii_only else "█"


def plain_table(*headings: str) -> Table:
    """A table without lines; a heading that ends in ``>`` stands over figures, which line up on the right."""
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
        show_header=any(heading.strip(">") for heading in headings),
    )
    for heading in headings:
        table.add_column(heading.rstrip(">"), justify="right" if heading.endswith(">") else "left", overflow="fold")
    return table
