"""Counts what a script does, so that a verdict can say what it has seen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import torch

from memfit.ledger.coverage import Coverage
from memfit.torch_compat.dispatch import tree_leaves
from memfit.torch_compat.patches import Patches

_GENERATION = "transformers.generation.utils"


class CoverageCounter:
    """Told of every outermost call of a model, every training step and the end."""

    def __init__(self) -> None:
        self._shapes: set[tuple[tuple[int, ...], ...]] = set()
        self._longest: tuple[int, ...] = ()
        self._num_forwards = self._num_steps = self._num_evaluations = self._num_generations = self._num_saves = 0
        self._is_evaluating = self._is_saving = False
        self._is_patched = False
        self._patches: Patches | None = None

    def begin(self, patches: Patches) -> None:
        self._patches = patches.because("how often a script saves and generates")
        patches.wrap(torch, "save", self._save)
        self._look_for_generation()

    def call(self, args: Any, kwargs: Any) -> None:
        """An outermost call of a model, run or written down."""
        self._look_for_generation()
        self._num_forwards += 1
        shapes = tuple(tuple(leaf.shape) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        if torch.is_grad_enabled():
            self._is_evaluating = False
        elif not self._is_evaluating:
            self._is_evaluating = True
            self._num_evaluations += 1
        if shapes and shapes not in self._shapes:
            self._shapes.add(shapes)
            self._longest = max((self._longest, *shapes), key=prod)

    def step(self) -> None:
        self._num_steps += 1
        self._is_evaluating = self._is_saving = False

    def coverage(self, *, is_whole: bool, batches: tuple[int, int]) -> Coverage:
        """``batches``: how many of how many there were in the epoch in which the run was stopped; zeros where it was not."""
        in_every_step = self._num_steps > 1 and self._num_evaluations >= self._num_steps  # a teacher's, a part of training
        return Coverage(
            is_whole=is_whole,
            training_steps=self._num_steps,
            batches_seen=batches[0],
            batches_in_all=batches[1],
            kinds_of_batches=len(self._shapes),
            longest_batch=" x ".join(map(str, self._longest)),
            forward_passes=self._num_forwards,
            evaluations=0 if in_every_step else self._num_evaluations,
            generations=self._num_generations,
            saves=self._num_saves,
        )

    def _save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A checkpoint of several files, written between two training steps, is one."""

        def save(*args: Any, **kwargs: Any) -> Any:
            self._num_saves += not self._is_saving
            self._is_saving = True
            return original(*args, **kwargs)

        return save

    def _look_for_generation(self) -> None:
        """A script imports transformers when it likes."""
        module = sys.modules.get(_GENERATION)
        if self._is_patched or module is None or self._patches is None or not hasattr(module, "GenerationMixin"):
            return
        self._is_patched = True
        self._patches.wrap(module.GenerationMixin, "generate", self._generate)
        self._num_generations += _is_generating()

    def _generate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(*args: Any, **kwargs: Any) -> Any:
            self._num_generations += 1
            return original(*args, **kwargs)

        return generate


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
