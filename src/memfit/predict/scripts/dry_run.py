"""A prediction whose script cannot harm a file: it is made in a child process, all of whose writing is thrown away.

::

    memfit run ──> fork ──> the operating system's overlay                        ──> the script ──> the prediction, by a pipe
                        └─> or a fence, with the overlay in Python inside it
                        └─> or, with --unprotected, the overlay in Python alone

The child is a copy of this process, so that nothing has to be imported twice; files that the script holds open, its threads and
what it wants done at exit end with it. Without fork (macOS) this process itself runs the script.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, BinaryIO, Final, NoReturn, TypeVar

from memfit.errors import ConfigError, PredictionError, StepFailedError, TerminatedError
from memfit.overlay import fence, in_force, namespace
from memfit.overlay.in_python import keeping_apart
from memfit.overlay.state import BY_FENCE, BY_NOBODY, BY_PYTHON, BY_SYSTEM, Keeper, declared
from memfit.overlay.store import temporary_store
from memfit.workers.forking import FORKING, sendable
from memfit.workers.lanes import CAN_FORK

Answer = TypeVar("Answer")


def choose_keeper(*, unprotected: bool = False) -> Keeper:
    """The best way that this system has to keep files as they are. Where it has none, ``unprotected`` says to go on all the same.

    Raises ``ConfigError`` where there is none and that was not said.
    """
    if (keeper := next(protecting_keepers(), None)) is not None:
        return keeper
    if not unprotected:
        raise ConfigError(
            "this system cannot keep a script from changing files (it gives neither mount namespaces nor Landlock): "
            "--unprotected runs it all the same, with the writes of Python and torch thrown away and all others real"
        )
    return BY_NOBODY if sys.platform == "win32" else BY_PYTHON


def protecting_keepers() -> Iterator[Keeper]:
    """Those that this system has and that promise to change no file, the best first. Found out by trying, in child processes."""
    for keeper in (BY_SYSTEM, BY_FENCE) if CAN_FORK else ():
        with suppress(_NoOverlayError):
            _in_a_new_store(keeper, lambda: None)
            yield keeper


def in_dry_run(make: Callable[[], Answer], keeper: Keeper) -> Answer:
    """What ``make`` returns or raises; what it writes is gone, as far as the keeper promises."""
    if keeper is BY_NOBODY:
        return make()  # the overlay knows no drives; docs/predict.md says so
    if not CAN_FORK:
        with temporary_store() as store, _entered(keeper, store):
            return make()
    try:
        return _in_a_new_store(keeper, make)
    except _NoOverlayError:
        with suppress(_NoOverlayError):
            return _in_a_new_store(BY_FENCE, make)
    raise PredictionError(
        "this system has no second way to keep files as they are (Landlock): --write lets the script write for real"
    )


class _NoOverlayError(Exception):
    """The operating system gives none, or not all that the script asked of it."""


def _in_a_new_store(keeper: Keeper, make: Callable[[], Answer]) -> Answer:
    with temporary_store() as store:
        return _in_a_child(lambda: _entered(keeper, store), make)


def _entered(keeper: Keeper, store: str) -> AbstractContextManager[Any]:
    """Files are kept apart from here on; the fence and the system's overlay stay until the process ends."""
    with ExitStack() as stack:
        if keeper is BY_SYSTEM:
            if not namespace.enter(store):
                raise _NoOverlayError
        else:
            kept, outside = os.path.join(store, "kept"), os.path.join(store, "outside")
            os.mkdir(kept)
            if keeper is BY_FENCE:
                os.close(os.open(outside, os.O_WRONLY | os.O_CREAT, 0o600))
                if not fence.enter(kept, outside):
                    raise _NoOverlayError
            stack.enter_context(keeping_apart(kept))
        stack.enter_context(declared(keeper))
        return stack.pop_all()


_LENGTH_BYTES: Final = 8


