"""A fence around a process: it and everything that it starts can write to one folder, and nowhere else.

::

    open to write, delete, rename, truncate   ──> Landlock refuses it outside the folder (EACCES), whatever library or program asks
    chmod, chown, utime, extended attributes  ──> Landlock does not know them: a seccomp filter takes them and changes nothing
    io_uring, ioctls of file systems          ──> refused by the filter: they would go past both

Linux 5.13 and up, also for ordinary users and in most containers; x86-64 and 64-bit ARM. No writer is listed here: what is not
allowed is refused. Still writable are character devices (``/dev/null``, terminals) and ``/dev/shm``, where processes share memory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SHARED_MEMORY: Final = "/dev/shm"

# -- Landlock: linux/landlock.h ----------------------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_FOR_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_OF_FIRST_VERSION: Final = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""To write, remove and make, each kind of file."""

# -- seccomp: linux/seccomp.h, linux/filter.h, asm/unistd.h --------------------------------------------------------------------

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_KILL, _ERROR, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _EQUAL, _AT_LEAST, _SHIFT_RIGHT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x74, 0x54, 0x06
_CALL_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_TYPES_OF_FILE_SYSTEMS: Final = (0x66, 0x58, 0x94)
"""The second byte of the ioctls that change flags and attributes of files: ext4, XFS, Btrfs."""


@dataclass(frozen=True)
class _Architecture:
    """What the filter must know of a processor: its number, and those of its system calls."""

    number: int
    attributes: tuple[int, ...]
    """Calls that change modes, owners and times."""
    extended: tuple[int, ...]
    """Calls that change extended attributes."""
    truncate: int
    ioctl: int
    opens: tuple[tuple[int, int], ...]
    """Calls that open a file, with the number of the argument that holds the flags."""


_ARCHITECTURES: Final = {
    "x86_64": _Architecture(
        0xC000003E,
        (90, 91, 92, 93, 94, 132, 235, 260, 261, 268, 280, 452),
        (188, 189, 190, 197, 198, 199, 463, 466),
        76,
        16,
        ((2, 1), (257, 2)),
    ),
    "aarch64": _Architecture(0xC00000B7, (52, 53, 54, 55, 88, 452), (5, 6, 7, 14, 15, 16, 463, 466), 45, 29, ((56, 2),)),
}
_FILE_SETATTR, _IO_URING_SETUP, _OPENAT2 = 469, 425, 437
"""The same on every processor."""
_OTHER_CALLS_OF_X86: Final = 0x40000000
"""From this number on, x86-64 has a second set of calls."""


def enter(folder: str, outside: str) -> bool:
    """Puts up the fence around this process, which must have one thread, for good. ``outside`` is a file to prove it with.

    False where this system has no such fence, or one that does not hold; the process may then be half inside and must end.
    """
    architecture = _ARCHITECTURES.get(platform.machine())
    try:
        version = _version()
        if architecture is None or version < 1:
            return False
        _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        _restrict(folder, version)
        _filter(_program(architecture, knows_truncate=version >= 3))
        _prove(folder, outside)
    except OSError:
        return False
    return True


def _version() -> int:
    """Of Landlock; 0 where there is none."""
    try:
        return _system_call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_FOR_VERSION))
    except OSError:
        return 0


def _restrict(folder: str, version: int) -> None:
    rights = _OF_FIRST_VERSION | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("=Q", rights)
    ruleset = _system_call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for place in (folder, SHARED_MEMORY):
            _allow(ruleset, place, rights)
        for place in ("/dev/pts", *_character_devices()):
            _allow(ruleset, place, rights & (_WRITE_FILE | _TRUNCATE))
        _system_call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _character_devices() -> Iterable[str]:
    return [str(path) for path in Path("/dev").iterdir() if stat.S_ISCHR(path.lstat().st_mode)]


def _allow(ruleset: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    number = os.open(path, os.O_PATH)
    try:
        _system_call(
            _ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), struct.pack("=Qi", rights, number), ctypes.c_uint32(0)
        )
    finally:
        os.close(number)


