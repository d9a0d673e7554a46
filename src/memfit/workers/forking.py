"""Predicting in a child process, where a real GPU must be spared.

Torch knows one kind of accelerator, and takes the phantom GPU's kind for it from the first prediction until the process ends;
autograd then refuses the tensors of a real GPU. So on a machine with one, a prediction is made in a forked child, as the workers of
a data loader are, and what it found is handed back. What ``build`` changes outside itself stays in the child.

Windows has no fork, and on macOS Apple's libraries do not survive one: there this process itself predicts, with a warning.
"""

from __future__ import annotations

import multiprocessing
import pickle
import platform
import threading
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVar

import torch

from memfit.errors import ConfigError, PredictionError, StepFailedError
from memfit.torch_compat.fake_tensors import FakeTensorMode
from memfit.workers.lanes import CAN_FORK

Answer = TypeVar("Answer")

_AUTOGRAD_REFUSES: Final = "fork-based multiprocessing"
"""In what torch says where the parent's autograd has threads that a copy of it lacks."""

_SYSTEM_NAMES: Final = {"Darwin": "macOS"}

GPU_IS_LOST: Final = "can make predictions only in the process itself"
"""In the warning of a system without fork. The command line leaves it out: its process has nothing else to do."""


FORKING: Final = threading.Lock()
"""Held while a process is forked: on Python 3.12 and newer, the package filelock, which torch loads, refuses a fork during another
thread's."""


class TooLateToForkError(ConfigError):
    """This process has run autograd, so a forked child cannot."""


def _too_late() -> TooLateToForkError:
    return TooLateToForkError(
        "this process has used its GPU, and torch cannot run autograd in a copy of such a process: predict before the first "
        "work on the GPU, or in a process of its own (memfit predict FILE.py:FUNCTION)"
    )


def has_a_gpu_to_spare() -> bool:
    """True if there is a GPU that this process may want to use, and a child process could predict instead."""
    if not torch.accelerator.is_available():
        return False
    if not CAN_FORK:
        if torch.cuda.is_initialized():
            raise _too_late()
        system = platform.system()
        warnings.warn(
            f"{_SYSTEM_NAMES.get(system, system)} {GPU_IS_LOST}: after this, autograd in it refuses this machine's own GPU. "
            "To train on it, predict in another process: memfit predict FILE.py:FUNCTION",
            stacklevel=3,
        )
    return CAN_FORK


def import_before_forking() -> None:
    """The first mode without data makes torch import some hundred modules: here, and not in every child."""
    FakeTensorMode()


def in_a_child(make: Callable[[], Answer]) -> Answer:
    """Runs ``make`` in a forked child; returns or raises what it does. Leaves torch in this process as it is."""
    if torch.cuda.is_initialized():
        raise _too_late()
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_answer, args=(make, sender), daemon=True)
    with FORKING, warnings.catch_warnings():
        # A copy of a process with threads is safe as long as it starts none of theirs: see _answer.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    sender.close()
    try:
        found = pickle.loads(receiver.recv_bytes())
    except EOFError:
        child.join()
        raise PredictionError(
            f"the process that predicted died (exit status {child.exitcode}): is there enough memory on this machine?"
        ) from None
    child.join()
    if isinstance(found, BaseException):
        raise _too_late() if _AUTOGRAD_REFUSES in str(found) else found
    answer: Answer = found
    return answer


def _answer(make: Callable[[], Any], sender: Connection) -> None:
    torch.set_num_threads(1)  # the threads that shared the parent's work are not there
    found: Any
    try:
        found = make()
    except BaseException as error:
        found = error
    sender.send_bytes(pickle.dumps(sendable(found) if isinstance(found, BaseException) else found))


def sendable(error: BaseException) -> BaseException:
    """The error itself, or an equivalent one if it cannot be pickled."""
    if isinstance(error, StepFailedError):
        return StepFailedError(error.what, sendable(error.error), error.users_traceback, error.advice)
    try:
        same = str(pickle.loads(pickle.dumps(error))) == str(error)
    except Exception:
        same = False
    if same:
        return error
    return PredictionError(str(error)) if isinstance(error, PredictionError) else RuntimeError(f"{type(error).__name__}: {error}")
