"""The recording of a watched program: from its first use of CUDA to the end, however it ends.

Launchers, data loaders and helpers that never use CUDA are left alone. Where there is no GPU, a program is recorded from its first
call of a module on. Whatever goes wrong in here is a line on stderr, never the end of the program.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from memfit.watch.ending import at_deadly_signals
from memfit.watch.settings import VARIABLE, WatchSettings, unused_name

if TYPE_CHECKING:
    from memfit.record.tracker import Tracker


def watch_this_program() -> None:
    """As ``MEMFIT`` says. Raises ``ConfigError`` if that cannot be read."""
    settings = WatchSettings.parse(os.environ[VARIABLE])
    _guarded(lambda: _Watch(settings).wait_for_cuda())


class _Watch:
    """The recording of a program."""

    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings
        self._tracker: Tracker | None = None
        self._pid = os.getpid()
        self._error: BaseException | None = None

    def wait_for_cuda(self) -> None:
        import torch

        from memfit.torch_compat import memory_history
        from memfit.watch.first_call import at_first_call

        if torch.cuda.device_count() == 0:  # also with a build for CUDA, which is what pip installs on Linux
            at_first_call(lambda: _guarded(lambda: self.start("operators")))
        else:
            memory_history.when_cuda_begins(lambda: _guarded(lambda: self.start("allocator")))

    def start(self, witness: str) -> None:
        from memfit.record.sources.allocator.retention import Retention
        from memfit.record.tracker import Tracker
        from memfit.watch.against import Against

        if self._tracker is not None:
            return
        more: dict[str, Any] = {"witness": witness}
        if witness == "allocator":
            more["retention"] = Retention(**self._settings.retention_numbers())
            if self._settings.against is not None:
                more["on_step"] = [Against(self._settings.against, lambda: self._tracker, say)]
        elif self._settings.against is not None:
            say("there is no GPU here, so nothing is compared while it runs: memfit diff does it afterwards")
        self._tracker = Tracker(save_to=self._file_of_its_own(), **more)
        self._tracker.__enter__()
        self._pid = os.getpid()
        self._watch_the_end()

    def _file_of_its_own(self) -> Path:
        """What ``Tracker`` is told, such that nothing is written over: neither another attempt nor another process of the job."""
        from memfit.ledger.journal import path_of_rank
        from memfit.ledger.storage import is_being_written
        from memfit.record.tracker import rank_of_process

        wanted, rank = self._settings.save_to, rank_of_process()
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if attempt != "0":
            wanted = wanted.with_suffix(f".restart{attempt}{wanted.suffix}")
        if is_being_written(path_of_rank(wanted, *rank)):  # neither process knows its rank
            wanted = wanted.with_suffix(f".pid{os.getpid()}{wanted.suffix}")
        chosen = unused_name(wanted, lambda path: path_of_rank(path, *rank).is_file())
        if chosen != wanted:
            say(f"{path_of_rank(wanted, *rank)} is there already: this run is recorded in {path_of_rank(chosen, *rank)}")
        return chosen

    # -- the end -------------------------------------------------------------------------------------------------------------

    def _watch_the_end(self) -> None:
        atexit.register(self._finish)
        told = sys.excepthook

        def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._error = error
            told(kind, error, trace)

        sys.excepthook = note
        at_deadly_signals(
            lambda name: self._finish(f"the program was ended by {name}"),
            lambda name: self._abandon(f"the program was ended by {name} while it was stuck"),
        )

    def _abandon(self, problem: str) -> None:
        """From another thread, while the main one is stuck, perhaps in CUDA: what is known is written, and nothing is asked."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            _guarded(lambda: tracker.mark_ended(problem))

    def _finish(self, problem: str = "") -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is None or os.getpid() != self._pid:
            return
        error = _out_of_memory_behind(self._error)
        if error is None and self._error is not None:
            problem = problem or f"the program ended with {type(self._error).__name__}: {self._error}"

        def end() -> None:
            tracker.mark_ended(problem)
            tracker.__exit__(type(error) if error is not None else None, error, error.__traceback__ if error is not None else None)
            if error is not None:
                say(f"memory ran out; what was live is in {tracker.path}: memfit explain {tracker.path}")

        _guarded(end)


def _out_of_memory_behind(error: BaseException | None) -> BaseException | None:
    """The out-of-memory error that an error is, or comes from."""
    import torch

    seen = 0
    while error is not None and not isinstance(error, torch.OutOfMemoryError) and seen < 20:
        error, seen = error.__cause__ or error.__context__, seen + 1
    return error if isinstance(error, torch.OutOfMemoryError) else None


def _guarded(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:
        say(f"not watching: {type(error).__name__}: {error}")


def say(line: str) -> None:
    print(f"memfit: {line}", file=sys.stderr, flush=True)
