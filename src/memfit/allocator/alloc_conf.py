"""Reading ``PYTORCH_CUDA_ALLOC_CONF``, as strictly as PyTorch does.

::

    "expandable_segments:True, roundup_power2_divisions:[256:1,512:2,>:4]"
     └──────── key ────┘ └value┘

A key that this version of PyTorch does not know, or a value it would refuse, is a ``ConfigError``. Keys that do not change what
the GPU's memory holds (those of pinned memory, of locks) are checked for being known and otherwise left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from memfit.allocator.settings import DEFAULT_TORCH_VERSION, NUM_DIVISIONS, AllocatorSettings, parse_version, version_text
from memfit.errors import ConfigError
from memfit.units import MIB

_ITEM = re.compile(r"(?P<key>[^:,\[\]]+):(?P<value>\[[^\[\]]*\]|[^:,\[\]]+)(?:,|$)")


def parse_alloc_conf(conf: str, torch_version: str = DEFAULT_TORCH_VERSION) -> AllocatorSettings:
    """Reads settings as that version of PyTorch would; an empty string means the defaults. Raises ``ConfigError``."""
    version = parse_version(torch_version)
    fields: dict[str, Any] = {}
    for key, value in _items(conf):
        _refuse_unknown(key, version)
        if key in _READERS:
            field, read = _READERS[key]
            try:
                fields[field] = read(value)
            except (ValueError, OverflowError) as error:
                raise ConfigError(f"{key}:{value} in the allocator's settings is not valid: {error}") from error
    _refuse_other_backends(fields.pop("backend", "native"))
    return AllocatorSettings(torch_version=torch_version, **fields)


def _items(conf: str) -> list[tuple[str, str]]:
    text = re.sub(r"\s", "", conf)
    items, position = [], 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None:
            raise ConfigError(f"cannot read the allocator's settings at {text[position:]!r}: write them like key:value,key:value")
        items.append((match["key"], match["value"]))
        position = match.end()
    return items


def _refuse_unknown(key: str, version: tuple[int, int]) -> None:
    known = sorted(name for name, since in _SINCE.items() if since <= version)
    if key not in _SINCE:
        raise ConfigError(f"unknown allocator setting {key!r}; torch {version_text(version)} knows {', '.join(known)}")
    if _SINCE[key] > version:
        needed = version_text(_SINCE[key])
        raise ConfigError(f"allocator setting {key!r} needs torch {needed}; {version_text(version)} knows {', '.join(known)}")


def _refuse_other_backends(backend: str) -> None:
    if backend != "native":
        raise ConfigError(
            f"backend:{backend} replaces PyTorch's caching allocator, which is the one memfit simulates: leave it out"
        )


# -- values ------------------------------------------------------------------------------------------------------------------


def _flag(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError("it must be True or False")
    return text == "True"


def _mebibytes(text: str) -> int:
    return _count(text) * MIB


def _count(text: str) -> int:
    if re.fullmatch(r"\d{1,18}", text) is None:
        raise ValueError("it must be a whole number")
    return int(text)


def _threshold(text: str) -> float:
    threshold = float(text)
    if threshold <= 0.0:
        raise ValueError("it must be above 0 and below 1")
    return threshold


def _divisions(text: str) -> tuple[int, ...]:
    """Reads one number for all sizes, or ``[256:1,512:2,>:4]``: divisions by size in MiB."""
    if not text.startswith("["):
        return (_power_of_two(text),) * NUM_DIVISIONS
    table = [0] * NUM_DIVISIONS
    last = -1
    for item in text[1:-1].split(","):
        size, colon, divisions = item.partition(":")
        if not colon:
            raise ValueError("its items must look like 256:1")
        value = 0 if divisions == "0" else _power_of_two(divisions)
        if size == ">":
            table[last + 1 :] = [value] * (NUM_DIVISIONS - last - 1)
            continue
        index = min(_power_of_two(size).bit_length() - 1, NUM_DIVISIONS - 1)
        if last < 0:
            table[:index] = [value] * index
        table[index] = value
        last = index
    return tuple(table)


def _power_of_two(text: str) -> int:
    number = _count(text)
    if number.bit_count() != 1:
        raise ValueError(f"{text} is not a power of two")
    return number


_READERS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "backend": ("backend", str),
    "expandable_segments": ("expandable_segments", _flag),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "large_segment_size_mb": ("large_segment_bytes", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
    "max_split_size_mb": ("max_split_bytes", _mebibytes),
    "per_process_memory_fraction": ("per_process_memory_fraction", float),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "throw_on_cudamalloc_oom": ("throw_on_cudamalloc_oom", _flag),
}

_SINCE: Final = {
    "backend": (2, 6),
    "expandable_segments": (2, 6),
    "expandable_segments_reserve": (2, 15),
    "expandable_segments_reserve_by_class": (2, 15),
    "garbage_collection_threshold": (2, 6),
    "graph_capture_record_stream_reuse": (2, 9),
    "large_segment_size_mb": (2, 11),
    "max_non_split_rounding_mb": (2, 6),
    "max_split_size_mb": (2, 6),
    "per_process_memory_fraction": (2, 10),
    "pinned_free_catch_all": (2, 11),
    "pinned_max_cached_size_mb": (2, 13),
    "pinned_max_round_threshold_mb": (2, 13),
    "pinned_num_register_threads": (2, 6),
    "pinned_reserve_segment_size_mb": (2, 10),
    "pinned_use_background_threads": (2, 6),
    "pinned_use_cuda_host_register": (2, 6),
    "pinned_use_hip_host_register": (2, 6),
    "release_lock_on_cudamalloc": (2, 6),
    "release_lock_on_hipmalloc": (2, 6),
    "roundup_power2_divisions": (2, 6),
    "throw_on_cudamalloc_oom": (2, 12),
}
"""Every key, with the first known version that has it."""
