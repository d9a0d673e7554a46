"""Text from a file, made safe to print.

A ledger may come from a stranger, and a module may have any name: escape sequences, line ends and marks that turn the direction of
writing are shown, not performed.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with everything that does not print as itself written as an escape: ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii") for char in text)
