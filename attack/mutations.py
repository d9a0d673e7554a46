"""Damage at random: to bytes, to columns of numbers, to plain data."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import numpy as np

NUMBERS = (
    *(0, 1, -1, 2, 7, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**47, 2**48 - 1, 2**48, 2**50),
    *(2**53, 2**57, 2**60, 2**62, 2**63 - 1, -(2**62), -(2**63)),
)
WORDS = (
    "",
    "cuda:0",
    "cuda:1",
    "cpu",
    "\0",
    "\n\r\t",
    "\x1b[31m",
    "é" * 50,
    "../../etc/passwd",
    "<script>",
    "=1+1",
    "a." * 300,
    "9" * 400,
)


def damage_bytes(chance: Random, data: bytes, other: bytes = b"") -> bytes:
    """Flips, replaces, inserts, removes, repeats, cuts off, or joins with another file, a few times."""
    content = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        _DAMAGES[chance.randrange(len(_DAMAGES))](chance, content, other)
    return bytes(content)


def _place(chance: Random, content: bytearray) -> int:
    # Files say what they are at their beginning: half of the damage goes there.
    return chance.randrange(min(len(content), chance.choice((64, 1024, len(content)))) or 1) if content else 0


def _flip(chance: Random, content: bytearray, other: bytes) -> None:
    if content:
        content[_place(chance, content)] ^= 1 << chance.randrange(8)


def _replace(chance: Random, content: bytearray, other: bytes) -> None:
    if content:
        content[_place(chance, content)] = chance.randrange(256)


def _replace_number(chance: Random, content: bytearray, other: bytes) -> None:
    width, place = chance.choice((1, 2, 4, 8)), _place(chance, content)
    number = chance.choice(NUMBERS) % (1 << (8 * width))
    content[place : place + width] = number.to_bytes(width, "little")


def _insert(chance: Random, content: bytearray, other: bytes) -> None:
    place = _place(chance, content)
    content[place:place] = chance.randbytes(chance.choice((1, 2, 8, 100)))


def _remove(chance: Random, content: bytearray, other: bytes) -> None:
    place = _place(chance, content)
    del content[place : place + chance.choice((1, 2, 8, 100, 4000))]


def _repeat(chance: Random, content: bytearray, other: bytes) -> None:
    start = _place(chance, content)
    piece = content[start : start + chance.choice((1, 8, 64, 512))]
    place = _place(chance, content)
    content[place:place] = piece * chance.choice((1, 2, 50))


def _cut(chance: Random, content: bytearray, other: bytes) -> None:
    del content[chance.randrange(len(content) + 1) :]


def _join(chance: Random, content: bytearray, other: bytes) -> None:
    start = chance.randrange(len(other) + 1)
    place = _place(chance, content)
    content[place:place] = other[start : start + chance.choice((8, 200, len(other)))]


_DAMAGES = (_flip, _flip, _replace, _replace, _replace_number, _replace_number, _insert, _remove, _repeat, _cut, _join)


def damage_columns(chance: Random, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Some numbers become others, extreme or another row's; rarely a column loses rows, its type or itself."""
    made = {name: column.copy() for name, column in columns.items()}
    for _ in range(chance.choice((1, 1, 2, 4))):
        name = chance.choice(sorted(made))
        column, kind = made[name], chance.random()
        if kind < 0.02:
            del made[name]
            if not made:
                return made
        elif kind < 0.04:
            made[name] = column[: chance.randrange(len(column) + 1)] if column.ndim else column
        elif kind < 0.06 and column.dtype.kind in "iu":
            made[name] = column.astype(chance.choice((np.float64, np.uint8, np.int16, np.uint64, bool)))
        elif kind < 0.08:
            made[name] = column.reshape(1, *column.shape)
        elif column.size and column.dtype.kind in "iu":
            place, flat = chance.randrange(column.size), column.reshape(-1)
            span = np.iinfo(column.dtype)
            number = chance.choice(
                (chance.choice(NUMBERS), int(flat[chance.randrange(column.size)]), chance.randrange(-2, len(flat) + 3))
            )
            flat[place] = min(max(number, span.min), span.max)
            if chance.random() < 0.2:
                flat[:] = flat[chance.sample(range(flat.size), flat.size)]
    return made


def damage_plain(chance: Random, value: Any) -> Any:
    """Plain data with some of its values replaced, removed, doubled, or put into each other."""
    made = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 2, 5))):
        made = _damage_one(chance, made)
        if _has_many_values(made):
            break  # doubled once more, it would be the attacker who takes too long
    return made


_MOST_VALUES = 2_000


def _has_many_values(value: Any) -> bool:
    """Counted as often as they would be written."""
    count, waiting = 0, [value]
    while waiting and count < _MOST_VALUES:
        inside = waiting.pop()
        count += 1
        waiting.extend(inside.values() if isinstance(inside, dict) else inside if isinstance(inside, list) else ())
    return count >= _MOST_VALUES


def _damage_one(chance: Random, value: Any) -> Any:
    inside = sorted(value, key=str) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    if not inside or chance.random() < 0.1:
        return _replacement(chance, value)
    key = chance.choice(inside)
    action = chance.random()
    if action < 0.7:
        value[key] = _damage_one(chance, value[key])
    elif action < 0.8:
        del value[key]
    elif action < 0.9 and isinstance(value, list):
        value.extend([value[key]] * chance.choice((1, 2, 300)))
    elif isinstance(value, dict):
        value[chance.choice(WORDS)] = value[key]
    else:
        value[key] = value[chance.choice(inside)]
    return value


def _replacement(chance: Random, value: Any) -> Any:
    if chance.random() < 0.5 and isinstance(value, int) and not isinstance(value, bool):
        return chance.choice((chance.choice(NUMBERS), value + chance.choice((-1, 1, 512)), value * 2, -value))
    nested: Any = value
    for _ in range(chance.choice((1, 5, 200))):
        nested = [nested]
    return chance.choice(
        (None, True, 0, 1.5, float("nan"), float("inf"), -(2**63), 2**64, "", [], {}, *WORDS, nested, {"": nested})
    )
