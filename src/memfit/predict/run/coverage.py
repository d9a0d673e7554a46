"""Counts what a script does, so that a verdict can say what it has seen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf, prod
from types import FrameType
from typing import Any

import torch

from memfit.frames import local_variable
from memfit.ledger import ActivityKind, LedgerBuilder
from memfit.ledger.run_info import Coverage
from memfit.torch_compat.dispatch import tree_leaves
from memfit.torch_compat.patches import Patches

_GENERATION = "transformers.generation.utils"
_SAVERS = (
    ("safetensors.torch", "save_file"),
    ("torch.distributed.checkpoint", "save"),
    ("torch.distributed.checkpoint", "async_save"),
)
"""Beside ``torch.save``: what writes checkpoints, by module and function. Scripts import them when they like."""


class CoverageCounter:
    """Told of every outermost call of a model, every training step and the end. Writes into the ledger what was called when."""

    def __init__(self, builder: LedgerBuilder) -> None:
        self._builder = builder
        self._shapes: set[tuple[tuple[int, ...], ...]] = set()
        self._longest: tuple[int, ...] = ()
        self._num_forwards = self._num_steps = self._num_evaluations = self._num_generations = self._num_saves = 0
        self._num_before_training = 0
        self._is_evaluating = self._is_saving = False
        self._is_patched = False
        self._unpatched_savers = list(_SAVERS)
        self._patches: Patches | None = None

    def begin(self, patches: Patches) -> None:
        self._patches = patches.because("how often a script saves and generates")
        patches.wrap(torch, "save", self._save)
        self._look_for_libraries()

    def call(self, args: Any, kwargs: Any, *, is_entered: bool) -> None:
        """An outermost call of a model; ``is_entered``: is that in the ledger by now, or does it come next?"""
        self._look_for_libraries()
        self._num_forwards += 1
        shapes = tuple(_shape_of(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        if torch.is_grad_enabled():
            self._is_evaluating = False
        elif not self._is_evaluating:
            self._is_evaluating = True
            self._num_evaluations += 1
        largest = max(shapes, key=prod, default=())
        if shapes and shapes not in self._shapes:
            self._shapes.add(shapes)
            self._longest = max(self._longest, largest, key=prod)
        kind = ActivityKind.EVALUATION if self._is_evaluating else ActivityKind.TRAINING
        number = self._num_evaluations - 1 if self._is_evaluating else self._num_steps
        self._builder.act(kind, number, _in_words(largest), num_before=int(not is_entered))

    def step(self) -> None:
        self._num_steps += 1
        self._is_evaluating = self._is_saving = False

    def begin_training(self) -> None:
        """An optimizer steps for the first time: what looked like steps before (gradients that a script looked at) were none."""
        self._num_before_training = self._num_steps

    def coverage(self, *, is_whole: bool, batches: tuple[int, int], steps: int) -> Coverage:
        """``batches``: how many of how many there were in the epoch in which the run was stopped; zeros where it was not.
        ``steps``: how many there are in all, 0 where that is not known."""
        num_steps = self._num_steps - self._num_before_training
        in_every_step = num_steps > 1 and self._num_evaluations >= num_steps  # a teacher's, a part of training
        return Coverage(
            is_whole=is_whole,
            training_steps=num_steps,
            steps_in_all=steps,
            batches_seen=batches[0],
            batches_in_all=batches[1],
            kinds_of_batches=len(self._shapes),
            longest_batch=_in_words(self._longest),
            forward_passes=self._num_forwards,
            evaluations=0 if in_every_step else self._num_evaluations,
            generations=self._num_generations,
            saves=self._num_saves,
        )

    def _save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A checkpoint of several files, written between two training steps, is one."""

        def save(*args: Any, **kwargs: Any) -> Any:
            if not self._is_saving:
                self._builder.act(ActivityKind.SAVE, self._num_saves)
                self._num_saves += 1
                self._is_saving = True
            return original(*args, **kwargs)

        return save

    def _look_for_libraries(self) -> None:
        """A script imports them when it likes."""
        if self._patches is None:
            return
        for name, function in [saver for saver in self._unpatched_savers if saver[0] in sys.modules]:
            self._unpatched_savers.remove((name, function))
            if hasattr(sys.modules[name], function):
                self._patches.wrap(sys.modules[name], function, self._save)
        module = sys.modules.get(_GENERATION)
        if self._is_patched or module is None or not hasattr(module, "GenerationMixin"):
            return
        self._is_patched = True
        self._patches.wrap(module.GenerationMixin, "generate", self._generate)
        self._num_generations += _is_generating()

    def _generate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(*args: Any, **kwargs: Any) -> Any:
            self._num_generations += 1
            return original(*args, **kwargs)

        return generate


def steps_in_all(frame: FrameType | None) -> int:
    """The training steps of the whole run, where a trainer that is running says it: Hugging Face's or Lightning's; 0 where none
    does."""
    while frame is not None:
        owner = local_variable(frame, "self")
        libraries = {kind.__module__.partition(".")[0] for kind in type(owner).__mro__ if kind.__name__ == "Trainer"}
        if "transformers" in libraries:
            return _whole_number(getattr(getattr(owner, "state", None), "max_steps", 0))
        if libraries & {"lightning", "pytorch_lightning"}:
            return _whole_number(getattr(owner, "estimated_stepping_batches", 0))
        frame = frame.f_back
    return 0


def _whole_number(value: Any) -> int:
    """Of what means nothing, 0: Lightning says that there is no end as -1 or as infinity."""
    return int(value) if isinstance(value, (int, float)) and 0 < value < inf else 0


def _in_words(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _is_generating() -> bool:
    """Is a generation under way that began before it could be counted?"""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "generate" and frame.f_globals.get("__name__") == _GENERATION:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Of a jagged batch, that of all its sequences one after another: its own has no length."""
    return tuple((tensor.values() if tensor.layout is torch.jagged else tensor).shape)
