"""All that was measured as one TOML file: the card, how it was measured, and the rates of ``data/rates``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

HEAD = """# A card, measured by `memfit calibrate`: use it anywhere with --gpu and this file's path.
# [gpu] is as in memfit's data/gpus.toml, [calibration] says how it was measured, all else is as in data/rates/h200.toml.
"""


def to_toml(tables: Mapping[str, Any]) -> str:
    """The text of a file. Tables of tables are written with headers, all else in one line."""
    return HEAD + "\n" + "\n".join(_lines(tables, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not _is_long(value)}
    if path and (plain or not table):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        if _is_long(value):
            yield from _lines(value, (*path, key))


def _is_long(value: Any) -> bool:
    """Tables with tables in them, or with many keys."""
    return isinstance(value, Mapping) and (len(value) > 6 or any(isinstance(each, Mapping) for each in value.values()))


def _key(key: str) -> str:
    return key if key and all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "inf" if math.isinf(value) else repr(float(f"{value:.6g}"))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(str(value), ensure_ascii=False)