# -- the filter --------------------------------------------------------------------------------------------------------------

Instruction = tuple[int, int, int, int]
"""Code, instructions to skip if true and if false, a number."""


def _program(architecture: _Architecture, *, knows_truncate: bool) -> list[Instruction]:
    """``knows_truncate``: does Landlock refuse to truncate files? Its first two versions do not."""
    taken = dict.fromkeys(architecture.attributes, _ERROR)  # error 0: the call seems to have worked
    taken |= dict.fromkeys((*architecture.extended, _FILE_SETATTR), _ERROR | errno.EOPNOTSUPP)
    taken[_IO_URING_SETUP] = _ERROR | errno.ENOSYS
    if not knows_truncate:
        taken |= {architecture.truncate: _ERROR | errno.EACCES, _OPENAT2: _ERROR | errno.ENOSYS}
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture.number),
        (_RETURN, 0, 0, _KILL),  # a program for another processor has other numbers
        (_LOAD, 0, 0, _CALL_AT),
        (_AT_LEAST, 0, 1, _OTHER_CALLS_OF_X86),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    ]
    for number, answer in taken.items():
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer)]
    program += _on_argument(
        architecture.ioctl,
        1,
        [
            (_SHIFT_RIGHT, 0, 0, 8),
            (_AND, 0, 0, 0xFF),
            *_returns(_TYPES_OF_FILE_SYSTEMS, _ERROR | errno.ENOTTY),
        ],
    )
    if not knows_truncate:  # who opens for reading alone may truncate all the same
        for call, argument in architecture.opens:
            flags = os.O_ACCMODE | os.O_TRUNC
            program += _on_argument(call, argument, [(_AND, 0, 0, flags), *_returns([os.O_TRUNC], _ERROR | errno.EACCES)])
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _on_argument(call: int, argument: int, then: list[Instruction]) -> list[Instruction]:
    """Instructions for the lower half of an argument of one call; all others are passed over."""
    body = [(_LOAD, 0, 0, _FIRST_ARGUMENT_AT + 8 * argument), *then, (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(body), call), *body]


def _returns(values: Iterable[int], answer: int) -> list[Instruction]:
    return [instruction for value in values for instruction in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, answer))]


def _filter(program: list[Instruction]) -> None:
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    kept = ctypes.create_string_buffer(code, len(code))
    _call("prctl", _SET_SECCOMP, _FILTER, struct.pack("@HP", len(program), ctypes.addressof(kept)), 0, 0)


# -- proof -------------------------------------------------------------------------------------------------------------------


def _prove(folder: str, outside: str) -> None:
    """Does outside what must not be possible, and inside what must be."""
    mode = os.stat(outside).st_mode
    os.chmod(outside, mode ^ 0o100)
    refused = 0
    for attempt in (
        lambda: os.open(outside, os.O_WRONLY),
        lambda: os.open(outside, os.O_RDONLY | os.O_TRUNC),
        lambda: os.truncate(outside, 0),
        lambda: os.unlink(outside),
        lambda: os.rename(outside, os.path.join(folder, "taken")),
    ):
        try:
            attempt()
        except PermissionError:
            refused += 1
        except OSError as error:
            refused += error.errno == errno.EXDEV
    if refused != 5 or os.stat(outside).st_mode != mode:
        raise OSError(errno.ENOTSUP, "the fence does not hold")
    inside = os.path.join(folder, "inside")
    os.close(os.open(inside, os.O_WRONLY | os.O_CREAT))
    os.unlink(inside)


# -- system calls ------------------------------------------------------------------------------------------------------------


def _call(name: str, *args: int | bytes) -> int:
    given = [ctypes.c_ulong(arg) if isinstance(arg, int) else arg for arg in args]
    return _checked(getattr(ctypes.CDLL(None, use_errno=True), name)(*given))


def _system_call(number: int, *args: object) -> int:
    return _checked(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *args))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
