"""``python -m memfit.workers.worker MODULE``: takes jobs from stdin, one JSON object per line, and answers each in a line on
stdout, with what the module's ``work`` makes of it.

Torch is imported once. Each job then runs in a child of its own, forked off before torch has computed anything, so that it finds
the world as a new process would. Where forking is not safe, the worker does one job itself and ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from memfit.workers.forking import import_before_forking
from memfit.workers.lanes import CAN_FORK, CANCEL, died

Work = Callable[[dict[str, Any]], dict[str, Any]]


def main() -> None:
    work: Work = importlib.import_module(sys.argv[1]).work
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stdout.fileno())  # what the user's code prints is no answer
    os.dup2(silence, sys.stderr.fileno())
    if CAN_FORK:
        signal.signal(CANCEL, _cancel)
        import_before_forking()
        gc.freeze()  # no child need look for garbage in what is there already
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(_in_a_child(work, job) if CAN_FORK else work(job)), file=answers, flush=True)
        if not CAN_FORK:
            return


def _in_a_child(work: Work, job: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(CANCEL, signal.SIG_DFL)
        try:
            with os.fdopen(writing, "w", encoding="utf-8") as pipe:
                json.dump(work(job), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    _UNDER_WAY.append(child)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    _UNDER_WAY.clear()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return _answer(said, status)


_UNDER_WAY: list[int] = []
"""The child that answers, by its number."""


def _cancel(number: int, frame: object) -> None:
    for child in _UNDER_WAY:
        os.kill(child, signal.SIGKILL)


def _answer(said: str, status: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(said)
    except ValueError:
        return {"error": died(status), "details": ""}
    return found


if __name__ == "__main__":
    main()
