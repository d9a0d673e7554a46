"""Exact answers: questions wait for a worker process, and are dropped when their window asks something else.

::

    ask(window, turn, question) ──> known already? ──> at once
                                └─> the window's earlier turns are cancelled ──> a free lane ──> answers.py, in a process of its own

A window numbers its questions. Requests of one window arrive on several connections, in any order: what cancels is the number, so
that an old question that comes late, or a goodbye to one, never ends the current one.

A lane imports torch once and forks for each question, so that a cancelled one costs nothing but its child. What was answered is
kept, the last ``MOST_ANSWERS`` of it, each with its ledger in a folder that goes with the server.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from memfit.compare.cache import CellCache
from memfit.ledger import Ledger
from memfit.serve.questions import Question
from memfit.serve.seen import see_file
from memfit.workers.lanes import WorkerLane, num_cores

MOST_ANSWERS: Final = 32
MOST_WAITING: Final = 64
"""Windows that may wait at the same time: more are told to come back."""
MOST_LANES: Final = 2
_CANCEL_AGAIN_SECONDS: Final = 0.1
_FAILED: Final = "memfit: error: "
"""What ``memfit run`` begins with where it tells of an error; the user's own lines follow."""
_MOST_LETTERS: Final = 8000
_IS_OVER: Final = {"error": "the server has ended", "details": ""}

COMMAND: Final = (sys.executable, "-m", "memfit.workers.worker", "memfit.serve.answers")


class CancelledQuestionError(Exception):
    """The window has asked something else, or is gone."""


class BusyError(Exception):
    """Too many windows wait already."""


class Waiting(NamedTuple):
    """The current question of a window."""

    turn: int
    task: asyncio.Task[dict[str, Any]]


class Known(NamedTuple):
    """An answer, and its ledger."""

    found: dict[str, Any]
    ledger: Path


