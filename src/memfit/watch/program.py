"""Inside of a watched program: from the import of torch to the end, however it ends.

Nothing is loaded before the program imports torch, and nothing is opened before it uses CUDA: launchers, data loaders and helpers
that never do are left alone. A torch without CUDA is recorded from the first call of a module on. Whatever goes wrong in here is a
line on stderr, never the end of the program.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from memfit.watch.settings import VARIABLE, WatchSettings

if TYPE_CHECKING:
    from memfit.record import Tracker

SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU") if hasattr(signal, name)
)
"""What schedulers end programs with."""


_begun: list[int] = []
"""The process that is watched: two ways lead here."""


def begin() -> None:
    """Watches this program, if ``MEMFIT`` says so."""
    if os.getpid() in _begun:
        return
    _begun[:] = [os.getpid()]
    try:
        settings = WatchSettings.parse(os.environ[VARIABLE])
    except Exception as error:
        _say(f"not watching: {error}")
        return
    after_import("torch", lambda: _guarded(lambda: _Watch(settings).wait_for_cuda()))


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

        if torch.version.cuda is None and torch.version.hip is None:
            at_first_call(lambda: _guarded(lambda: self.start("operators")))
        else:
            memory_history.when_cuda_begins(lambda: _guarded(lambda: self.start("allocator")))

    def start(self, witness: str) -> None:
        from memfit.errors import ConfigError
        from memfit.record import Retention, Tracker
        from memfit.watch.against import Against

        if self._tracker is not None:
            return
        more: dict[str, Any] = {"witness": witness}
        if witness == "allocator":
            more["retention"] = Retention(**self._settings.retention_numbers())
            if self._settings.against is not None:
                more["on_step"] = [Against(self._settings.against, lambda: self._tracker, _say)]
        try:
            self._tracker = Tracker(save_to=self._settings.save_to, **more)
        except ConfigError:  # another process of the job writes to that file, and neither knows its rank
            own = self._settings.save_to.with_suffix(f".pid{os.getpid()}{self._settings.save_to.suffix}")
            self._tracker = Tracker(save_to=own, **more)
        self._tracker.__enter__()
        self._pid = os.getpid()
        self._watch_the_end()

    # -- the end -------------------------------------------------------------------------------------------------------------

    def _watch_the_end(self) -> None:
        atexit.register(self._finish)
        told = sys.excepthook

        def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._error = error
            told(kind, error, trace)

        sys.excepthook = note
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._finish(f"the program was ended by {signal.Signals(number).name}")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

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
                _say(f"memory ran out; what was live is in {tracker.path}: memfit explain {tracker.path}")

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
        _say(f"not watching: {type(error).__name__}: {error}")


def _say(line: str) -> None:
    print(f"memfit: {line}", file=sys.stderr, flush=True)


# -- the import of torch ---------------------------------------------------------------------------------------------------------


def after_import(name: str, action: Callable[[], None]) -> None:
    """Calls ``action`` when a module has been imported; at once if it has been."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Waiting(name, action))


class _Waiting(MetaPathFinder):
    """Lets others find the module, and acts when it has run."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name, self._action = name, action

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Telling(spec.loader, self._action)
        return spec


class _Telling(Loader):
    """A module's own loader, and something to do afterwards."""

    def __init__(self, loader: Loader, action: Callable[[], None]) -> None:
        self._loader, self._action = loader, action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action()
