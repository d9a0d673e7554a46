"""Signals to ``memfit watch`` and to the program that it watches: each reaches the program once, and ends it as if unwatched."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from attack.protocol import Attack, Fell, Limits, Tried
from memfit.watch.ending import SIGNALS, at_deadly_signals

NAMES = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT", "SIGINT", "SIGTERM")

PROGRAM = """
import select, signal, sys
def handle(number, frame):
    print(signal.Signals(number).name, flush=True)
for name in {names}:
    signal.signal(getattr(signal, name), handle)
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.1)[0]:
    pass
sys.exit(9)
"""
"""Has handlers, and ends when its input does. It does not wait for good: Python handles a signal that comes just before a call only
after the call."""


class Signals(Attack):
    name = "signals"
    promise = "a watched program has each signal once, keeps its handlers, and ends as it would unwatched"
    share = 0.7
    limits = Limits(cpu_seconds=30.0, memory_bytes=6 * 2**30)
    runs_programs = True

    def attempt(self, chance: Random, folder: Path) -> Tried:
        if chance.random() < 0.2:
            self._to_the_watcher(chance, folder)
            return Tried(commands=1)
        self._to_the_program(chance)
        return Tried()

    def _to_the_watcher(self, chance: Random, folder: Path) -> None:
        code = "import sys; from memfit.cli import main; sys.exit(main())"
        argv = [sys.executable, "-c", code, "watch", "--save-to", str(folder / "run.memfit"), sys.executable, "-c"]
        sent = [chance.choice(NAMES) for _ in range(chance.randint(1, 6))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        with subprocess.Popen([*argv, PROGRAM.format(names=NAMES)], **pipes) as process:
            heard = [process.stdout.readline().strip()]
            for name in sent:
                process.send_signal(getattr(signal, name))
                heard.append(process.stdout.readline().strip())
            heard += process.communicate()[0].split()
        if (heard, process.returncode) != (["ready", *sent], 9):
            raise Fell(f"sent {sent}, heard {heard}, status {process.returncode}")

    def _to_the_program(self, chance: Random) -> None:
        number, kind = chance.choice(SIGNALS), chance.choice(("nothing", "python", "c", "ignored", "later", "busy"))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _be_the_program(kind, number, writer)
        os.close(writer)
        with os.fdopen(reader) as told:
            if told.readline() != "ready\n":
                raise Fell(f"a program with {kind} did not begin")
            os.kill(child, number)
            said = told.read().split()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        expected = {
            "python": (["python"], 0),
            "later": (["python"], 0),
            "c": ([], 0),
            "ignored": ([], 0),
        }.get(kind, ([f"finished-{number.name}"], -number))
        if (said, status) != expected:
            raise Fell(f"{number.name} to a program with {kind}: it said {said} and ended with {status}, not {expected}")


def _be_the_program(kind: str, number: signal.Signals, writer: int) -> None:
    """Never returns. Says what it hears; after half a second without an end it leaves by itself."""

    def say(word: str) -> None:
        os.write(writer, f"{word}\n".encode())

    signal.setitimer(signal.ITIMER_PROF, 0)
    null = os.open(os.devnull, os.O_WRONLY)
    for known in SIGNALS:
        signal.signal(known, signal.SIG_DFL)
    if kind == "python":
        signal.signal(number, lambda *_: say("python"))
    elif kind == "ignored":
        signal.signal(number, signal.SIG_IGN)
    elif kind == "c":
        faulthandler.register(number, file=null)
    at_deadly_signals(lambda name: say(f"finished-{name}"), lambda name: say(f"abandoned-{name}"))
    if kind == "later":
        signal.signal(number, lambda *_: say("python"))
    say("ready")
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        if kind != "busy":
            time.sleep(0.01)
    os._exit(0)


ATTACK = Signals()
