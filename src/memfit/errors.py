"""Everything memfit raises on purpose.

::

    MemfitError
    ├── ConfigError (also a ValueError)     an argument or setting that cannot be meant
    ├── LedgerError                         a ledger that cannot be used
    │   ├── LedgerFormatError               the file is not a ledger, is damaged, or is newer than this memfit
    │   └── LedgerLawError                  the events contradict each other
    ├── PredictionError                     a run that could not be predicted
    │   ├── NoGpuWorkError                  it never put anything on the GPU
    │   └── StepFailedError                 the user's own code raised
    ├── TraceError                          a recording of an allocator that cannot be used
    └── UnsupportedTorchError               a private part of torch is not where this version of memfit knows it

Each message says what to do next.
"""

from __future__ import annotations

from pathlib import Path


class MemfitError(Exception):
    """The root of all errors that memfit raises on purpose."""


class ConfigError(MemfitError, ValueError):
    """An argument or setting that cannot be meant."""


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


class NoGpuWorkError(PredictionError):
    """The run never put anything on the GPU, so there is nothing to predict."""

    def __init__(self, device: str) -> None:
        super().__init__(f"nothing was put on {device}: move the model and its inputs there with .to('cuda'), as on a real GPU")
        self.device = device


class StepFailedError(PredictionError):
    """The user's own code raised; the message shows its traceback first."""

    def __init__(self, what: str, error: BaseException, users_traceback: str) -> None:
        advice = "If this code runs on a real GPU, memfit's phantom GPU is at fault: please report it."
        super().__init__(f"{what} failed.\n\n{users_traceback}\n{advice}")
        self.what = what
        self.error = error
        self.users_traceback = users_traceback


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
