"""Everything memfit raises on purpose.

::

    MemfitError
    ├── ConfigError (also a ValueError)     an argument or setting that cannot be meant
    ├── LedgerError                         a ledger that cannot be used
    │   ├── LedgerFormatError               the file is not a ledger, is damaged, or is newer than this memfit
    │   └── LedgerLawError                  the events contradict each other
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
