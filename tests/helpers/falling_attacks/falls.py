"""One fall a case, in the order of ``FALLS``; then a case that holds."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

from attack.commands import Said, checked
from attack.protocol import Attack, Fell, Limits, Tried


def fall() -> None:
    raise Fell("a promise was not kept")


def raise_something() -> None:
    raise KeyError("something")


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def compute_forever() -> None:
    while True:
        pass


def wait_forever() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])
    signal.pause()


def take_memory() -> None:
    bytearray(3 * 2**30)


def execute() -> None:
    os.system("true")


def unpickle() -> None:
    pickle.loads(b"cos\ngetpid\n.")


def write_elsewhere() -> None:
    Path(__file__).with_name("written").write_text("")


def show_a_traceback() -> None:
    checked(Said(("show",), 1, "", "Traceback (most recent call last):\n"))


def refuse_at_length() -> None:
    checked(Said(("show",), 2, "", "memfit: error: a\nb\n"))


def leave() -> None:
    raise SystemExit(0)


FALLS: tuple[Callable[[], None], ...] = (
    *(fall, raise_something, die, compute_forever, wait_forever, take_memory, execute, unpickle, write_elsewhere),
    *(show_a_traceback, refuse_at_length, leave),
)


class Falls(Attack):
    name = "falls"
    promise = "nothing, on purpose"
    number = int(os.environ.get("FALL", len(FALLS)))
    # A second of processor time may take long where many share it; only the case that waits for ever has to be given up soon.
    limits = Limits(cpu_seconds=1.0, wall_seconds=5.0 if number == FALLS.index(wait_forever) else 300.0)

    def attempt(self, chance: Random, folder: Path) -> Tried:
        if self.number < len(FALLS):
            FALLS[self.number]()
        else:
            subprocess.run(["true"], check=True)
            (folder / "written").write_text("")
        return Tried(files=1, commands=1, refused=1)


ATTACK = Falls()
