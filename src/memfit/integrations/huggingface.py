"""A callback for Hugging Face's ``Trainer``.

::

    Trainer(..., callbacks=[MemfitCallback(steps=range(2, 5), save_to="run.memfit")]).train()
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from memfit.frames import local_variable
from memfit.integrations.steps import StepRecorder
from memfit.ledger import Ledger


class MemfitCallback(TrainerCallback):
    """Tracks chosen optimizer steps, counted from 0, into one ledger, and logs each one's peak as the Trainer logs its loss.

    Give it to the Trainer when that is made (``callbacks=[...]``): then it also hears of errors, and ``on_oom`` is written when
    memory runs out in a chosen step.
    """

    def __init__(self, steps: Iterable[int], save_to: str | Path = "run.memfit", on_oom: str | Path | None = None) -> None:
        self._recorder = StepRecorder(steps, save_to, on_oom)

    @property
    def ledger(self) -> Ledger | None:
        """Of the chosen steps so far; ``None`` before the first."""
        return self._recorder.ledger

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = _find_trainer(sys._getframe())
        if trainer is not None:
            _watch(trainer, self._recorder)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._recorder.stop()  # an earlier training may have ended in the middle of a step

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        optimizer = kwargs.get("optimizer")
        self._recorder.begin(state.global_step, kwargs.get("model"), [] if optimizer is None else [optimizer])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        scalars = self._recorder.end()
        trainer = _find_trainer(sys._getframe())
        if not scalars or trainer is None:
            return
        its_own = control.should_log
        try:
            trainer.log(scalars)
        except Exception as error:  # a logger's trouble is no reason to end the training
            self._recorder.give_up(error)
        control.should_log = its_own  # to log is to have logged: the Trainer would leave its own out

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._recorder.stop()


def _find_trainer(frame: FrameType | None) -> Trainer | None:
    """The Trainer that called: its callbacks are told nearly everything, but not which Trainer it is."""
    while frame is not None:
        caller = local_variable(frame, "self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back
    return None


def _watch(trainer: Trainer, recorder: StepRecorder) -> None:
    """From now on the recorder hears of what ends the training."""
    train = trainer.train

    @functools.wraps(train)
    def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            return train(*args, **kwargs)
        except BaseException as error:
            recorder.stop(error)
            raise

    trainer.train = watched  # type: ignore[method-assign]
