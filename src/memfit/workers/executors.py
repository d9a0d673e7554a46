"""Who predicts: processes of this machine, a Dask cluster, Slurm, or any ``concurrent.futures`` executor.

::

    processes:8            worker processes on this machine, torch imported once in each
    dask:tcp://host:8786   the workers of a Dask cluster
    slurm, slurm:32        jobs of a Slurm cluster, by submitit
    an Executor            whatever it runs on

Elsewhere, each thread that predicts has a process of its own for it: a prediction replaces parts of torch while it runs.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self

from memfit.errors import ConfigError
from memfit.workers.lanes import IN_A_WORKER, WorkerLane, num_cores

Job = dict[str, Any]
Answer = dict[str, Any]

_WAYS = "processes:8, dask:tcp://host:8786, slurm, or a concurrent.futures executor"
_SLURM_JOBS = 16
_SLURM_MINUTES = 30
_SLURM_FOLDER = "memfit_plan_jobs"
"""Where submitit writes what goes to a job and comes back: in the working directory, which all nodes must see."""


class Runner:
    """Takes jobs and returns futures of their answers."""

    def __init__(self, submit: Callable[[Job], Future[Answer]], num_lanes: int, close: Callable[[], None]) -> None:
        self._submit, self._close = submit, close
        self.num_lanes = num_lanes
        """Number of jobs worth running at a time."""

    def submit(self, job: Job) -> Future[Answer]:
        return self._submit(job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Stops running jobs."""
        self._close()


def open_runner(executor: str | Executor | None, num_jobs: int | None = None) -> Runner:
    """A runner by name, or around a user's executor; by default one worker process per core."""
    if os.environ.get(IN_A_WORKER):
        raise ConfigError(
            "memfit.compare() or memfit.plan() was called while a cell was being predicted: put the call under "
            "if __name__ == '__main__':, so that importing the file does not compare"
        )
    if executor is None or executor == "":
        return _on_this_machine(num_jobs or num_cores())
    if not isinstance(executor, str):
        if not hasattr(executor, "submit"):
            raise ConfigError(f"cannot predict with {executor!r}: use {_WAYS}")
        return _by(executor, num_jobs or num_cores(), lambda: None)
    kind, _, where = executor.partition(":")
    match kind:
        case "processes":
            return _on_this_machine(_count(where, executor) or num_jobs or num_cores())
        case "dask":
            return _by_dask(where, executor)
        case "slurm":
            return _by_slurm(_count(where, executor) or num_jobs or _SLURM_JOBS)
    raise ConfigError(f"unknown executor {executor!r}: use {_WAYS}")


def _count(text: str, executor: str) -> int:
    if not text:
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"cannot read executor {executor!r}: after the colon comes a number of at least 1, as in processes:8")
    return int(text)


# -- here -------------------------------------------------------------------------------------------------------------------------


def _on_this_machine(num_lanes: int) -> Runner:
    lanes = [WorkerLane() for _ in range(num_lanes)]
    free = list(lanes)
    lock = threading.Lock()
    pool = ThreadPoolExecutor(num_lanes)

    def answer(job: Job) -> Answer:
        with lock:
            lane = free.pop()
        try:
            return lane.answer(job)
        finally:
            with lock:
                free.append(lane)

    def close() -> None:
        pool.shutdown(wait=False, cancel_futures=True)
        for lane in lanes:
            lane.stop()

    return Runner(lambda job: pool.submit(answer, job), num_lanes, close)


# -- elsewhere --------------------------------------------------------------------------------------------------------------------

_OWN = threading.local()


def answer_in_own_process(job: Job) -> Answer:
    """Called wherever an executor runs it."""
    lane = getattr(_OWN, "lane", None)
    if lane is None:
        lane = _OWN.lane = WorkerLane()
        atexit.register(lane.stop)
    found: Answer = lane.answer(job)
    return found


def _by(executor: Any, num_lanes: int, close: Callable[[], None]) -> Runner:
    """Waits in a thread for a future that is not Python's own, such as submitit's."""
    waiting = ThreadPoolExecutor(num_lanes)
    asked: list[Any] = []

    def submit(job: Job) -> Future[Answer]:
        try:
            future = executor.submit(answer_in_own_process, job)
        except Exception as error:  # each library has its own: a queue that is not there, a limit of jobs
            if not asked:
                raise ConfigError(f"the executor takes no work: {error}") from error
            refused: Future[Answer] = Future()
            refused.set_exception(error)
            return refused
        asked.append(future)
        return future if isinstance(future, Future) else waiting.submit(future.result)

    def stop() -> None:
        for future in asked:
            with suppress(Exception):  # a job that is over cannot be cancelled, and each library says so in its own way
                future.cancel()
        waiting.shutdown(wait=False, cancel_futures=True)
        close()

    return Runner(submit, num_lanes, stop)


def _by_dask(address: str, executor: str) -> Runner:
    try:
        from distributed import Client
    except ImportError as error:
        raise ConfigError(f"{executor!r} needs Dask: pip install distributed") from error
    if not address:
        raise ConfigError(f"{executor!r} does not say where the cluster is: write it like dask:tcp://host:8786")
    try:
        client: Any = Client(address, timeout="10s")  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ConfigError(f"there is no Dask cluster at {address}: {error}") from error
    num_lanes = max(1, sum(client.nthreads().values()))
    return _by(client.get_executor(), num_lanes, client.close)


def _by_slurm(num_jobs: int) -> Runner:
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("executor 'slurm' needs submitit: pip install submitit") from error
    try:
        executor = submitit.AutoExecutor(folder=_SLURM_FOLDER, cluster="slurm")
    except RuntimeError as error:
        raise ConfigError(f"executor 'slurm' needs a machine from which jobs can be sent to Slurm: {error}") from error
    executor.update_parameters(timeout_min=_SLURM_MINUTES, cpus_per_task=1, name="memfit-plan")
    return _by(executor, num_jobs, lambda: None)
