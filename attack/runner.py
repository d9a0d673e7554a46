"""Repeats an attack in processes that may die.

::

    parent ──fork──> child: prepare, then case 0, 2, 4, ...  ──pipe──> "start 4", "held ...", "fell ..."
           ──fork──> child: prepare, then case 1, 3, 5, ...
              │
              └─ a child that dies, or says nothing for too long, has fallen in the case that it had started; another goes on
"""

from __future__ import annotations

import gc
import json
import os
import resource
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import BinaryIO

from attack.protocol import Attack, Fell, Tried

NUM_LANES = 2
MOST_FALLS = 10
"""Then the attack has shown enough."""


@dataclass
class Result:
    """What an attack came to."""

    attack: Attack
    cases: int = 0
    tried: Tried = field(default_factory=Tried)
    fallen: dict[int, str] = field(default_factory=dict)
    """The numbers of cases, and what happened."""
    seconds: float = 0.0


def run_attack(attack: Attack, seed: int, *, seconds: float | None, num_cases: int | None, only_case: int | None = None) -> Result:
    """Until the time is over, or so many cases are done."""
    result, start = Result(attack), time.monotonic()
    deadline = start + (seconds if seconds is not None else 10**9)
    last = only_case + 1 if only_case is not None else num_cases
    numbers = [only_case] if only_case is not None else range(NUM_LANES)
    lanes = [_Lane(attack, seed, number, NUM_LANES, deadline, last) for number in numbers]
    selector = selectors.DefaultSelector()
    for lane in lanes:
        lane.start(selector)
    while any(lane.running for lane in lanes):
        for key, _ in selector.select(timeout=0.5):
            key.data.listen(result)
        for lane in lanes:
            lane.watch(result, enough=len(result.fallen) >= MOST_FALLS)
            if lane.ended:
                lane.stop(selector, result)
                if not lane.finished and len(result.fallen) < MOST_FALLS and time.monotonic() < deadline:
                    lane.start(selector)
    result.seconds = time.monotonic() - start
    return result


class _Lane:
    """One child after the other."""

    def __init__(self, attack: Attack, seed: int, first: int, stride: int, deadline: float, last: int | None) -> None:
        self._attack, self._seed, self._stride, self._deadline, self._last = attack, seed, stride, deadline, last
        self._first = self._next = self._case = first
        self.running = self.ended = self.finished = False

    def start(self, selector: selectors.BaseSelector) -> None:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if not self._pid:
            os.close(reading)
            _be_the_child(self._attack, self._seed, self._numbers(), writing)
        os.close(writing)
        os.set_blocking(reading, False)
        self._pipe, self._rest = os.fdopen(reading, "rb", buffering=0), b""
        selector.register(self._pipe, selectors.EVENT_READ, self)
        self._heard = time.monotonic()
        self._prepared = False
        self.running, self.ended, self.finished = True, False, False

    def _numbers(self) -> Iterator[int]:
        """One at least, however long preparing took: an attack that tries nothing shows nothing."""
        number = self._next
        while (self._last is None or number < self._last) and (number == self._first or time.monotonic() < self._deadline):
            yield number
            number += self._stride

    def listen(self, result: Result) -> None:
        data = self._pipe.read(65536)
        if not data:
            self.ended = data == b""
            return
        self._heard = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            self._prepared = True
            if "start" in said:
                self._case = said["start"]
                self._next = self._case + self._stride
            elif "held" in said:
                result.cases += 1
                result.tried += Tried(**said["held"])
            elif "fell" in said:
                result.cases += 1
                result.fallen[self._case] = said["fell"]
            elif "done" in said:
                self.finished = True

    def watch(self, result: Result, *, enough: bool) -> None:
        """A child that is silent waits for something, or computes where Python cannot be interrupted."""
        if self.running and not self.ended and enough:
            os.kill(self._pid, signal.SIGKILL)
            self.finished = True
            return
        patience = self._attack.limits.wall_seconds if self._prepared else 300.0
        if self.running and not self.ended and time.monotonic() - self._heard > patience:
            os.kill(self._pid, signal.SIGKILL)
            result.fallen[self._case] = f"nothing was heard of it for {patience:.0f} s"

    def stop(self, selector: selectors.BaseSelector, result: Result) -> None:
        """The child has ended: well, or in the case that it had started."""
        selector.unregister(self._pipe)
        self._pipe.close()
        _, status = os.waitpid(self._pid, 0)
        self.running = self.ended = False
        died = os.waitstatus_to_exitcode(status)
        if died and not self.finished:
            name = signal.Signals(-died).name if died < 0 else f"status {died}"
            result.fallen.setdefault(self._case, f"the process ended with {name}")
            if not self._prepared:
                self.finished = True  # it would end there again


# -- the child ---------------------------------------------------------------------------------------------------------------


def _be_the_child(attack: Attack, seed: int, numbers: Iterator[int], pipe: int) -> None:
    """Never returns."""
    try:
        with os.fdopen(pipe, "wb", buffering=0) as out, tempfile.TemporaryDirectory(prefix="attack-") as name:
            folder = Path(name)
            os.chdir(folder)
            sys.dont_write_bytecode = True
            attack.prepare(folder)
            _say(out, {"prepared": True})
            _limit_memory(attack.limits.memory_bytes)
            if not attack.runs_programs:
                _forbid(folder)
            gc.freeze()
            for number in numbers:
                _say(out, {"start": number})
                _say(out, _attempt(attack, Random(f"{seed}/{attack.name}/{number}"), folder))
            _lift_limits()
            _say(out, {"done": True})
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(70)


def _attempt(attack: Attack, chance: Random, folder: Path) -> dict[str, object]:
    def ring(number: int, frame: object) -> None:
        raise TooLong

    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, attack.limits.cpu_seconds)
    try:
        tried = attack.attempt(chance, folder)
    except Fell as error:
        return {"fell": str(error)}
    except TooLong:
        return {"fell": f"it took more than {attack.limits.cpu_seconds:.0f} s of CPU time\n{traceback.format_exc()}"}
    except BaseException:
        return {"fell": traceback.format_exc()}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"held": vars(tried)}


class TooLong(BaseException):
    """Not an ``Exception``: nothing in memfit may mistake it for one of its own."""


def _say(out: BinaryIO, what: dict[str, object]) -> None:
    out.write(json.dumps(what).encode() + b"\n")


def _limit_memory(size_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _lift_limits() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


_EXECUTES = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "pty.spawn",
    "socket.connect",
    "pickle.find_class",
    "ctypes.dlopen",
)
_ASKS_FOR_GPUS = ("ctypes.dlopen", ("libnvidia-ml.so.1",))
"""A torch that is built for CUDA counts the GPUs so."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _forbid(folder: Path) -> None:
    """From here on nothing may be executed, and nothing written but in the folder."""
    allowed = (str(folder), os.devnull)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in _EXECUTES and (event, arguments) != _ASKS_FOR_GPUS:
            raise Executed(f"{event}: {arguments!r:.300}")
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
            where = os.path.abspath(os.fsdecode(arguments[0])) if isinstance(arguments[0], str | bytes) else ""
            if where and not where.startswith((*allowed, "/proc/", "/sys/")):
                raise Executed(f"it writes {where}")

    sys.addaudithook(hook)


class Executed(BaseException):
    """A file made memfit do something."""
