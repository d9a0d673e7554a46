"""A prediction whose script cannot harm a file: it is made in a child process, all of whose writing is thrown away.

::

    memfit run ──> fork ──> the operating system's overlay ──> the script ──> the prediction, by a pipe
                        └─> or the one in Python, where the system gives none

The child is a copy of this process, so that nothing has to be imported twice; files that the script holds open, its threads and
what it wants done at exit end with it. Without fork (macOS) this process itself runs the script, on the overlay in Python.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, NoReturn, TypeVar

from memfit.errors import PredictionError, StepFailedError
from memfit.overlay import in_force, namespace
from memfit.overlay.in_python import keeping_apart
from memfit.overlay.state import BY_SYSTEM, declared
from memfit.overlay.store import temporary_store
from memfit.predict.child_process import CAN_FORK, sendable

Answer = TypeVar("Answer")


def harmlessly(make: Callable[[], Answer], *, by_system: bool = True) -> Answer:
    """What ``make`` returns or raises; what it writes is gone. ``by_system=False`` leaves the operating system out of it."""
    if sys.platform == "win32":
        return make()  # the overlay knows no drives; docs/predict.md says so
    with temporary_store() as store:
        if not CAN_FORK:
            with keeping_apart(store):
                return make()
        if by_system:
            with suppress(_NoOverlayError):
                return _in_a_child(lambda: _by_system(store), make)
        return _in_a_child(lambda: keeping_apart(store), make)


_LENGTH_BYTES: Final = 8


class _NoOverlayError(Exception):
    """The operating system gives none, or not all that the script asked of it."""


_BEYOND_THE_SYSTEM: Final = {
    errno.EXDEV: "it cannot rename a directory",
    errno.EOVERFLOW: "it cannot change files of another user",
    errno.ENOSPC: "what the script writes does not fit into memory",
}
"""What a real run can do and the operating system's overlay cannot always: the script is run again on the overlay in Python."""


def _by_system(store: str) -> AbstractContextManager[None]:
    if not namespace.enter(store):
        raise _NoOverlayError
    return declared(BY_SYSTEM)


def _beyond_the_system(error: BaseException) -> str:
    """Why an error is one of the operating system's overlay; empty if it is not."""
    cause: BaseException | None = error.error if isinstance(error, StepFailedError) else error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _BEYOND_THE_SYSTEM and in_force() == BY_SYSTEM:
            return _BEYOND_THE_SYSTEM[cause.errno]
        cause = cause.__cause__ or cause.__context__
    return ""


def _in_a_child(overlay: Callable[[], AbstractContextManager[None]], make: Callable[[], Answer]) -> Answer:
    """Forked by hand: a child of ``multiprocessing`` is not the main process, and scripts ask for that."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what torch's threads were to do has not begun
        child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(overlay, make, writer)
    os.close(writer)
    try:
        with open(reader, "rb") as answers:
            # No more than was announced: a process that the script has left behind may hold the pipe open.
            found = answers.read(int.from_bytes(answers.read(_LENGTH_BYTES)))
    finally:
        # After Ctrl-C too: the child has had it as well, and ends.
        _, status = os.waitpid(child, 0)
    if not found:
        code = os.waitstatus_to_exitcode(status)
        raise PredictionError(_how_it_died(code))
    said = pickle.loads(found)
    if isinstance(said, BaseException):
        raise said
    answer: Answer = said
    return answer


def _how_it_died(code: int) -> str:
    if code == -9:
        return "the process that ran the script was killed (signal 9): is there enough memory on this machine?"
    return f"the process that ran the script died ({f'signal {-code}' if code < 0 else f'exit status {code}'})"


def _answer(overlay: Callable[[], AbstractContextManager[None]], make: Callable[[], Any], writer: int) -> NoReturn:
    """In the child, which ends on top of the overlay: a thread that is left over may still write."""
    status = 1
    try:
        namespace.end_with_parent()
        found: Any
        try:
            entered = overlay()
            entered.__enter__()
            found = make()
        except BaseException as error:
            found = error
            if reason := _beyond_the_system(error):
                print(
                    f"memfit: the system's overlay of files is not enough ({reason}): once more, with the one in Python",
                    file=sys.stderr,
                )
                found = _NoOverlayError()
        sent = pickle.dumps(sendable(found) if isinstance(found, BaseException) else found)
        for left_over in multiprocessing.active_children():
            left_over.terminate()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        with open(writer, "wb") as answers:
            answers.write(len(sent).to_bytes(_LENGTH_BYTES))
            answers.write(sent)
        status = 0
    finally:
        os._exit(status)
