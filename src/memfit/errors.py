"""Everything memfit raises on purpose.

::

    MemfitError
    ├── ConfigError (also a ValueError)     an invalid argument or setting
    │   └── UnknownUnitError                a module that is named and that the model does not have
    ├── LedgerError                         a ledger that cannot be used
    │   ├── LedgerFormatError               the file is not a ledger, is damaged, or is newer than this memfit
    │   └── LedgerLawError                  the events contradict each other
    ├── PredictionError                     a run that could not be predicted
    │   ├── NeedsGpuError                   it asks for what only a real GPU has
    │   ├── NoGpuWorkError                  it never put anything on the GPU
    │   ├── ScriptExitError                 the user's script left with an error
    │   ├── RanOutError                     memory ran out, and the run ended
    │   └── StepFailedError                 the user's own code raised
    ├── GoldenMissingError (also an AssertionError)   there is no golden ledger to hold a prediction against
    ├── MemoryGrewError (also an AssertionError)      a prediction needs more than its golden ledger, and more than is tolerated
    ├── HostMemoryError (also a MemoryError)          this machine itself has too little memory
    ├── PlanError                           no plan, or one that cannot be used
    │   ├── InfeasibleError                 nothing that was tried fits
    │   ├── PlanFormatError                 the file is no plan, is damaged, or is newer than this memfit
    │   └── SolverTimeoutError (also a TimeoutError)   no plan was found in the time that there was; there may be one
    ├── TraceError                          a recording of an allocator that cannot be used
    └── UnsupportedTorchError               a private part of torch is not where this version of memfit knows it

Each message says what to do next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


class MemfitError(Exception):
    """The root of all errors that memfit raises on purpose. They can be sent to another process, where they are made again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self.args, vars(self))


def _made_again(kind: type[MemfitError], args: tuple[Any, ...], fields: dict[str, Any]) -> MemfitError:
    """Without calling ``__init__``, which would want other arguments than the message."""
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(fields)
    return error


class TerminatedError(KeyboardInterrupt):
    """The process was asked to end (SIGTERM). Handled as Ctrl-C is: what is known so far is told."""


class ConfigError(MemfitError, ValueError):
    """An invalid argument or setting."""


class LedgerError(MemfitError):
    """A ledger that cannot be used."""


class LedgerFormatError(LedgerError):
    """The file is not a ledger, is damaged, or was written by a newer memfit."""

    def __init__(self, path: Path | str, problem: str, advice: str) -> None:
        super().__init__(f"{path}: {problem}. {advice}")
        self.path = Path(path)
        self.problem = problem
        self.advice = advice


class LedgerLawError(LedgerError):
    """The ledger's events contradict each other; ``violations`` lists how."""

    def __init__(self, violations: list[str]) -> None:
        super().__init__(
            "the ledger breaks its own laws: " + "; ".join(violations) + ". Record the run again; if it happens again, report it."
        )
        self.violations = violations


class PredictionError(MemfitError):
    """A run that could not be predicted."""


class NeedsGpuError(PredictionError, RuntimeError):
    """The run asks for what only a real GPU has: data, code that was compiled for it, a driver, other GPUs that answer."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what} needs a real GPU: a predicted one holds no data, runs no kernels and has no peers. {advice}")
        self.what = what
        self.advice = advice


class NoGpuWorkError(PredictionError):
    """The run never put anything on the GPU, so there is nothing to predict."""

    def __init__(self, device: str) -> None:
        super().__init__(f"nothing was put on {device}: move the model and its inputs there with .to('cuda'), as on a real GPU")
        self.device = device


class ScriptExitError(PredictionError):
    """The user's script left with an error of its own, before it had trained enough."""

    def __init__(self, script: str, status: int | str) -> None:
        why = f"with status {status}" if isinstance(status, int) else f"saying: {status}"
        super().__init__(f"{script} left {why}. Give it the arguments it needs, after its name")
        self.script = script
        self.status = status


class StepFailedError(PredictionError):
    """The user's own code raised; the message shows its traceback first."""

    def __init__(self, what: str, error: BaseException, users_traceback: str, advice: str) -> None:
        super().__init__(f"{what} failed.\n\n{users_traceback}\n{advice}")
        self.what = what
        self.error = error
        self.users_traceback = users_traceback
        self.advice = advice


class RanOutError(PredictionError):
    """Memory of the simulated GPU ran out, and the run did not go on after it."""

    def __init__(self, where: str, asked_bytes: int, ending: str) -> None:
        super().__init__(f"memory ran out ({where}), and the run ended: {ending}")
        self.where = where
        self.asked_bytes = asked_bytes
        self.ending = ending


class GoldenMissingError(MemfitError, AssertionError):
    """There is no golden ledger to hold a prediction against."""

    def __init__(self, path: Path, advice: str) -> None:
        super().__init__(f"there is no golden ledger {path}: {advice}")
        self.path = path
        self.advice = advice


class MemoryGrewError(MemfitError, AssertionError):
    """A prediction needs more than its golden ledger, and more than is tolerated; the message shows what changed."""

    def __init__(self, path: Path, grown: str, shown_diff: str, advice: str) -> None:
        super().__init__(f"{grown}\n\n{shown_diff}\n{advice}")
        self.path = path
        self.grown = grown
        self.shown_diff = shown_diff
        self.advice = advice


class HostMemoryError(MemfitError, MemoryError):
    """This machine itself, not the GPU in question, has too little memory."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} took more memory than this machine has: end other programs, or use a machine with more")
        self.what = what


class PlanError(MemfitError):
    """No plan, or one that cannot be used."""


class PlanFormatError(PlanError):
    """The file is no plan, is damaged, or was written by a newer memfit."""

    def __init__(self, path: Path | str, problem: str, advice: str) -> None:
        super().__init__(f"{path}: {problem}. {advice}")
        self.path = Path(path)
        self.problem = problem
        self.advice = advice


class InfeasibleError(PlanError):
    """Nothing that was tried fits."""

    def __init__(self, budget_bytes: int, least_bytes: int, binding: str, message: str) -> None:
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.least_bytes = least_bytes
        """The least budget of all that was tried."""
        self.binding = binding
        """What that least is made of when it is needed: ``states``, ``forward``, ``backward``, ``optimizer`` or ``init``."""


class SolverTimeoutError(PlanError, TimeoutError):
    """No plan was found in the time that there was. There may be one."""

    def __init__(self, seconds: float, found: str) -> None:
        super().__init__(f"no plan that fits was found in {seconds:.0f} seconds: {found}. Give it more time")
        self.seconds = seconds


class UnknownUnitError(ConfigError):
    """A module that is named and that the model does not have."""

    def __init__(self, units: tuple[str, ...], known: tuple[str, ...]) -> None:
        has = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
        super().__init__(f"the model has no module {', '.join(units)}; it has {has}")
        self.units = units
        self.known = known


class TraceError(MemfitError):
    """A recording of an allocator (a trace, or a PyTorch snapshot) that cannot be read, or that contradicts itself."""

    def __init__(self, path: Path | str, problem: str, advice: str) -> None:
        super().__init__(f"{path}: {problem}. {advice}")
        self.path = Path(path)
        self.problem = problem
        self.advice = advice


class UnsupportedTorchError(MemfitError):
    """A private part of torch that memfit leans on is not where this version of memfit knows it."""

    def __init__(self, what: str, torch_version: str) -> None:
        super().__init__(
            f"memfit needs {what}, which torch {torch_version} does not have in the form memfit knows. "
            "Upgrade memfit, or use a torch release listed in docs/compatibility.md."
        )
        self.what = what
        self.torch_version = torch_version
