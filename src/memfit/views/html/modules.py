"""The tree of modules: what the script draws, and the same as a table."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from memfit.analysis import Family, ModuleNode, grow_tree
from memfit.units import format_bytes
from memfit.views.html.markup import Markup, dotted, element, table
from memfit.views.html.packing import Texts
from memfit.views.html.runs import Run
from memfit.views.words.moments import count

MAX_ROWS: Final = 400
_STRIP: Final = 1_000
"""The length of the strip that shows what a module's memory is made of."""


def modules_section(run: Run, number: int) -> Markup:
    return element(
        "section",
        element("h2", "Where it lives"),
        element("div", class_="modules", data_modules=number),
        element(
            "p",
            "Every bar is a module with all below it, as wide as what it holds. Click to descend; with the keyboard, arrows move, "
            "Enter descends, Escape goes back up. Parameters, gradients and the like are counted when each took most: they need "
            "not add up to the peak.",
            class_="quiet hint",
        ),
        _as_table(grow(run, merged=True)),
        class_="tree",
        aria_label="Where it lives: the modules",
    )


def grow(run: Run, *, merged: bool) -> list[ModuleNode]:
    return grow_tree(run.ledger, run.device_number, run.device.modules, merged=merged)


def pack_modules(run: Run, texts: Texts) -> dict[str, Any]:
    """The tree with the layers of a model as one, and with each by itself where that is another."""
    merged, single = grow(run, merged=True), grow(run, merged=False)
    trees = [("layers as one", merged), ("each layer", single)] if len(merged) < len(single) else [("", single)]
    measures = [("peak", "in use at the peak"), *((family.name.lower(), family.value) for family in Family)]
    return {
        "measures": [{"key": key, "label": label} for key, label in measures],
        "trees": [{"label": label} | _pack_tree(nodes, texts) for label, nodes in trees],
    }


def _pack_tree(nodes: list[ModuleNode], texts: Texts) -> dict[str, Any]:
    columns = [[node.bytes_at_peak for node in nodes], *([node.highest[family] for node in nodes] for family in Family)]
    peaks = {
        "on the device while its forward ran": [node.peak_forward_bytes for node in nodes],
        "on the device while its backward ran": [node.peak_backward_bytes for node in nodes],
    }
    return {
        "parents": [node.parent for node in nodes],
        "names": [texts.number(_name(node, nodes)) for node in nodes],
        "paths": [texts.number(node.path) for node in nodes],
        "kinds": [texts.number(_kind(node)) for node in nodes],
        "calls": [texts.number(f"{node.calls:,}") for node in nodes],
        "values": columns,
        "valueTexts": [texts.sizes(np.array(column, dtype=np.int64)) for column in columns],
        "peaks": [{"label": label, "texts": texts.sizes(np.array(column, dtype=np.int64))} for label, column in peaks.items()],
        "strips": [_strip(node) for node in nodes],
    }


def _name(node: ModuleNode, nodes: list[ModuleNode]) -> str:
    """The part of the path that the node above does not have."""
    above = nodes[node.parent].path if node.parent >= 0 else ""
    name = node.path.removeprefix(f"{above}.") if above else node.path
    return f"{name} × {node.num_modules:,}" if node.num_modules > 1 else name


def _kind(node: ModuleNode) -> str:
    return f"{count(node.num_modules, 'module')}{f', {node.kind}' if node.kind else ''}" if node.num_modules > 1 else node.kind


def _strip(node: ModuleNode) -> list[int]:
    """Where each family ends on a strip that stands for the node's memory at the peak."""
    ends = np.cumsum(list(node.at_peak.values()))
    return [round(end * _STRIP / max(int(ends[-1]), 1)) for end in ends.tolist()]


def _as_table(nodes: list[ModuleNode]) -> Markup:
    caption = "The modules as a table"
    headings = ("module", "class", "peak>", *(f"{family.value}>" for family in Family), "while forward>", "while backward>")
    rows = [
        (
            dotted(f"{node.path}{f' × {node.num_modules:,}' if node.num_modules > 1 else ''}"),
            node.kind,
            *(format_bytes(size) for size in (node.bytes_at_peak, *node.highest.values())),
            *(format_bytes(size) for size in (node.peak_forward_bytes, node.peak_backward_bytes)),
        )
        for node in nodes[:MAX_ROWS]
    ]
    remark = (
        "Parameters, gradients and the like are counted when each took most on the device; the last two are of the whole device."
    )
    return element("details", element("summary", caption), element("p", remark, class_="quiet"), table(caption, headings, rows))
