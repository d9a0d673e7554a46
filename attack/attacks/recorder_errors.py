"""An exception in some call inside the recorder, at some moment of a tracked run."""

from __future__ import annotations

import inspect
import sys
import warnings
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any

import torch

import memfit
from attack.protocol import Attack, Fell, Limits, Tried
from attack.training import is_equal, left_behind, make, train
from memfit.ledger.builder import LedgerBuilder
from memfit.ledger.journal import Journal
from memfit.record import module_calls, module_names, position, roles
from memfit.record.sources.operators.blocks import BlockWriter, StorageTable
from memfit.record.sources.operators.handlers import OutputHandlers
from memfit.record.sources.operators.live_position import LivePosition
from memfit.record.sources.operators.recorder import Recorder
from memfit.record.sources.operators.roles import StorageRoles

CLASSES = (
    Recorder,
    OutputHandlers,
    position.RunPosition,
    LivePosition,
    BlockWriter,
    StorageTable,
    roles.RoleLearner,
    roles.ModelCalls,
    StorageRoles,
    module_names.ModuleNames,
    module_calls.ModuleCalls,
    module_calls.SequenceTable,
    position.ScopeStack,
    position.BackwardPass,
    LedgerBuilder,
    Journal,
)
AROUND = {
    *("__init__", "__torch_dispatch__", "_should_skip_dynamo", "silence", "quiet", "fail", "describe_failure", "listening"),
    *("catch_up", "end", "_end_pass", "give_up_journal"),
}
"""What stands around the calls, catches what they raise and says so."""

PLACES = [
    (kind, name)
    for kind in CLASSES
    for name, value in vars(kind).items()
    if isinstance(value, FunctionType) and name not in AROUND and not inspect.isgeneratorfunction(value)
]
STEPS = 2


class RecorderErrors(Attack):
    name = "recorder errors"
    promise = "whatever fails in the recorder, the run computes the same, bit by bit, and nothing is left in torch"
    share = 1.5
    limits = Limits(cpu_seconds=20.0, memory_bytes=6 * 2**30)

    def prepare(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.bare = train(*make(), STEPS)
        with memfit.track():  # what is imported on first use is imported here
            train(*make(), 1)
        sys.unraisablehook = lambda unraisable: None  # what is raised as a storage dies is reported there, by Python

    def attempt(self, chance: Random, folder: Path) -> Tried:
        kind, name = chance.choice(PLACES)
        after, error = chance.choice((0, 0, 0, 1, 2, 5, 20, 100)), chance.choice((LookupError, OSError, MemoryError, RuntimeError))
        model, optimizer = make()
        where = f"{error.__name__} in {kind.__name__}.{name}, call {after}"
        tracker = memfit.track(model, optimizer, save_to=folder / "run.memfit" if chance.random() < 0.3 else None)
        original = vars(kind)[name]
        failing = Failing(original, after, error)
        setattr(kind, name, failing.call)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with tracker:
                    tracked = train(model, optimizer, STEPS)
        except error as raised:
            raise Fell(f"{where} reached the run: {raised}") from raised
        finally:
            setattr(kind, name, original)
        if not is_equal(self.bare, tracked):
            raise Fell(f"{where} changed what the run computed")
        if left_behind():
            raise Fell(f"{where}: {left_behind()}")
        return Tried(errors=int(failing.has_raised))


class Failing:
    """A function that raises once, after so many calls; the recorder is to be off from there on, or none the worse."""

    def __init__(self, original: Any, after: int, error: type[Exception]) -> None:
        self.has_raised = False
        left = after

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                self.has_raised = True
                raise error("injected")
            return original(*args, **kwargs)

        self.call = call


ATTACK = RecorderErrors()
