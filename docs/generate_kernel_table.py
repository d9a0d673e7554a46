"""Writes docs/kernels.md from the rules in memfit.phantom.kernels: ``python docs/generate_kernel_table.py``."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

from memfit.phantom.kernels import RULES, Rule

PAGE = Path(__file__).with_name("kernels.md")

INTRODUCTION = """# What runs on the GPU

<!-- Written by `python docs/generate_kernel_table.py` from the rules in src/memfit/phantom/kernels: change those instead. -->

There is one rule for each operator that CUDA treats differently from what torch itself tells of it, and one file of
`src/memfit/phantom/kernels` for each family. For an operator that is not listed, memfit assumes that CUDA runs it as torch composes
it, and that it takes no memory but that of its results.

* **runs**: what CUDA runs in place of an operator that torch composes of others;
* **returns**: the result, where torch does not know its shape or CUDA lays it out differently;
* **copies**: inputs that it copies before it makes its results, and frees afterwards;
* **takes**: what it takes from the allocator while it runs;
* **tries**: what a library takes once to find its fastest kernel, where the run asks for that;
* **keeps**: what a library keeps for good because of it.
"""

COLUMNS = ("runs", "returns", "copies", "takes", "tries", "keeps")
"""What a rule can say, by the names of its fields; a family's table shows those that one of its rules uses."""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for family, rules in RULES.families.items():
        module = importlib.import_module(f"memfit.phantom.kernels.{family}")
        columns = [column for column in COLUMNS if any(cell(rule, column) for rule in rules)]
        rows = [[operators(rule), *(cell(rule, column) for column in columns), rule.source] for rule in rules]
        lines = [["operator", *columns, "source"], ["---"] * (len(columns) + 2), *rows]
        parts += [f"## {family.capitalize()}", "", summary(module), "", *(f"| {' | '.join(line)} |" for line in lines), ""]
    return "\n".join(parts)


def operators(rule: Rule) -> str:
    return ", ".join(f"`{name}`" for name in rule.operators)


def cell(rule: Rule, column: str) -> str:
    """What a rule says about one thing: the first sentences of the function that knows it."""
    if column == "runs" and rule.is_one_kernel:
        return "As one kernel."
    function = getattr(rule, column)
    if function is None:
        return ""
    by_output = " Each output by itself." if column == "takes" and rule.by_output else ""
    assumed = " An estimate: predictions say so." if column == "takes" and rule.assumption else ""
    return f"{summary(function)}{by_output}{assumed}"


def summary(documented: object) -> str:
    """The first paragraph of a docstring, fit for a table."""
    text = inspect.getdoc(documented)
    if not text:
        raise ValueError(f"{documented} has no docstring: docs/kernels.md shows its first paragraph")
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
