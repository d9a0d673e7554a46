"""Running a command with its Pythons watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import memfit
from memfit.errors import ConfigError
from memfit.watch.settings import VARIABLE, WatchSettings

STARTUP = Path(__file__).parent / "startup"


def watched_environment(settings: WatchSettings) -> dict[str, str]:
    """The environment in which every Python watches itself."""
    home = Path(memfit.__file__).parent.parent
    folders = [str(STARTUP), *([str(home)] if home.name != "site-packages" else []), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, VARIABLE: settings.to_text(), "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder)}


def run_watched(command: Sequence[str], settings: WatchSettings) -> int:
    """Runs a command to its end; gives its exit status, as a shell would. Signals are handed on to it."""
    try:
        process = subprocess.Popen(command, env=watched_environment(settings))
    except OSError as error:
        raise ConfigError(f"cannot run {command[0]!r} ({error.strerror}): write the command as you would without memfit") from error

    def hand_on(number: int, frame: Any) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def python_command(command: Sequence[str]) -> list[str]:
    """A command as it was written; a script alone is run by this Python."""
    if command and command[0].endswith(".py"):
        return [sys.executable, *command]
    return list(command)
