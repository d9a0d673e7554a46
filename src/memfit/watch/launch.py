"""Running a command whose Pythons are watched, or train with a plan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import memfit
from memfit.errors import ConfigError
from memfit.watch.settings import VARIABLE, WatchSettings

STARTUP = Path(__file__).parent / "startup"


def program_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment in which every Python looks at these variables as it starts: ``MEMFIT``, ``MEMFIT_PLAN``."""
    home = Path(memfit.__file__).parent.parent
    folders = [str(STARTUP), *([str(home)] if home.name != "site-packages" else []), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder)}


_HANDED_ON: Final = tuple(
    getattr(signal, f"SIG{name}")
    for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "XCPU")
    if hasattr(signal, f"SIG{name}")
)
_BY_THE_KERNEL: Final = 0x80
"""Of a signal that a terminal sends: to every process in its foreground, so the command has it already."""


def run_watched(command: Sequence[str], settings: WatchSettings) -> int:
    """Runs a command to its end with its Pythons watched; gives its exit status, as a shell would."""
    return run_command(command, program_environment({VARIABLE: settings.to_text()}))


def run_command(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command to its end; gives its exit status, as a shell would. Signals are handed on to it, each once."""
    can_wait = hasattr(signal, "sigwaitinfo")  # Linux
    waited = {*_HANDED_ON, signal.SIGCHLD} if can_wait else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited) if can_wait else set()
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            preexec_fn=(lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)) if can_wait else None,
        )
        status = _wait_and_hand_on(process, waited) if can_wait else _wait(process)
    except OSError as error:
        raise ConfigError(f"cannot run {command[0]!r} ({error.strerror}): write the command as you would without memfit") from error
    finally:
        if can_wait:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return status if status >= 0 else 128 - status


def _wait_and_hand_on(process: subprocess.Popen[bytes], waited: set[signal.Signals]) -> int:
    while (status := process.poll()) is None:
        received = signal.sigwaitinfo(waited)
        if received.si_signo != signal.SIGCHLD and received.si_code != _BY_THE_KERNEL:
            process.send_signal(received.si_signo)
    return status


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Where nothing says who sent a signal: SIGINT is taken to come from the terminal, which has told the command too."""
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def python_command(command: Sequence[str]) -> list[str]:
    """A command as it was written; a script alone is run by this Python."""
    if command and command[0].endswith(".py"):
        return [sys.executable, *command]
    return list(command)