_BEYOND_THE_SYSTEM: Final = {
    errno.EXDEV: "it cannot rename a directory",
    errno.EOVERFLOW: "it cannot change files of another user",
    errno.ENOSPC: "what the script writes does not fit into memory",
}
"""What a real run can do and the operating system's overlay cannot always: the script is run again behind the fence."""


def _beyond_the_system(error: BaseException) -> str:
    """Why an error is one of the operating system's overlay; empty if it is not."""
    if in_force() is not BY_SYSTEM:
        return ""
    numbers = [cause.errno for cause in _causes(error) if isinstance(cause, OSError)]
    return next((_BEYOND_THE_SYSTEM[number] for number in numbers if number in _BEYOND_THE_SYSTEM), "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What the script met, and what led to that."""
    cause: BaseException | None = error.error if isinstance(error, StepFailedError) else error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


_REFUSED: Final = ("permission denied", "readonly", "read-only", "cannot be opened", "unable to open")
"""What libraries say where they may not write."""


def _may_be_the_fence(error: BaseException) -> bool:
    """Also where a program misses a file that this process sees: Python has written it, and other programs do not see that."""
    if in_force() is not BY_FENCE:
        return False
    missed = [cause.filename for cause in _causes(error) if isinstance(cause, FileNotFoundError)]
    return any(word in str(error).lower() for word in _REFUSED) or any(name and os.path.exists(name) for name in missed)


def _in_a_child(overlay: Callable[[], AbstractContextManager[Any]], make: Callable[[], Answer]) -> Answer:
    """Forked by hand: a child of ``multiprocessing`` is not the main process, and scripts ask for that."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what torch's threads were to do has not begun
        with FORKING:  # left in the child too
            child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(overlay, make, writer)
    os.close(writer)
    try:
        with open(reader, "rb") as answers:
            found = _read_answer(answers, child)
    finally:
        # After a second Ctrl-C too: the child has had it as well, and ends.
        _, status = os.waitpid(child, 0)
    if not found:
        code = os.waitstatus_to_exitcode(status)
        raise PredictionError(_how_it_died(code))
    said = pickle.loads(found)
    if isinstance(said, BaseException):
        raise said
    answer: Answer = said
    return answer


def _read_answer(answers: BinaryIO, child: int) -> bytes:
    """What the child says. After Ctrl-C it tells what it has seen; a second one ends it."""
    is_stopping = False
    while True:
        try:
            # No more than was announced: a process that the script has left behind may hold the pipe open.
            return answers.read(int.from_bytes(answers.read(_LENGTH_BYTES)))
        except KeyboardInterrupt as error:
            if is_stopping:
                os.kill(child, signal.SIGKILL)
                raise
            is_stopping = True
            if isinstance(error, TerminatedError):
                os.kill(child, signal.SIGTERM)
            elif not _is_in_the_foreground():  # a terminal tells all processes in its foreground by itself
                os.kill(child, signal.SIGINT)
            print("memfit: stopped; what was seen is worked out (Ctrl-C once more leaves at once)", file=sys.stderr, flush=True)


def _is_in_the_foreground() -> bool:
    """True if Ctrl-C on a terminal reaches this process and its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False  # there is none: a service, a job, a notebook
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def _how_it_died(code: int) -> str:
    if code == 0:
        return (
            "the process that ran the script ended without an answer: the script replaced it by another program or left by os._exit"
        )
    if code == -9:
        return "the process that ran the script was killed (signal 9): is there enough memory on this machine?"
    return f"the process that ran the script died ({f'signal {-code}' if code < 0 else f'exit status {code}'})"


def _answer(overlay: Callable[[], AbstractContextManager[Any]], make: Callable[[], Any], writer: int) -> NoReturn:
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
                    f"memfit: the system's overlay of files is not enough ({reason}). Once more: {BY_FENCE.before}", file=sys.stderr
                )
                found = _NoOverlayError()
            elif _may_be_the_fence(error):
                print(
                    "memfit: in this dry run C libraries and other programs may not write, and do not see what Python "
                    "has written: if that is why the script failed, leave that out, or let it write for real (--write)",
                    file=sys.stderr,
                )
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
