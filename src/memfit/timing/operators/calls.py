"""``Call``: one call of an operator, as its price needs to know it, without data or torch; ``Cost``: what it costs.

::

    mm bf16[4096,1024] bf16[1024,4096]@1,1024 > bf16[4096,4096]
    _foreach_add_ (3*f32[1024,1024],f32[1024]) 1.0 >

A tensor is its type, its shape and, where it is not contiguous, its strides after ``@``. A list of tensors is in parentheses; what
repeats is counted. A tensor on the host has ``h:`` before it, one in pinned memory ``p:``. What is after ``>`` came out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Final

TYPE_BYTES: Final = {
    "f64": 8,
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "f8": 1,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u8": 1,
    "bool": 1,
    "c64": 8,
    "c128": 16,
}
"""Types by the names that calls have for them. Both kinds of float8 are one: they cost the same."""


@dataclass(frozen=True)
class Operand:
    """A tensor that an operator is given or makes."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    """``None`` where it is contiguous."""
    device_kind: str = ""
    """Empty on the GPU, ``h`` on the host, ``p`` in pinned memory of the host."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        return TYPE_BYTES[self.dtype]

    @property
    def size_bytes(self) -> int:
        return self.numel * self.item_bytes

    @cached_property
    def touched_bytes(self) -> int:
        """What memory has to deliver: a dimension that is expanded (stride 0) is read once."""
        if self.stride is None:
            return self.size_bytes
        count = math.prod(size for size, step in zip(self.shape, self.stride, strict=True) if step != 0)
        return count * self.item_bytes

    @property
    def is_dense(self) -> bool:
        """Does it fill a stretch of memory, in whatever order?"""
        if self.stride is None:
            return True
        steps = sorted((step, size) for size, step in zip(self.shape, self.stride, strict=True) if size > 1)
        expected = 1
        for step, size in steps:
            if step != expected:
                return False
            expected *= size
        return True

    def __str__(self) -> str:
        kind = f"{self.device_kind}:" if self.device_kind else ""
        strides = "" if self.stride is None else "@" + ",".join(map(str, self.stride))
        return f"{kind}{self.dtype}[{','.join(map(str, self.shape))}]{strides}"


Scalar = bool | int | float | str | None
Argument = Operand | tuple["Argument", ...] | Scalar


@dataclass(frozen=True)
class Call:
    """An operator with what it is given and what it makes."""

    operator: str
    """As a rule writes it, ``mm``, ``sum.dim_IntList``; with its namespace where that is not aten's: ``c10d::allreduce_``."""
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:
        return tuple(_operands(self.arguments))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:
        return tuple(_operands(self.results))

    @property
    def name(self) -> str:
        """Without its overload."""
        return self.operator.partition(".")[0]

    def operand(self, index: int) -> Operand:
        """The argument at this place, which is a tensor."""
        found = self.arguments[index]
        if not isinstance(found, Operand):
            raise TypeError(f"argument {index} of {self.operator} is no tensor")
        return found

    def __str__(self) -> str:
        before = " ".join((self.operator, *map(_format, self.arguments)))
        return " ".join((before, ">", *map(_format, self.results)))

    @classmethod
    def parse(cls, text: str) -> Call:
        """Reads what ``str`` wrote."""
        words, (before, after) = text.split(" "), ([], [])  # type: tuple[list[str], tuple[list[str], list[str]]]
        side = before
        for word in words[1:]:
            if word == ">":
                side = after
            elif word:
                side.append(word)
        return cls(words[0], tuple(map(_parse, before)), tuple(map(_parse, after)))


def _operands(arguments: tuple[Argument, ...]) -> Iterator[Operand]:
    for argument in arguments:
        if isinstance(argument, Operand):
            yield argument
        elif isinstance(argument, tuple):
            yield from _operands(argument)


def _format(argument: Argument) -> str:
    if argument is None:
        return "-"
    if isinstance(argument, bool):
        return "T" if argument else "F"
    if isinstance(argument, tuple):
        runs = [(text, len(list(same))) for text, same in groupby(map(_format, argument))]
        return "(" + ";".join(f"{count}*{text}" if count > 1 else text for text, count in runs) + ")"
    return str(argument)


_OPERAND: Final = re.compile(r"(?:([hp]):)?(\w+)\[([\d,]*)\](?:@([\d,]*))?")


def _parse(text: str) -> Argument:
    if text in ("-", "T", "F"):
        return {"-": None, "T": True, "F": False}[text]
    if text.startswith("("):
        return tuple(_parse_list(text[1:-1]))
    if match := _OPERAND.fullmatch(text):
        kind, dtype, shape, stride = match.groups()
        return Operand(dtype, _integers(shape), None if stride is None else _integers(stride), kind or "")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _parse_list(text: str) -> Iterator[Argument]:
    depth, start = 0, 0
    for at, letter in enumerate(text + ";"):
        depth += (letter == "(") - (letter == ")")
        if letter == ";" and depth == 0:
            word, start = text[start:at], at + 1
            if word:
                count, star, rest = word.partition("*")
                repeated = star and count.isdigit()
                yield from (_parse(rest if repeated else word),) * (int(count) if repeated else 1)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


class Bound(StrEnum):
    """What keeps a kernel from being faster."""

    ARITHMETIC = "arithmetic"
    MEMORY = "memory"
    LINK = "link"
    HOST = "host"
    NOTHING = "nothing"
    """It launches no kernel."""


@dataclass(frozen=True)
class Cost:
    """Of one call, on one GPU."""

    operator: str
    seconds: float
    """On its stream; 0 where nothing is launched."""
    bound: Bound
    num_kernels: int = 1
    looks_first: bool = False
    """Before its kernels are issued, the host looks at numbers that are on the GPU, and waits for them."""
    flops: float = 0.0
    """Of products and attention, as they are usually counted: two for a multiplication and an addition."""
    moved_bytes: float = 0.0
    tokens: int = 0
    """How many places of an embedding were looked up."""
    flops_type: str = ""
    """The type that the products were in."""
    assumption: str = ""
    """What had to be assumed to price it."""


NOTHING: Final = Cost("", 0.0, Bound.NOTHING, num_kernels=0)
