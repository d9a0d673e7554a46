"""The numbers of a file of rates that a measurement can change: each a leaf of the file's tables, with what it stands for."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

Path = tuple[str | int, ...]


class LeafKind(StrEnum):
    """What makes leaves of one kind larger or smaller together, from one card to another."""

    TIME = "time"
    """Seconds that are spent whatever there is to do, or for each row or place."""
    MEMORY = "memory"
    ARITHMETIC = "arithmetic"
    TENSOR_CORES = "tensor cores"


SECTIONS: Final = (
    "products", "attention", "elementwise", "compiled", "rows", "fill", "reduction", "softmax", "weight_norm", "layer_norm", "loss",
    "scan", "put_back", "embedding_backward", "indexing", "cat", "recurrent", "convolution", "depthwise",
    "batch_norm", "group_norm", "places", "factors",
)  # fmt: skip
"""Tables whose leaves are kernels' rates. The host's and those of transfers are read off directly."""

_MEMORY: Final = ("bandwidth", "memory_share", "filled_share", "copied_share", "turning_share", "adding_share")
_TENSOR_CORES: Final = (
    "power_share", "misaligned", "forward", "backward", "shares", "grouped_shares", "pointwise_shares", "image_shares",
    "step_share", "whole_share", "direct_teraflops",
)  # fmt: skip
_ARITHMETIC: Final = (
    "rate", "elements", "lookup_rate", "mask_rate", "written", "scattered_rate", "sorted_rate", "casting", "strided",
    "broadcast", "repeated", "turned", "slow", "slow_loop", "atomic_rate", "repeated_atomic_rate",
    "of_bool", "statistics", "planes", "normalizing_rate", "normalizing_planes", "cell_rate", "bias_rate", "turning", "slicing",
    "regrouping_rate", "warp_steps", "rows_per_us",
)  # fmt: skip
_TIMES: Final = ("_us", "_ns", "_ps", "seconds_per_row", "long", "long_odd")
_FIXED: Final = (
    "sustained_share", "splitting", "misaligned_images", "masked", "dropped", "num_kernels", "most_taps", "sharing", "threads",
)  # fmt: skip
"""Numbers that are measured otherwise, or that say where one kernel ends and another begins."""


@dataclass(frozen=True)
class Leaf:
    path: Path
    kind: LeafKind

    @property
    def section(self) -> str:
        return str(self.path[0])

    def value(self, tables: Mapping[str, Any]) -> float:
        found: Any = tables
        for key in self.path:
            found = found[key]
        return float(found)


def find_leaves(tables: Mapping[str, Any]) -> list[Leaf]:
    """All leaves of the tables of a file of rates that a measurement of kernels can change."""
    found = []
    for section in SECTIONS:
        for path, value in _numbers(tables[section], (section,)):
            kind = _kind(path)
            if kind is not None and math.isfinite(value) and value > 0:
                found.append(Leaf(path, kind))
    return found


def scaled(tables: Mapping[str, Any], factors: Mapping[Leaf, float]) -> dict[str, Any]:
    """A copy of the tables in which leaves are so many times as large. ``TIME`` is scaled like the others: by its own value."""
    sections = {leaf.section for leaf in factors}
    changed = {key: copy.deepcopy(table) if key in sections else table for key, table in tables.items()}
    for leaf, factor in factors.items():
        at: Any = changed
        for key in leaf.path[:-1]:
            at = at[key]
        at[leaf.path[-1]] = leaf.value(tables) * factor
    return changed


def in_proportion(tables: Mapping[str, Any], memory_bandwidth: float, f32_flops: float) -> dict[str, Any]:
    """The same shares of other peaks: figures in bytes and elements a second grow with the peaks that they are a part of."""
    by = {
        LeafKind.MEMORY: memory_bandwidth / (tables["memory_bandwidth"] * 1e9),
        LeafKind.ARITHMETIC: f32_flops / tables["f32_flops"],
    }
    factors = {
        leaf: by[leaf.kind] for leaf in find_leaves(tables) if leaf.kind in by and not any("share" in str(key) for key in leaf.path)
    }
    return scaled(tables, factors)


def brought_up_to_date(tables: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a card's file, which an older memfit may have made: what they lack is the template's, in proportion to their
    peaks, and what the template does not have any more is left out."""
    return _in_the_form_of(tables, in_proportion(template, tables["memory_bandwidth"] * 1e9, tables["f32_flops"]))


def _in_the_form_of(tables: Mapping[str, Any], form: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(form)
    for key in tables.keys() & form.keys():
        mine, theirs = tables[key], form[key]
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            found[key] = _in_the_form_of(mine, theirs)
        elif isinstance(mine, Mapping) == isinstance(theirs, Mapping) and isinstance(mine, list) == isinstance(theirs, list):
            found[key] = mine
    return found


def _numbers(value: Any, path: Path) -> Iterator[tuple[Path, float]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _numbers(each, (*path, key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for at, each in enumerate(value):
            yield from _numbers(each, (*path, at))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, float(value)


def _kind(path: Path) -> LeafKind | None:
    names = [str(key) for key in path]
    if any(name in _FIXED for name in names):
        return None
    if "tiles" in names:
        return LeafKind.TENSOR_CORES if path[-1] == 2 else None
    words = [name for name in names[1:] if not name.isdigit()] or names
    for name in reversed(words):
        if name.endswith(_TIMES) or name in _TIMES:
            return LeafKind.TIME
        if name in _MEMORY:
            return LeafKind.MEMORY
        if name in _ARITHMETIC:
            return LeafKind.ARITHMETIC
        if name in _TENSOR_CORES:
            return LeafKind.TENSOR_CORES
    return None
