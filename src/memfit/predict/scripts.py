"""A whole script, run in the phantom world and stopped after some optimizer steps."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from memfit.errors import ConfigError, ScriptExitError
from memfit.overlay import in_force
from memfit.phantom.values.expected import Expected
from memfit.predict.api import calling
from memfit.predict.result import Prediction
from memfit.predict.session import PhantomSession


class _EnoughSteps(BaseException):
    """Ends the script from within; no script catches it by accident."""


def predict_script(
    script: Path,
    arguments: Sequence[str] = (),
    *,
    gpu: str,
    world_size: int,
    steps: int,
    torch_version: str,
    alloc_conf: str = "",
    expected: Expected | None = None,
) -> Prediction:
    """Runs a script as ``python script arguments...`` would, without a GPU, until an optimizer has stepped so often."""
    if steps < 1 or world_size < 1:
        raise ConfigError(f"cannot predict {steps} steps of {world_size} processes: at least one of each")
    session = PhantomSession.prepare(gpu, torch_version, alloc_conf, world_size, 0, expected or Expected())
    if in_force():
        session.world.assumptions.add(in_force())
    with session.running(), _as_main(script, arguments), _stopping_after(steps), suppress(_EnoughSteps):
        calling(script.name, lambda: _run(script))
    if not alloc_conf:
        session.meter.configure(_alloc_conf_in_environment())
    return session.prediction()


def _alloc_conf_in_environment() -> str:
    """As the shell or the script itself has set it."""
    return next((os.environ[name] for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if os.environ.get(name)), "")


def _run(script: Path) -> None:
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code:
            raise ScriptExitError(script, leaving.code) from leaving


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


@contextmanager
def _stopping_after(steps: int) -> Iterator[None]:
    """An optimizer that steps so often ends the script; several optimizers count apart."""
    counts: dict[int, int] = {}

    def count(optimizer: Any, args: Any, kwargs: Any) -> None:
        counts[id(optimizer)] = counts.get(id(optimizer), 0) + 1
        if counts[id(optimizer)] >= steps:
            raise _EnoughSteps

    handle = register_optimizer_step_post_hook(count)
    try:
        yield
    finally:
        handle.remove()
