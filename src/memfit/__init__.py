"""memfit: will this training run fit on that GPU, and where does every byte go?

::

    with memfit.track(model, optimizer, batch) as tracker:
        train()
    tracker.ledger.save("run.memfit")

Names are loaded when they are first used: reading and drawing a saved ledger never imports torch. ``memfit.predict``,
``memfit.compare`` and ``memfit.plan`` are functions; the packages of the same names hold what they are made of. All errors are
``memfit.MemfitError``, drawn as a tree in ``memfit.errors``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

__version__ = "0.1.0"

TYPE_CHECKING = False  # as typing's own, which would take longer to import than all of this: every watched Python does
if TYPE_CHECKING:
    from typing import Any

    from memfit.analysis import Report, build_report
    from memfit.compare import Comparison, compare
    from memfit.errors import (
        ConfigError,
        GoldenMissingError,
        HostMemoryError,
        InfeasibleError,
        LedgerError,
        LedgerFormatError,
        LedgerLawError,
        MemfitError,
        MemoryGrewError,
        NeedsGpuError,
        NoGpuWorkError,
        PlanError,
        PlanFormatError,
        PredictionError,
        RanOutError,
        ScriptExitError,
        SolverTimeoutError,
        StepFailedError,
        TraceError,
        UnknownUnitError,
        UnsupportedTorchError,
    )
    from memfit.guard.golden import assert_no_regression
    from memfit.largest import LargestFit, max_batch, max_seq
    from memfit.ledger import Category, Ledger, Phase
    from memfit.plan import Plan
    from memfit.plan.applying import apply
    from memfit.plan.search import PlanSearch, plan
    from memfit.predict.api import predict
    from memfit.predict.result import Prediction
    from memfit.record.sources.allocator.retention import Retention
    from memfit.record.tracker import Tracker, track
    from memfit.units import format_bytes, parse_bytes

_HOMES = {
    "Category": "memfit.ledger",
    "Comparison": "memfit.compare",
    "ConfigError": "memfit.errors",
    "GoldenMissingError": "memfit.errors",
    "HostMemoryError": "memfit.errors",
    "InfeasibleError": "memfit.errors",
    "LargestFit": "memfit.largest",
    "Ledger": "memfit.ledger",
    "LedgerError": "memfit.errors",
    "LedgerFormatError": "memfit.errors",
    "LedgerLawError": "memfit.errors",
    "MemfitError": "memfit.errors",
    "MemoryGrewError": "memfit.errors",
    "NeedsGpuError": "memfit.errors",
    "NoGpuWorkError": "memfit.errors",
    "Phase": "memfit.ledger",
    "Plan": "memfit.plan",
    "PlanError": "memfit.errors",
    "PlanFormatError": "memfit.errors",
    "PlanSearch": "memfit.plan.search",
    "Prediction": "memfit.predict.result",
    "PredictionError": "memfit.errors",
    "RanOutError": "memfit.errors",
    "Report": "memfit.analysis",
    "Retention": "memfit.record.sources.allocator.retention",
    "ScriptExitError": "memfit.errors",
    "SolverTimeoutError": "memfit.errors",
    "StepFailedError": "memfit.errors",
    "TraceError": "memfit.errors",
    "Tracker": "memfit.record.tracker",
    "UnknownUnitError": "memfit.errors",
    "UnsupportedTorchError": "memfit.errors",
    "apply": "memfit.plan.applying",
    "assert_no_regression": "memfit.guard.golden",
    "build_report": "memfit.analysis",
    "compare": "memfit.compare",
    "format_bytes": "memfit.units",
    "max_batch": "memfit.largest",
    "max_seq": "memfit.largest",
    "parse_bytes": "memfit.units",
    "plan": "memfit.plan.search",
    "predict": "memfit.predict.api",
    "track": "memfit.record.tracker",
}

__all__ = [
    "Category",
    "Comparison",
    "ConfigError",
    "GoldenMissingError",
    "HostMemoryError",
    "InfeasibleError",
    "LargestFit",
    "Ledger",
    "LedgerError",
    "LedgerFormatError",
    "LedgerLawError",
    "MemfitError",
    "MemoryGrewError",
    "NeedsGpuError",
    "NoGpuWorkError",
    "Phase",
    "Plan",
    "PlanError",
    "PlanFormatError",
    "PlanSearch",
    "Prediction",
    "PredictionError",
    "RanOutError",
    "Report",
    "Retention",
    "ScriptExitError",
    "SolverTimeoutError",
    "StepFailedError",
    "TraceError",
    "Tracker",
    "UnknownUnitError",
    "UnsupportedTorchError",
    "__version__",
    "apply",
    "assert_no_regression",
    "build_report",
    "compare",
    "format_bytes",
    "max_batch",
    "max_seq",
    "parse_bytes",
    "plan",
    "predict",
    "track",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memfit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


class _Package(ModuleType):
    """This module. Importing ``memfit.predict.session`` makes Python set the package of that name here; the function stays."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted(__all__)
