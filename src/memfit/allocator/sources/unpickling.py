"""Reading a pickle from a stranger: plain containers, numbers and text; nothing that could run.

::

    bytes ──> are they all instructions that a snapshot has? ──> Python's unpickler, without classes and functions ──> lists, dicts
                 (one pass, at the speed of a regular expression)

Python's unpickler alone, even with nothing to call, does whatever it is told: it hashes what stands as a key, however deep, and
makes room for whatever number a value is given. So it is shown only what it can do no harm with. Tuples are pairs of small numbers,
as the names of memory pools are, so that no key takes long to hash; the numbers that values are remembered under are bounded.
Neither the check nor the unpickler recurses.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from typing import Any, Final, NoReturn

from memfit.reading import demand_memory

_BYTES_PER_BYTE: Final = 12
"""What a byte of a pickle of numbers and text becomes in memory, at most."""
_BYTES_PER_CONTAINER: Final = 120
"""What an empty list or dictionary takes in addition; each is one byte of a pickle."""


class HostilePickleError(ValueError):
    """The pickle asks for more than data."""


def unpickle_plain(data: bytes) -> Any:
    """The lists and dictionaries in a pickle; ``ValueError`` if it is damaged or holds anything else.

    ``RefusedFileError``, a ``ValueError`` too, if it would take more memory than memfit takes for a file. The same list or
    dictionary may stand in many places, so walking all of them may take longer than the file is long.
    """
    demand_memory(_BYTES_PER_BYTE * len(data) + _BYTES_PER_CONTAINER * (data.count(b"]") + data.count(b"}")))
    _check_instructions(data)
    return _unpickle(data)


def _unpickle(data: bytes) -> Any:
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except HostilePickleError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"{type(error).__name__}: {error}") from error


class _PlainUnpickler(pickle.Unpickler):
    """Knows no classes and no functions, so a pickle has nothing to call."""

    def find_class(self, module: str, name: str) -> NoReturn:
        what = f"{module[:100]}.{name[:100]}"
        raise HostilePickleError(f"it asks for {what}; a snapshot holds only numbers, text, lists and dictionaries")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise HostilePickleError("it refers to objects outside the file")


# -- instructions ------------------------------------------------------------------------------------------------------------


def _counted(code: bytes, lengths: tuple[int, ...]) -> bytes:
    """An instruction that is followed by a length, in this format, and by that many bytes."""
    return code + b"(?:" + b"|".join(b"%b.{%d}" % (re.escape(bytes([length])), length) for length in lengths) + b")"


_SMALL_NUMBER: Final = rb"K.|M..|J.{4}"
_PLAIN: Final = re.compile(
    b"(?:"
    + b"|".join(
        (
            rb"h.|j.{4}",  # a value that was there before
            rb"\x94",  # remember this one
            b"(?:" + _SMALL_NUMBER + rb"){2}\x86",  # a pair
            _SMALL_NUMBER,
            _counted(rb"\x8a", (6, 7, 5, 8, 4, 3, 9, 2, 1, 0)),  # a number of up to 64 bits and its sign
            rb"[\]}()eausN\x88\x89]",  # lists, dictionaries, the empty tuple, None, True, False
            _counted(rb"\x8c", tuple(range(256))),  # text
            rb"G.{8}",  # a number with a point
            rb"\x80[\x02-\x05]|\x95.{8}",  # the version, the length of what follows
            rb"q.|r..[\x00-\x3f]\x00",  # remember this one under a number, as older pickles do
        )
    )
    + b")*+",
    re.DOTALL,
)
"""As many instructions as there are before one that needs a closer look; the most frequent stand first."""

_LONGER: Final = {b"X": struct.Struct("<I"), b"\x8d": struct.Struct("<Q"), b"C": struct.Struct("<B"), b"B": struct.Struct("<I")}
"""Text and bytes, by the form of their lengths."""
_CALLS: Final = (b"c", b"\x93", b"P", b"Q")
"""What names a class, a function, or an object outside the file."""


def _check_instructions(data: bytes) -> None:
    at = 0
    while True:
        match = _PLAIN.match(data, at)
        at = match.end() if match is not None else at
        code = data[at : at + 1]
        if code == b".":
            return
        if code in _LONGER and at + 1 + _LONGER[code].size <= len(data):
            (length,) = _LONGER[code].unpack_from(data, at + 1)
            at = min(at + 1 + _LONGER[code].size + length, len(data))  # a longer one is cut short, which is told below
            continue
        if code in _CALLS:
            _unpickle(data)  # up to here it is harmless; it says itself what it asks for
        if at >= len(data) or data[at] in b"hjKMJ\x8a\x8cG\x80\x95qrXCB\x8d":
            raise ValueError("it is cut short, or has a number that no snapshot has")
        raise HostilePickleError(
            f"it has the instruction {data[at]:#04x}; a snapshot holds only numbers, text, lists and dictionaries"
        )
