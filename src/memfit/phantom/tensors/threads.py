"""Brings threads that a script starts into the world.

::

    Thread.start, executor.submit     the thread (or the pool's worker, for this one task) enters the world's dispatch modes, and
        │                             leaves them when it is done: modes belong to one thread in torch
        ├─ one at a time              fake tensors and the recorder are not made for several threads: from the first one on, the
        │                             modes take a lock for each operator; a run without threads pays nothing
        ├─ what a thread raises       is printed as Python does, and named: the run goes on. Only what memfit itself refuses there
        │                             fails the prediction, unless the script reads it from the future
        └─ a thread from before       that works on the phantom GPU is refused: what it allocates would not be seen

A thread that is still at work when the world is left finds its modes switched off, and the GPU gone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from memfit.errors import PredictionError
from memfit.phantom.tensors.mode import PhantomMode, WorldIsOverError
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.dispatch import TorchDispatchMode, flags_of_modes, has_kernel, put_flags_back
from memfit.torch_compat.fake_tensors import FakeTensor, device_query
from memfit.torch_compat.patches import Patches

_FACTORIES = ("empty.memory_format", "empty_strided")
"""Every tensor of a device begins with one of these."""


LONGEST_WAIT_SECONDS = 5.0
"""Seconds that the end of a prediction waits for running threads."""


class Threads:
    """The threads in one world."""

    def __init__(self, mode: PhantomMode, assumptions: Assumptions) -> None:
        self._mode = mode
        self._assumptions = assumptions
        self._turn = threading.RLock()
        self._is_shared = False
        self._is_over = False
        self._inside: set[int] = set()
        self._guests: list[Any] = []
        self._flags: dict[str, bool] = {}
        self._failures: list[tuple[str, BaseException]] = []
        self._unread: dict[int, tuple[Future[Any], BaseException]] = {}
        self._refusal: PredictionError = WorldIsOverError()
        self._tasks: set[Future[Any]] = set()
        self._threads: set[threading.Thread] = set()

    def begin(self) -> None:
        """Called before the first thread enters the world."""
        self._inside.add(threading.get_ident())
        self._flags = flags_of_modes()

    def invite(self, guest: Any) -> Callable[[], None]:
        """Adds a mode that every thread enters after the world's own; returns a function that removes it.

        ``guest.share(lock)`` is called before a second thread enters it."""
        self._guests.append(guest)
        if self._is_shared:
            guest.share(self._turn)
        return lambda: self._guests.remove(guest)

    def modes(self) -> list[TorchDispatchMode]:
        """The modes of a thread in the world, innermost last."""
        return [self._mode, *self._guests]

    # -- entering and leaving --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Context manager: puts this thread into the world, if the world still exists."""
        thread = threading.get_ident()
        if self._is_over or thread in self._inside:
            yield
            return
        with self._turn:
            entered = self.modes()
            for mode in entered:
                mode.__enter__()
            self._inside.add(thread)
        try:
            with torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            with self._turn:
                self._inside.discard(thread)
                for mode in reversed(entered):
                    mode.__exit__(None, None, None)
                if self._is_over:
                    self.put_flags_back()

    def share(self) -> None:
        """Prepares the modes for a second thread."""
        if not self._is_shared:
            self._is_shared = True
            self._mode.share(self._turn)
            for guest in self._guests:
                guest.share(self._turn)

    def finish(self) -> None:
        """Called before the world is left: running threads no longer take part."""
        with self._turn:
            self._is_over = True
            if self._is_shared:
                self._mode.switch_off()

    def stay_behind(self, refusal: PredictionError) -> None:
        """Called in a forked child, which has threads of its own and no GPU."""
        self._is_over, self._refusal = True, refusal

    def put_flags_back(self) -> None:
        """Restores torch's flags, which the last thread to leave may have saved from another one."""
        if self._is_shared:
            put_flags_back(self._flags)

    # -- failures --------------------------------------------------------------------------------------------------------------

    def fail(self, what: str, error: BaseException) -> None:
        if not self._is_over:
            self._failures.append((what, error))

    def failure(self) -> tuple[str, BaseException] | None:
        """The error with which memfit refused a thread's work, unless the script has read it: it ends the prediction too."""
        self._wait()
        unread = [("a task of a thread pool", error) for _, error in self._unread.values()]
        for what, error in unread:
            if not isinstance(error, PredictionError):
                self._went_on(what, error)
        refused = [(what, error) for what, error in unread if isinstance(error, PredictionError)]
        return next(iter((*self._failures, *refused)), None)

    def _wait(self) -> None:
        """Waits some seconds for non-daemon threads, as Python does without a limit."""
        until = time.monotonic() + LONGEST_WAIT_SECONDS
        wait(list(self._tasks), timeout=LONGEST_WAIT_SECONDS)
        for thread in list(self._threads):
            if not thread.daemon:
                thread.join(max(0.0, until - time.monotonic()))
        waiting = [*self._tasks, *(thread for thread in self._threads if not thread.daemon and thread.is_alive())]
        if waiting:
            self._assumptions.add(f"{len(waiting)} threads were still at work after the last step, and were not waited for")

    def _escaped(self, thread: threading.Thread, error: Exception) -> None:
        """Handles an error that a thread did not catch: the run goes on, as it does after Python has printed it."""
        if self._is_over and isinstance(error, WorldIsOverError):
            return
        if isinstance(error, PredictionError):
            self.fail(f"the thread {thread.name}", error)
            return
        if not self._is_over:
            self._went_on(f"the thread {thread.name}", error)
        raise error

    def _went_on(self, what: str, error: BaseException) -> None:
        self._assumptions.add(f"{what} ended with {type(error).__name__}: {error}; the prediction went on, as a run would")

    # -- in the place of Python's own ------------------------------------------------------------------------------------------

    def start(self, start: Callable[..., None]) -> Callable[..., None]:
        """For ``Thread.start``, also of a subclass with a ``run`` of its own."""

        def start_inside(thread: threading.Thread) -> None:
            if self._is_over or threading.get_ident() not in self._inside or _is_worker_of_a_pool(thread):
                start(thread)
                return
            self.share()
            run = thread.run

            def run_inside() -> None:
                try:
                    with self.inside():
                        run()
                except Exception as error:
                    self._escaped(thread, error)
                finally:
                    self._threads.discard(thread)
                    thread.__dict__.pop("run", None)  # it holds on to the thread itself

            thread.run = run_inside  # type: ignore[method-assign]
            self._threads.add(thread)
            start(thread)

        return start_inside

    def submit(self, submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
        """For ``ThreadPoolExecutor.submit``: its workers may be older than the world, and may outlive it."""

        def submit_inside(executor: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            if self._is_over or threading.get_ident() not in self._inside:
                return submit(executor, fn, *args, **kwargs)
            self.share()

            def task() -> Any:
                with self.inside():
                    return fn(*args, **kwargs)

            future = submit(executor, task)
            self._tasks.add(future)
            future.add_done_callback(self._done)
            return future

        return submit_inside

    def _done(self, future: Future[Any]) -> None:
        self._tasks.discard(future)
        error = None if future.cancelled() else _exception_of(future)
        if error is not None and not self._is_over:
            self._unread[id(future)] = (future, error)

    def read(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """For ``Future.result`` and ``Future.exception``: from here on the script handles the error."""

        def read_and_forget(future: Future[Any], timeout: float | None = None) -> Any:
            try:
                return read(future, timeout)
            finally:
                if future.done():
                    self._unread.pop(id(future), None)

        return read_and_forget

    def hook(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """For ``threading.excepthook``: threads from before the world end here too."""

        def excepthook(args: Any) -> Any:
            if isinstance(args.exc_value, OutsiderError):
                self.fail(f"the thread {args.thread.name if args.thread else ''}", args.exc_value)
            return hook(args)

        return excepthook

    # -- who is outside ----------------------------------------------------------------------------------------------------------

    def refuse_outsiders(self, dispatch: Callable[..., Any]) -> Any:
        """For what fake tensors do where no mode is: in a thread of the world that is torch's own wish."""

        def __torch_dispatch__(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if threading.get_ident() not in self._inside and func is not device_query:
                self._refuse()
            return dispatch(func, types, args, kwargs)

        return classmethod(__torch_dispatch__)

    def initialise(self, initialise: Callable[[], Any]) -> Callable[[], Any]:
        """For ``torch.cuda._lazy_init``: C++ remembers for good that it was called, and asks only where no mode is."""

        def _lazy_init() -> Any:
            if not self._is_over and threading.get_ident() not in self._inside:
                self._refuse()
            return initialise()

        return _lazy_init

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_over:
            raise self._refusal
        if threading.get_ident() in self._inside:
            raise NotImplementedError("the phantom GPU makes no tensors while its dispatch mode is off")
        error = OutsiderError(threading.current_thread().name)
        self.fail(f"the thread {threading.current_thread().name}", error)
        raise error


class OutsiderError(PredictionError, RuntimeError):
    """A thread outside the world used the phantom GPU."""

    def __init__(self, thread: str) -> None:
        super().__init__(
            f"the thread {thread} was there before the prediction began, and works on the predicted GPU unseen: "
            "start it inside the prediction (in build, or in the script), or give it work by an executor's submit"
        )
        self.thread = thread


def install(patches: Patches, threads: Threads) -> None:
    patches.wrap(threading.Thread, "start", threads.start)
    patches.wrap(ThreadPoolExecutor, "submit", threads.submit)
    for name in ("result", "exception"):
        patches.wrap(Future, name, threads.read)
    patches.wrap(threading, "excepthook", threads.hook)
    patches.replace(FakeTensor, "__torch_dispatch__", threads.refuse_outsiders(FakeTensor.__torch_dispatch__))
    patches.wrap(torch.cuda, "_lazy_init", threads.initialise)
    for key in ("PrivateUse1", "CUDA"):
        for name in _FACTORIES:
            if not has_kernel(f"aten::{name}", key):
                patches.implement(key, name, threads._refuse)


def _is_worker_of_a_pool(thread: threading.Thread) -> bool:
    """True for a pool's worker, which enters the world only for a task: the pool may be used after the prediction."""
    target = getattr(thread, "_target", None)
    return getattr(target, "__module__", None) == ThreadPoolExecutor.__module__


def _exception_of(future: Future[Any]) -> BaseException | None:
    """The exception of a future, without marking it as read by the script."""
    found: BaseException | None = vars(future)["_exception"]
    return found
