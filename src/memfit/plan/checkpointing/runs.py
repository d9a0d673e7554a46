"""What is planned: a training run that is predicted again and again, each time with its model changed in another way.

::

    build ──────────────────> FunctionRun ─┐
                                           ├──> predict(see): ``see`` is given each model just before it first runs ──> Prediction
    memfit plan train.py ───> ScriptRun ───┘

A script runs in a child process each time, for as many steps as the options say, and changes no file.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

from memfit.errors import ConfigError, StepFailedError
from memfit.job import PredictOptions
from memfit.overlay.state import Keeper
from memfit.phantom.current import current
from memfit.plan.applying.chunked_loss import chunk_losses
from memfit.plan.applying.programs import watch_first_calls
from memfit.plan.checkpointing.roots import Step, seeing_models
from memfit.plan.checkpointing.units import RecordedModel, UnitRecorder
from memfit.plan.plan_file import ProgramMeans
from memfit.predict.api import predict_build
from memfit.predict.result import Prediction
from memfit.predict.scripts.dry_run import in_dry_run
from memfit.predict.scripts.launchers import Job
from memfit.predict.scripts.running import run_script
from memfit.predict.scripts.stopping import Bounds
from memfit.regular import regular
from memfit.torch_compat.patches import Patches

See = Callable[[nn.Module], None]
Answer = TypeVar("Answer")


class PlannedRun(Protocol):
    """A run that can be predicted with a model that was changed before."""

    @property
    def options(self) -> PredictOptions: ...

    def predict(self, see: See | None = None, *, every_step: bool = True, mode_slowness: float = 1.0) -> Prediction:
        """``every_step=False``: a step that leaves all as it found it may stand for those after it. ``mode_slowness``: how much
        longer than measured the host takes for dispatch modes."""
        ...

    def record(self, recorder: UnitRecorder) -> RecordedModel:
        """One step, with the first forward of each unit written down. What is compiled runs eagerly in it."""
        ...


@dataclass(frozen=True)
class FunctionRun:
    """What a user's function builds."""

    build: Callable[[], Step]
    options: PredictOptions

    def predict(self, see: See | None = None, *, every_step: bool = True, mode_slowness: float = 1.0) -> Prediction:
        def build() -> Step:
            current().mode_slowness = mode_slowness
            step = (self.build if see is None else seeing_models(self.build, see))()
            return step if every_step or not callable(step) else regular(lambda: step())

        return with_problems_of_units(lambda: _of_one_rank(predict_build(build, self.options)))

    def record(self, recorder: UnitRecorder) -> RecordedModel:
        def build() -> Step:
            step = seeing_models(self.build, recorder.see)()

            def eagerly() -> Any:
                with torch.compiler.set_stance("force_eager"):
                    return step()

            return eagerly

        with_problems_of_units(lambda: predict_build(build, replace(self.options, steps=1)))
        return recorder.recorded()


@dataclass(frozen=True)
class ScriptRun:
    """A program as its launcher runs it."""

    job: Job
    options: PredictOptions
    keeper: Keeper
    """Who keeps it from changing files."""
    means: ProgramMeans = ProgramMeans()
    """What is done to it in every prediction."""

    def predict(self, see: See | None = None, *, every_step: bool = True, mode_slowness: float = 1.0) -> Prediction:
        def see_in_a_world(model: nn.Module) -> None:
            current().mode_slowness = mode_slowness
            if see is not None:
                see(model)

        return self._in_a_child(see_in_a_world, self.options.steps, lambda prediction: prediction)

    def record(self, recorder: UnitRecorder) -> RecordedModel:
        with torch.compiler.set_stance("force_eager"):
            return self._in_a_child(recorder.see, 1, lambda prediction: recorder.recorded())

    def _in_a_child(self, see: See, steps: int, answer: Callable[[Prediction], Answer]) -> Answer:
        def make() -> Answer:
            patches = Patches("memfit plan").because("when the script first calls a model")
            options = replace(self.options, alloc_conf=self.options.alloc_conf or self.means.alloc_conf)
            with ExitStack() as stack:
                stack.callback(patches.undo)
                watch_first_calls(see, patches)
                if self.means.loss_rows:
                    chunk_losses(self.means.loss_rows, patches.because("losses some rows at a time"))
                return answer(run_script(self.job, options, Bounds(steps=steps)).prediction)

        return with_problems_of_units(lambda: in_dry_run(make, self.keeper))


def _of_one_rank(prediction: Any) -> Prediction:
    assert isinstance(prediction, Prediction)
    return prediction


def with_problems_of_units(make: Callable[[], Answer]) -> Answer:
    """What ``make`` returns; what is wrong with units is told as such, and not as a step that failed."""
    try:
        return make()
    except StepFailedError as failed:
        if isinstance(failed.error, ConfigError):
            raise failed.error from None
        if isinstance(failed.error, CheckpointError):
            raise ConfigError(
                "computing a layer again gives other tensors than its forward did: it keeps something between calls, as a cache of "
                "keys and values does. Switch that off for training (use_cache=False in transformers), or name other units"
            ) from failed
        raise
