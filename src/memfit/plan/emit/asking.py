"""What a plan asks of a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memfit.choices import STRATEGIES, Split, Strategy
from memfit.errors import ConfigError
from memfit.hardware import GPUS_PER_NODE
from memfit.job import Recipe


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A recipe and its GPUs."""

    recipe: Recipe
    world_size: int
    target: str
    """In whose words it is wanted, for what is refused."""

    @property
    def strategy(self) -> Strategy | None:
        return STRATEGIES.get(self.recipe.strategy)

    @property
    def num_data_ranks(self) -> int:
        """GPUs, or groups of those that share each sequence, that have sequences of their own."""
        recipe = self.recipe
        return self.world_size // (recipe.tp * recipe.pp * recipe.cp)

    @property
    def num_copies(self) -> int:
        """Copies of the sharded weights."""
        if self.strategy is None or self.strategy.split is Split.WORLD:
            return 1
        if self.strategy.split is Split.NOTHING:
            return self.num_data_ranks
        if self.recipe.mesh and isinstance(self.recipe.mesh, tuple):
            return self.recipe.mesh[0]
        apart = self.recipe.tp * self.recipe.cp
        return max(1, self.num_data_ranks // max(1, GPUS_PER_NODE // apart))

    @property
    def passes(self) -> int:
        """In how many parts a batch is computed."""
        return max(1, self.recipe.microbatches)

    def one_of(self, axis: str, words: Mapping[Any, Any]) -> Any:
        """What the target calls the recipe's value; refused where it has no word for it."""
        value = getattr(self.recipe, axis)
        if value not in words:
            self.refuse(axis)
        return words[value]

    def refuse_unless_usual(self, *axes: str) -> None:
        """Refuses where one of these asks for anything."""
        for axis in axes:
            if getattr(self.recipe, axis) not in (None, "", "none", 0, 1, ()):
                self.refuse(axis)

    def refuse(self, axis: str) -> None:
        raise ConfigError(
            f"{self.target} has no word for {axis} {getattr(self.recipe, axis)!s}: fix --{axis.replace('_', '-')} to another value "
            "in the search, or take the plan as torch code with --emit python"
        )

    def torchrun(self, command: str) -> str:
        """The line that starts it."""
        if self.world_size == 1:
            return f"torchrun --nproc-per-node 1 {command}"
        nodes = -(-self.world_size // GPUS_PER_NODE)
        several = f" --nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500" if nodes > 1 else ""
        return f"torchrun --nproc-per-node {min(self.world_size, GPUS_PER_NODE)}{several} {command}"