class Desk:
    """Where exact answers are made."""

    def __init__(self, cache: CellCache | None, num_lanes: int | None = None) -> None:
        self._cache = cache
        self.folder = Path(tempfile.mkdtemp(prefix="memfit-serve-"))
        """Ledgers of answers, and configs that were dropped onto the page."""
        num_lanes = num_lanes or min(MOST_LANES, num_cores())
        self._free: asyncio.Queue[AnswerLane] = asyncio.Queue()
        self._lanes = [AnswerLane() for _ in range(num_lanes)]
        for lane in self._lanes:
            self._free.put_nowait(lane)
        self._threads = ThreadPoolExecutor(num_lanes, thread_name_prefix="memfit-lane")
        for lane in self._lanes:
            self._threads.submit(lane.warm_up)
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._asking: dict[str, Waiting] = {}
        self._numbers = itertools.count()
        self._ending: set[asyncio.Task[None]] = set()

    async def ask(self, window: str, turn: int, question: Question) -> dict[str, Any]:
        """What came out, in plain values. ``CancelledQuestionError`` where the window has asked something else meanwhile."""
        if (current := self._asking.get(window)) is not None and current.turn > turn:
            raise CancelledQuestionError
        self.leave(window, turn)
        if question.is_lasting and question.key in self._known:
            self._known.move_to_end(question.key)
            return self._known[question.key].found
        if len(self._asking) >= MOST_WAITING:
            raise BusyError
        task = asyncio.create_task(self._answer(question))
        self._asking[window] = waiting = Waiting(turn, task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise CancelledQuestionError from None
        finally:
            if self._asking.get(window) is waiting:
                del self._asking[window]

    def leave(self, window: str, turn: int) -> None:
        """Nobody waits any longer for what the window asked in this turn, or before it."""
        if (current := self._asking.get(window)) is not None and current.turn <= turn:
            del self._asking[window]
            current.task.cancel()

    def ledger_of(self, key: str) -> Path | None:
        """The ledger of an answer that is still known."""
        return self._known[key].ledger if key in self._known else None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for lane in self._lanes:
            lane.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def num_waiting(self) -> int:
        return len(self._asking)

    async def _answer(self, question: Question) -> dict[str, Any]:
        lane = await self._free.get()
        ledger = self.folder / f"{next(self._numbers)}.memfit"
        made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        work = functools.partial(lane.make, question, ledger, made_at)
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            found = await asyncio.shield(running)
        except asyncio.CancelledError:
            ending = asyncio.create_task(self._end(lane, running, ledger))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            raise
        except BaseException:
            self._free.put_nowait(lane)
            raise
        self._free.put_nowait(lane)
        if "error" not in found:
            self._keep(question, found, ledger)
        return found

    async def _end(self, lane: AnswerLane, running: asyncio.Future[Any], ledger: Path) -> None:
        """Cancels until the lane is free: a question that is only about to begin does not hear the first time. A ledger that was
        written all the same goes."""
        while not running.done():
            lane.cancel()
            await asyncio.wait({running}, timeout=_CANCEL_AGAIN_SECONDS)
        ledger.unlink(missing_ok=True)
        self._free.put_nowait(lane)

    def _keep(self, question: Question, found: dict[str, Any], ledger: Path) -> None:
        figures = found.pop("figures", None)
        asked = question.configuration
        if self._cache is not None and figures is not None and asked is not None and question.is_lasting:
            self._cache.keep(asked.to_json(), {"figures": figures, "sources": {}})
        if (earlier := self._known.pop(question.key, None)) is not None:
            earlier.ledger.unlink(missing_ok=True)
        self._known[question.key] = Known(found, ledger)
        while len(self._known) > MOST_ANSWERS:
            _, gone = self._known.popitem(last=False)
            gone.ledger.unlink(missing_ok=True)


class AnswerLane:
    """One worker process for configurations, or a ``memfit run`` for a script."""

    def __init__(self) -> None:
        self._worker = WorkerLane(COMMAND)
        self._script: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_warm = False
        self._is_over = False

    def warm_up(self) -> None:
        """Has the worker import torch, before anybody asks."""
        with self._lock:
            if not self._is_warm and not self._is_over:
                self._worker.answer({})
                self._is_warm = True

    def make(self, question: Question, ledger: Path, made_at: str) -> dict[str, Any]:
        """In a thread of its own; ends soon after ``cancel`` or ``stop``."""
        if question.configuration is None:
            return self._run_script(question, ledger)
        job = {"asked": question.configuration.to_json(), "ledger": str(ledger), "made_at": made_at}
        self.warm_up()
        with self._lock:
            return _IS_OVER if self._is_over else self._worker.answer(job)

    def cancel(self) -> None:
        """From another thread. A worker that is still importing has no question yet."""
        if self._is_warm:
            self._worker.cancel()
        if self._script is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._script.pid, signal.SIGKILL) if hasattr(os, "killpg") else self._script.kill()

    def stop(self) -> None:
        """For good: a question that is about to begin starts no worker, and one that is just starting is stopped too."""
        self._is_over = True
        self.cancel()
        while not self._lock.acquire(timeout=_CANCEL_AGAIN_SECONDS):
            self._worker.stop()
        self._worker.stop()
        self._lock.release()

    def _run_script(self, question: Question, ledger: Path) -> dict[str, Any]:
        """As ``memfit run`` does it: nothing that the script writes stays."""
        options = question.options
        flags = ["--gpu", options.gpu, "--world-size", str(options.world_size), "--out", str(ledger), "--json"]
        flags += ["--alloc-conf", options.alloc_conf] if options.alloc_conf else []
        script, *arguments = question.script
        words, folder = (Path(script).name, *arguments), Path(script).parent
        with tempfile.TemporaryFile() as errors:
            self._script = subprocess.Popen(
                [sys.executable, "-m", "memfit", "run", *flags, *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                start_new_session=True,
            )
            if self._is_over:
                self.cancel()
            self._script.communicate()
            status, self._script = self._script.returncode, None
            if status == 0:
                return {"seen": see_file(Ledger.load(ledger))}
            errors.seek(0)
            details = errors.read().decode(errors="replace")
        before, found, said = details.partition(_FAILED)
        line, _, rest = said.partition("\n") if found else ("the script failed", "", before)
        return {"error": line, "details": rest.strip("\n")[-_MOST_LETTERS:]}
