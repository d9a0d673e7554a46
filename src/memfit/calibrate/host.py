"""The host's pace, and copies between host and card, as tables of a file of rates."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, Final

from memfit.hardware import GIGA

ADAMW_LISTS: Final = 9
"""Operators on lists in a step of AdamW."""

DIRECT: Final = {
    ("operators", "mm"): "operator mm",
    ("operators", "sum"): "operator sum",
    ("operators", "_to_copy"): "operator to",
    ("operators", "native_dropout"): "operator dropout",
    ("operators", "native_layer_norm"): "operator layer_norm",
    ("operators", "empty"): "operator empty",
    ("operators", "_local_scalar_dense"): "item",
    ("view",): "operator view with grad",
    ("node",): "backward view",
}
"""What one measured case is the whole of."""
USUAL: Final = ("mul", "silu", "cat", "clone", "softmax")
UNSCALED: Final = ("launch", "gap", "days", "in_forward", "in_inference", "in_backward")
"""Ratios, and what is the card's: another host does not change them."""


def host_table(measured: Mapping[str, float], template: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, and all else in proportion: by the median of how much slower than the template this host is."""
    found: dict[str, Any] = dict(template)
    direct = {path: measured[case] for path, case in DIRECT.items() if case in measured}
    usual = [measured[f"operator {name}"] for name in USUAL if f"operator {name}" in measured]
    if usual:
        direct["usual",] = statistics.median(usual)
    recorded = [
        measured[f"operator {name} with grad"] - measured[f"operator {name}"]
        for name in USUAL
        if f"operator {name}" in measured and f"operator {name} with grad" in measured
    ]
    if recorded:
        direct["recorded",] = max(statistics.median(recorded), 0.1)
    direct |= _line(measured, "optimizer adamw", ADAMW_LISTS, "list_base", "list_item")
    direct |= _line(measured, "optimizer adamw fused", 1, "fused_base", "fused_item")
    if not direct:
        return found
    pace = statistics.median(value / _at(template, path) for path, value in direct.items())
    found = scaled_host(found, pace)
    for path, value in direct.items():
        _set(found, path, round(value, 3))
    return found


def scaled_host(table: Mapping[str, Any], by: float) -> dict[str, Any]:
    """A copy of a host's table in which everything that it spends is so many times as long."""
    found: dict[str, Any] = _scaled(dict(table), by)
    return found


def transfer_table(copies: Mapping[str, float], template: Mapping[str, Any]) -> dict[str, Any]:
    """Of copies; ``pinned_share`` stays, because the link's rate is made from the same measurement."""
    found = dict(template)
    for key in ("pageable_to", "pageable_from"):
        if key in copies:
            found[key] = round(copies[key] / GIGA, 3)
    if "host_bandwidth" in copies:
        found["host_bandwidth"] = round(copies["host_bandwidth"] / GIGA, 2)
    return found


def _line(measured: Mapping[str, float], case: str, lists: int, base: str, item: str) -> dict[tuple[str, ...], float]:
    """Microseconds that a step takes for few parameters and for many, as a base and a share of each."""
    few, many = measured.get(f"{case}, 10 parameters"), measured.get(f"{case}, 150 parameters")
    if few is None or many is None or many <= few:
        return {}
    each = (many - few) / 140 / lists
    return {(item,): each, (base,): max(few / lists - 10 * each, 0.1)}


def _at(table: Mapping[str, Any], path: tuple[str, ...]) -> float:
    found: Any = table
    for key in path:
        found = found[key]
    return float(found)


def _set(table: dict[str, Any], path: tuple[str, ...], value: float) -> None:
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value


def _scaled(value: Any, by: float) -> Any:
    if isinstance(value, Mapping):
        return {key: each if key in UNSCALED else _scaled(each, by) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scaled(each, by) for each in value]
    return round(value * by, 3)
