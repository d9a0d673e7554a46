"""Names of modules, and what FSDP gathers while one runs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from memfit.errors import ConfigError


def is_submodule(name_descendant: str, name_ancestor: str) -> bool:
    """Is the first inside the second? By whole names: ``MyNet.x`` is not inside ``Net``."""
    return name_descendant.startswith(name_ancestor + ".")


def is_self_or_submodule(name_descendant: str, name_ancestor: str) -> bool:
    """The same, or is it the second itself?"""
    return name_descendant == name_ancestor or is_submodule(name_descendant, name_ancestor)


def check_units(units: Sequence[str], known: Sequence[str], argument: str) -> None:
    """Refuses names that no module has: nothing would be done with them, without a word."""
    for unit in units:
        if unit not in known:
            close = get_close_matches(unit, known, n=3)
            advice = f"did you mean {' or '.join(close)}?" if close else f"modules have names such as {', '.join(known[:3])}"
            raise ConfigError(f"{argument} names {unit!r}, which no module has: {advice}")


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """What ``fully_shard`` on some units holds unsharded, beside a rank's shards.

    The unit that runs, the units around it, and the one that is fetched while it runs; in backward also the gradients of the unit
    that runs and of those around it, and the buffer in which the unit's gradients are sent. A root that is a unit stays gathered
    from its forward to the end of its backward.
    """

    own_bytes: Mapping[str, int]
    """By unit, in the order of forward: its parameters without those of units inside it."""

    @classmethod
    def of(cls, parameter_bytes: Mapping[str, int], units: Iterable[str]) -> Gathering:
        """``parameter_bytes`` of all modules, with those inside them, in the order of forward."""
        wanted = set(units)
        own = {name: size for name, size in parameter_bytes.items() if name in wanted}
        for unit in own:
            around = _nearest_around(unit, own)
            if around:
                own[around] -= parameter_bytes[unit]
        return cls(own_bytes={unit: max(size, 0) for unit, size in own.items()})

    @classmethod
    def by_module(cls, parameter_bytes: Mapping[str, int]) -> Gathering:
        """Each module with parameters of its own is a unit."""
        every = cls.of(parameter_bytes, parameter_bytes)
        return cls(own_bytes={unit: size for unit, size in every.own_bytes.items() if size})

    def bytes_at(self, module: str, phase: str) -> int:
        """What is gathered while a module runs forward or backward."""
        if not self.own_bytes or phase == "optimizer":
            return 0
        units = list(self.own_bytes)
        around = [unit for unit in units if is_self_or_submodule(module, unit)]
        root = next((unit for unit in units if "." not in unit), None)
        gathered = {*around, *([root] if root else [])}
        size = sum(self.own_bytes[unit] for unit in gathered)
        if not around:
            return size
        is_backward = phase in ("backward", "recompute")
        position = units.index(around[-1]) + (-1 if is_backward else 1)
        if 0 <= position < len(units) and units[position] not in gathered:
            size += self.own_bytes[units[position]]
        if is_backward:
            size += sum(self.own_bytes[unit] for unit in around) + self.own_bytes[around[-1]]
        return size


def _nearest_around(name: str, known: Container[str]) -> str:
    """The innermost known module around another, empty for none."""
    while name:
        name = name.rpartition(".")[0]
        if name in known:
            return name
    return ""
