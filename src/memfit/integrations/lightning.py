"""A callback for Lightning's ``Trainer``, whether it is imported as ``lightning`` or as ``pytorch_lightning``.

::

    Trainer(..., callbacks=[MemfitCallback(steps=range(2, 5), save_to="run.memfit")]).fit(module)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memfit.integrations.steps import StepRecorder
from memfit.ledger import Ledger


def _callback_class() -> Any:
    """Of the package that the program has imported; the two do not know each other's classes."""
    older = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    name = "pytorch_lightning" if older or find_spec("lightning") is None else "lightning.pytorch"
    return importlib.import_module(name).Callback


class MemfitCallback(_callback_class()):  # type: ignore[misc]
    """Tracks chosen optimizer steps, counted from 0, into one ledger, and gives each one's peak to the Trainer's loggers.

    ``on_oom`` is written when memory runs out in a chosen step.
    """

    def __init__(self, steps: Iterable[int], save_to: str | Path = "run.memfit", on_oom: str | Path | None = None) -> None:
        super().__init__()
        self._recorder = StepRecorder(steps, save_to, on_oom)
        self._step = -1

    @property
    def ledger(self) -> Ledger | None:
        """Of the chosen steps so far; ``None`` before the first."""
        return self._recorder.ledger

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if not self._recorder.running:  # with accumulated gradients, a step has several batches
            self._step = trainer.global_step
            self._recorder.begin(self._step, pl_module, trainer.optimizers)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:
            return
        scalars = self._recorder.end()
        for logger in trainer.loggers if scalars else ():
            try:
                logger.log_metrics(scalars, step=self._step)
            except Exception as error:  # a logger's trouble is no reason to end the training
                self._recorder.give_up(error)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._recorder.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._recorder.stop(exception)
