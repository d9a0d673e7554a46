"""``python -m memfit.workers.worker MODULE``: takes jobs from stdin, one JSON object per line, and answers each in a line on
stdout, with what the module's ``work`` makes of it.

Torch is imported once. Each job then runs in a child of its own, forked off before torch has computed anything, so that it finds
the world as a new process would. What the first child of a kind had to import, the worker imports after it, for all that follow:
the compiler alone is two seconds. Where forking is not safe, the worker does one job itself and ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from memfit.workers.forking import import_before_forking
from memfit.workers.lanes import CAN_FORK, CANCEL, died

Work = Callable[[dict[str, Any]], dict[str, Any]]


def main() -> None:
    work: Work = importlib.import_module(sys.argv.pop()).work  # user code that reads the command line finds nothing of ours
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
        if not CAN_FORK:
            print(json.dumps(work(job)), file=answers, flush=True)
            return
        answer, imported = _in_a_child(work, job)
        print(json.dumps(answer), file=answers, flush=True)
        _import_too(imported)


def _in_a_child(work: Work, job: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The answer, and which modules of torch and of memfit it took that this process has not imported."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(CANCEL, signal.SIG_DFL)
        try:
            with os.fdopen(writing, "w", encoding="utf-8") as pipe:
                known = set(sys.modules)
                answer = work(job)
                imported = [name for name in sys.modules if name not in known and name.partition(".")[0] in _OURS_AND_TORCH]
                json.dump({"answer": answer, "imported": imported}, pipe)
        finally:
            os._exit(0)
    os.close(writing)
    _UNDER_WAY.append(child)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    _UNDER_WAY.clear()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return _answer(said, status)


_OURS_AND_TORCH = ("torch", "memfit")
"""Packages that are the same for all jobs; a user's own files may differ from one to the next."""

_UNDER_WAY: list[int] = []
"""The child that answers, by its number."""


def _cancel(number: int, frame: object) -> None:
    for child in _UNDER_WAY:
        os.kill(child, signal.SIGKILL)


def _answer(said: str, status: int) -> tuple[dict[str, Any], list[str]]:
    try:
        found: dict[str, Any] = json.loads(said)
    except ValueError:
        return {"error": died(status), "details": ""}, []
    return found["answer"], found["imported"]


def _import_too(names: list[str]) -> None:
    if not names:
        return
    for name in names:
        with suppress(Exception):  # some stand in sys.modules by a name that cannot be imported
            importlib.import_module(name)
    gc.freeze()


if __name__ == "__main__":
    main()
