"""Every target, by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from memfit.errors import ConfigError
from memfit.job import Recipe
from memfit.plan.emit import accelerate, torchtitan, trainer
from memfit.plan.emit.asking import Asked
from memfit.plan.handwritten import is_of_model, write_code
from memfit.plan.policy import CheckpointingPolicy

_CONFIGS: Final[dict[str, Callable[[Asked], str]]] = {
    "torchtitan": torchtitan.write,
    "accelerate": accelerate.write,
    "trainer": trainer.write,
}

TARGETS: Final = ("python", "fsdp2", *_CONFIGS)


def emit(target: str, policy: CheckpointingPolicy | None, recipe: Mapping[str, Any] | None, world_size: int) -> str:
    """Code or a configuration that trains as a plan says, with the line that starts it; what the target cannot do is refused."""
    if target not in TARGETS:
        raise ConfigError(f"a plan cannot be written for {target!r}: use one of {', '.join(TARGETS)}")
    if target == "python":
        return write_code(policy, recipe, world_size)
    if not recipe or not is_of_model(recipe):
        raise ConfigError(
            f"only the plan of a model by name or of a config can be written for {target}: that of a script is trained by memfit "
            "train --plan, that of a function by memfit.apply"
        )
    asked = Asked(recipe=_recipe(recipe), world_size=world_size, target=target)
    if target == "fsdp2":
        asked.refuse_unless_usual("tp", "pp", "cp", "ep")
        if asked.strategy is None or asked.recipe.engine != "fsdp2":
            asked.refuse("strategy")
        return write_code(policy, recipe, world_size)
    if policy is not None:
        raise ConfigError(
            f"what is computed again was decided operator by operator, which {target} cannot do: plan without --refine"
        )
    return _CONFIGS[target](asked)


def _recipe(values: Mapping[str, Any]) -> Recipe:
    """With its checks: a plan file may come from a stranger."""
    known: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        return Recipe(**known)
    except TypeError as error:
        raise ConfigError(f"the plan's recipe cannot be read: {error}") from None
