"""A model and how it is trained, as one object that ``memfit.predict`` can build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from memfit.models.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class Recipe(TrainingSettings):
    """One way to train a model on some GPUs."""

    def build(self) -> Callable[[], Any]:
        """Makes model, optimizer and data on ``"cuda"``; gives the function that does one training step."""
        if self.is_parallel:
            from memfit.models.parallel_training import build_parallel_step

            return build_parallel_step(self)
        from memfit.models.training import build_step

        return build_step(self)


RECIPE_FIELDS: Final = tuple(field.name for field in fields(Recipe))
