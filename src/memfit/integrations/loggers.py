"""Figures of every step, logged to TensorBoard, W&B or MLflow.

::

    from torch.utils.tensorboard import SummaryWriter
    with memfit.track(model, retention=memfit.Retention(), on_step=[TensorBoardLogger(SummaryWriter("runs"))]):
        train()

Each takes what its package made (a writer, a run) and logs four figures: what is in use at the end of a step, the peak so far, what
is reserved, and how much of that lies between blocks in use. Nothing is imported here, so that memfit depends on none of them.
"""

from __future__ import annotations

from typing import Any, Protocol

from memfit.errors import ConfigError
from memfit.record.sources.allocator.alarms import StepFigures


class _SummaryWriter(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


class TensorBoardLogger:
    """Logs to a ``torch.utils.tensorboard.SummaryWriter``, or any writer with ``add_scalar``."""

    def __init__(self, writer: _SummaryWriter, every: int = 1) -> None:
        self._writer, self._every = writer, _checked(every)

    def __call__(self, figures: StepFigures) -> None:
        if _is_due(figures.step, self._every):
            for name, value in figures.scalars().items():
                self._writer.add_scalar(name, value, figures.step)


class WandbLogger:
    """Logs to what ``wandb.init(...)`` gives. The run's own steps stay its own: ours are logged as ``memfit/step``."""

    def __init__(self, run: Any, every: int = 1) -> None:
        self._run, self._every = run, _checked(every)
        run.define_metric("memfit/step")
        run.define_metric("memfit/*", step_metric="memfit/step")

    def __call__(self, figures: StepFigures) -> None:
        if _is_due(figures.step, self._every):
            self._run.log(figures.scalars() | {"memfit/step": figures.step})


class MlflowLogger:
    """Logs to the MLflow run of an id, by an ``mlflow.MlflowClient``."""

    def __init__(self, client: Any, run_id: str, every: int = 1) -> None:
        self._client, self._run_id, self._every = client, run_id, _checked(every)

    def __call__(self, figures: StepFigures) -> None:
        if _is_due(figures.step, self._every):
            for name, value in figures.scalars().items():
                self._client.log_metric(self._run_id, name, value, step=figures.step)


def _is_due(step: int, every: int) -> bool:
    """What precedes the first step is none."""
    return step >= 0 and step % every == 0


def _checked(every: int) -> int:
    if every < 1:
        raise ConfigError(f"cannot log every {every} steps: give a number from 1 on")
    return every
