"""What each unit of a model keeps of its forward, what it brings to the host, and what it computes again.

::

    CheckpointingPolicy
      UnitPolicy   units ("layers.0", "layers.1")  choices: aten.mm.default call 0 keep, call 2 offload; all else is computed again
      UnitPolicy   units ("layers.2",)             no choices: all of it is computed again
      untouched    ("layers.3",)                   nothing is computed again: autograd keeps what it always keeps
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from memfit.errors import ConfigError


class Action(StrEnum):
    """What becomes of the outputs of an operator between forward and backward."""

    KEEP = "keep"
    """They stay on the GPU."""
    OFFLOAD = "offload"
    """They are copied to the host, and back when they are needed."""


@dataclass(frozen=True, kw_only=True, order=True)
class OperatorChoice:
    """One call of an operator in a unit's forward."""

    operator: str
    """As torch writes it: ``aten.mm.default``."""
    call: int
    """Which of the operator's calls in the unit's forward, from 0."""
    action: Action = Action.KEEP

    def __post_init__(self) -> None:
        if not isinstance(self.operator, str) or not self.operator or not self.operator.isprintable():
            raise ConfigError(f"an operator is named as torch writes it, aten.mm.default, not {self.operator!r}")
        if not isinstance(self.call, int) or isinstance(self.call, bool) or self.call < 0:
            raise ConfigError(f"the calls of {self.operator} are counted from 0: {self.call!r} is none of them")
        if self.action not in tuple(Action):
            raise ConfigError(f"{self.action!r} is nothing that can be done with the output of {self.operator}: keep or offload")
        object.__setattr__(self, "action", Action(self.action))


@dataclass(frozen=True, kw_only=True)
class UnitPolicy:
    """Units that are treated alike. What is not chosen is computed again in backward."""

    units: tuple[str, ...]
    """Names of modules, as ``model.named_modules()`` gives them."""
    choices: tuple[OperatorChoice, ...] = ()

    def __post_init__(self) -> None:
        _check_names(self.units)
        if not self.units:
            raise ConfigError("a unit policy is for one unit at least")
        calls = Counter((choice.operator, choice.call) for choice in self.choices)
        twice = [f"{operator} call {call}" for (operator, call), count in calls.items() if count > 1]
        if twice:
            raise ConfigError(f"the policy of {self.units[0]} chooses twice for {', '.join(twice)}")

    @property
    def offloads(self) -> bool:
        return any(choice.action is Action.OFFLOAD for choice in self.choices)

    def to_json(self) -> dict[str, Any]:
        return {"units": list(self.units), **{action.value: _calls(self.choices, action) for action in Action}}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        choices = [
            OperatorChoice(operator=operator, call=call, action=action)
            for action in Action
            for operator, calls in _mapping(found.get(action.value, {}), action.value).items()
            for call in _list(calls, operator)
        ]
        return cls(units=tuple(_list(found.get("units"), "units")), choices=tuple(sorted(choices)))


@dataclass(frozen=True, kw_only=True)
class CheckpointingPolicy:
    """What is computed again, unit by unit."""

    groups: tuple[UnitPolicy, ...] = ()
    untouched: tuple[str, ...] = ()
    """Units that were looked at and are left as they are."""

    def __post_init__(self) -> None:
        _check_names(self.untouched)
        twice = [unit for unit, count in Counter((*self.units, *self.untouched)).items() if count > 1]
        if twice:
            raise ConfigError(f"a unit has one policy; {', '.join(twice)} has more")

    @property
    def units(self) -> tuple[str, ...]:
        """All units of which something is computed again."""
        return tuple(unit for group in self.groups for unit in group.units)

    def to_json(self) -> dict[str, Any]:
        return {"groups": [group.to_json() for group in self.groups], "untouched": list(self.untouched)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        groups = [UnitPolicy.from_json(_mapping(group, "a group")) for group in _list(found.get("groups", []), "groups")]
        return cls(groups=tuple(groups), untouched=tuple(_list(found.get("untouched", []), "untouched")))


def _calls(choices: Iterable[OperatorChoice], action: Action) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for choice in sorted(choices):
        if choice.action is action:
            found.setdefault(choice.operator, []).append(choice.call)
    return found


def _check_names(units: tuple[str, ...]) -> None:
    for unit in units:
        if not isinstance(unit, str) or not unit or not unit.isprintable():
            raise ConfigError(f"a unit is named as model.named_modules() does, not {unit!r}")


def _mapping(found: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise ConfigError(f"{what} is no mapping, but {type(found).__name__}")
    return found


def _list(found: Any, what: str) -> list[Any]:
    if not isinstance(found, list):
        raise ConfigError(f"{what} is no list, but {type(found).__name__}")
    return found
