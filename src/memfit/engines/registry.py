"""The engines that memfit knows, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from memfit.engines.ddp import Ddp
from memfit.engines.deepspeed import DeepSpeed
from memfit.engines.engine import Engine, UnitTensor
from memfit.engines.fsdp1 import Fsdp1
from memfit.engines.fsdp2 import Fsdp2
from memfit.engines.megatron import Megatron
from memfit.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (Fsdp2(), Fsdp1(), Ddp(), DeepSpeed(), Megatron())}
"""In the order of help texts. A new engine is added here."""


def find_engine(name: str) -> Engine:
    """The engine with this name; raises ``ConfigError`` if there is none."""
    try:
        return ENGINES[name]
    except KeyError:
        raise ConfigError(f"{name!r} is not an engine: use one of {', '.join(map(repr, ENGINES))}") from None


@contextmanager
def registered(engine: Engine) -> Iterator[None]:
    """Context manager: adds an engine, for tests and for engines outside memfit."""
    if engine.name in ENGINES:
        raise ConfigError(f"there is an engine {engine.name!r} already")
    ENGINES[engine.name] = engine
    try:
        yield
    finally:
        del ENGINES[engine.name]


def sharded_parameters(root: nn.Module) -> Iterator[torch.Tensor]:
    """The parameters below ``root`` that any engine keeps sharded."""
    for engine in ENGINES.values():
        yield from engine.sharded_parameters(root)


def unit_tensors(root: nn.Module) -> Iterator[UnitTensor]:
    """The parameters below ``root`` that any engine keeps for whole units."""
    for engine in ENGINES.values():
        yield from engine.unit_tensors(root)
