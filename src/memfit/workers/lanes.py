"""A lane: one worker process, which answers job after job. Also what this machine can do: its cores, and whether it can fork."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

CAN_FORK = sys.platform == "linux"
"""Windows has no fork; on macOS Apple's libraries do not survive one. There a worker answers one job and ends."""

CANCEL: Final = getattr(signal, "SIGUSR1", None) or signal.SIGTERM
"""Tells a worker to end the child that answers, and to go on; Windows, which has no such signal, ends the worker."""

IN_A_WORKER = "MEMFIT_IN_A_WORKER"
"""Set for worker processes: a file that compares when it is imported would start processes without end."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), "1")
"""The lanes share the cores among them, and a process without threads can be forked."""


class WorkerLane:
    """One worker, started when it is needed and again when it has died."""

    command: Sequence[str] = (sys.executable, "-m", "memfit.workers.worker", "memfit.predict.cells")
    """The worker, and the module whose ``work`` answers; named, so that this package needs none above it."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        if command is not None:
            self.command = command
        self._worker: subprocess.Popen[str] | None = None

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        if self._worker is not None and self._worker.poll() is not None:
            self.stop()
        worker = self._worker or self._start()
        assert worker.stdin is not None
        assert worker.stdout is not None
        with suppress(BrokenPipeError):
            worker.stdin.write(json.dumps(job) + "\n")
            worker.stdin.flush()
        said = worker.stdout.readline()
        if not said:
            status = worker.wait()
            self.stop()
            return {"error": died(status), "details": ""}
        if not CAN_FORK:
            self.stop()  # it is about to end by itself, and would not read another job
        found: dict[str, Any] = json.loads(said)
        return found

    def _start(self) -> subprocess.Popen[str]:
        self._worker = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=os.environ | _ONE_THREAD | {IN_A_WORKER: "1"},
            # Ctrl-C is ours to handle. Windows has groups of processes in place of sessions.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        return self._worker

    def cancel(self) -> None:
        """The job under way is answered at once, as one that died; the worker stays. Called from another thread."""
        worker = self._worker
        if worker is None:
            return
        if not CAN_FORK:
            self.stop()
            return
        with suppress(ProcessLookupError):
            os.kill(worker.pid, CANCEL)

    def stop(self) -> None:
        """Stops the worker and the child that it may be waiting for."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL) if hasattr(os, "killpg") else worker.kill()
        with suppress(BrokenPipeError), worker:  # closes its pipes and waits
            pass


def died(status: int) -> str:
    """Why a process gave no answer, in words."""
    killed = getattr(signal, "SIGKILL", None)  # Windows has none
    if killed is not None and status == -killed:
        return "its process was killed, most likely because the machine ran out of memory: try --jobs 1"
    if status < 0:
        return f"its process died of {signal.Signals(-status).name}"
    return f"its process ended with status {status} and no answer"


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
