"""Facts in files, each with its source: a better figure is an edit of a table, not of a formula.

::

    gpus.toml      GPUs: memory, peaks, links       read by hardware/
    models.toml    models that are known by name    read by models/config.py
    cudnn.toml     versions and kernels of cuDNN    read by phantom/target.py and phantom/kernels/convolution/segments.py
    shares.toml    what others measured of a GPU's peaks    read by timing/shares.py
    collectives.toml    what NCCL reaches of links, and what runs beside pays    read by timing/links.py
    deterministic.toml  what sums in one order cost attention    read by timing/operators/attention.py
    rates/         what a measured GPU reaches of its peaks, a file for each    read by timing/rates.py
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from memfit.errors import ConfigError

FOLDER: Final = Path(__file__).parent

T = TypeVar("T")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises ``ConfigError`` where it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def parse_table(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """A dataclass of a table whose keys are its fields; nested tables become nested dataclasses.

    Raises ``ConfigError``, which begins with ``where``, for a key that is missing, unknown or of another type than its field.
    """
    assert dataclasses.is_dataclass(kind)
    hints, fields = _hints(kind), dataclasses.fields(kind)
    unknown = sorted(set(table) - {field.name for field in fields})
    missing = [field.name for field in fields if field.name not in table and _is_required(field)]
    if unknown or missing:
        said = [f"unknown key {', '.join(unknown)}"] * bool(unknown) + [f"{', '.join(missing)} is missing"] * bool(missing)
        raise ConfigError(f"{where}: {'; '.join(said)}")
    values = {name: _convert(hints[name], value, f"{where}, {name}") for name, value in table.items()}
    return kind(**values)


def table_of(value: Any) -> Any:
    """What ``parse_table`` reads as an equal dataclass. Fields that have their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(field.name, getattr(value, field.name), field.default) for field in dataclasses.fields(value)]
        return {name: table_of(each) for name, each, default in fields if each != default}
    if isinstance(value, Mapping):
        return {key: table_of(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [table_of(each) for each in value]
    return value.value if isinstance(value, Enum) else value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(kind: Any, value: Any, where: str) -> Any:
    if isinstance(kind, UnionType):  # a value that may be left out
        kind = next(part for part in get_args(kind) if part is not NoneType)
    origin, parts = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return parse_table(kind, value, where)  # type: ignore[arg-type]
    if origin is Mapping and isinstance(value, Mapping):
        return {key: _convert(parts[1], each, f"{where}, {key}") for key, each in value.items()}
    if origin is tuple and isinstance(value, list):
        kinds = (parts[0],) * len(value) if parts[-1] is Ellipsis else parts
        if len(kinds) == len(value):
            return tuple(_convert(each, item, where) for each, item in zip(kinds, value, strict=True))
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and issubclass(kind, Enum) and value in {member.value for member in kind}:
        return kind(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise ConfigError(f"{where}: {value!r} is not what is expected there ({getattr(kind, '__name__', kind)})")
