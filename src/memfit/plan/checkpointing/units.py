"""The units of a model: the repeated layers, and what else is worth a decision of its own; equal ones are one kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, Final

import torch
from torch import nn

from memfit.errors import ConfigError, UnknownUnitError
from memfit.fsdp.units import repeated_blocks
from memfit.hardware import Gpu
from memfit.plan.applying.caches import make_none_in_training
from memfit.plan.applying.named_units import named_units
from memfit.plan.applying.programs import described
from memfit.plan.checkpointing.capture import Capture, capture_forward
from memfit.plan.checkpointing.recorded import RecordedUnit
from memfit.plan.plan_file import PlannedModel

FEWEST_UNITS: Final = 8
"""With fewer, a decision on one of them is too coarse."""

WITHOUT_CACHES: Final = (
    "in training the model makes no cache of keys and values, as with transformers' own gradient checkpointing: pass "
    "use_cache=True where one is read"
)


@dataclass(frozen=True, kw_only=True)
class UnitKind:
    """Equal units, in the order of forward: one decision, and how many of them it is for."""

    units: tuple[RecordedUnit, ...]

    @property
    def one(self) -> RecordedUnit:
        return self.units[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(unit.name for unit in self.units)


@dataclass(frozen=True)
class RecordedModel:
    """What one step of a run says about the units of its model."""

    kinds: tuple[UnitKind, ...]
    model: PlannedModel | None
    """``None`` where no model with units ran."""
    notes: tuple[str, ...]


class UnitRecorder:
    """Finds the units of a model when it is first called, and writes down the first forward of each."""

    def __init__(self, gpu: Gpu, wanted: Sequence[str] | None) -> None:
        self._gpu, self._wanted = gpu, None if wanted is None else tuple(wanted)
        self._captures: dict[str, Capture] = {}
        self._num_forwards: dict[str, int] = {}
        self._modules: dict[str, nn.Module] = {}
        self._compiled: set[str] = set()
        self._originals: list[tuple[nn.Module, Any]] = []
        self.notes: list[str] = []
        self._root: nn.Module | None = None

    def see(self, model: nn.Module) -> None:
        """A model is about to run for the first time: its units are written down when they run."""
        known = named_units(model)
        chosen = self._chosen(model, known)
        if not chosen:
            return
        if self._root is not None:
            self.notes.append(f"only {type(self._root).__name__} is planned: {type(model).__name__} runs beside it")
            return
        self._root = model
        if make_none_in_training(model):
            self.notes.append(WITHOUT_CACHES)
        for name in chosen:
            self._follow(name, known[name], _is_compiled(model, name))

    def _chosen(self, model: nn.Module, known: dict[str, nn.Module]) -> list[str]:
        if self._wanted is not None:
            missing = tuple(name for name in self._wanted if name not in known)
            if missing:
                raise UnknownUnitError(missing, tuple(known))
            nested = [name for name in self._wanted if any(name.startswith(f"{outer}.") for outer in self._wanted)]
            if nested:
                raise ConfigError(f"units must not be inside each other: {', '.join(nested)} is inside another one")
            return list(self._wanted)
        blocks = set(blocks_to_plan(model))
        return [name for name, module in known.items() if module in blocks and not _is_inside(name, known, blocks)]

    def _follow(self, name: str, module: nn.Module, is_compiled: bool) -> None:
        self._modules[name] = module
        if is_compiled:
            self._compiled.add(name)
        original = module.forward

        def forward(unit: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return original(*args, **kwargs)
            self._num_forwards[name] = self._num_forwards.get(name, 0) + 1
            if name in self._captures:
                return original(*args, **kwargs)
            result, self._captures[name] = capture_forward(unit, self._gpu, args, kwargs, original)
            return result

        module.forward = MethodType(forward, module)

    def recorded(self) -> RecordedModel:
        """What was seen; equal units together."""
        found: dict[object, list[RecordedUnit]] = {}
        for order, (name, capture) in enumerate(self._captures.items()):
            unit = capture.unit(name, self._modules[name], self._num_forwards[name], name in self._compiled, order)
            found.setdefault(unit.signature, []).append(unit)
        silent = [name for name in self._modules if name not in self._captures]
        if silent and self._wanted is not None:
            self.notes.append(f"{', '.join(silent)} did not run in the first step with gradients: left as it is")
        kinds = tuple(UnitKind(units=tuple(units)) for units in found.values())
        return RecordedModel(kinds, None if self._root is None else described(self._root), tuple(self.notes))


def blocks_to_plan(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of all parts of a model, encoders beside decoders; of a few large stages, the blocks inside them."""
    blocks = _blocks_of(model)
    while len(blocks) < FEWEST_UNITS and any(_blocks_of(block) for block in blocks):
        blocks = [inner for block in blocks for inner in (_blocks_of(block) or [block])]
    return blocks or repeated_blocks(model)


def _blocks_of(module: nn.Module) -> list[nn.Module]:
    """What is in the outermost lists below a module, but for single layers: a block has several with parameters."""
    found: list[nn.Module] = []
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            blocks = [block for block in child if _num_layers(block) > 1]
            found += blocks if len(blocks) > 1 else _blocks_of(child)
        else:
            found += _blocks_of(child)
    return list(dict.fromkeys(found))


def _num_layers(module: nn.Module) -> int:
    return sum(any(True for _ in layer.parameters(recurse=False)) for layer in module.modules())


def _is_inside(name: str, known: dict[str, nn.Module], blocks: set[nn.Module]) -> bool:
    outer = name.rpartition(".")[0]
    while outer:
        if known.get(outer) in blocks:
            return True
        outer = outer.rpartition(".")[0]
    return False


def _is_compiled(model: nn.Module, name: str) -> bool:
    """Is the unit compiled, or something around it?"""
    return (
        any(
            getattr(module, "_compiled_call_impl", None) is not None
            for outer, module in named_units(model).items()
            if name == outer or name.startswith(f"{outer}.")
        )
        or getattr(model, "_compiled_call_impl", None) is not None
    )
