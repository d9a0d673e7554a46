"""Random number generators of any device; those of the phantom GPU draw nothing."""

from __future__ import annotations

from typing import Any

import torch

from memfit.torch_compat.patches import Patches
from memfit.torch_compat.tensors import GeneratorBase


def install(patches: Patches) -> None:
    patches.replace(torch, "Generator", Generator)


class _AnyGenerator(type(GeneratorBase)):  # type: ignore[misc]
    """Torch's own generators are generators too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, GeneratorBase)


class Generator(GeneratorBase, metaclass=_AnyGenerator):  # type: ignore[misc]
    """A generator for any device; the numbers of the phantom GPU are never drawn."""

    _named: torch.device

    def __new__(cls, device: Any = "cpu") -> Generator:
        made: Generator = super().__new__(cls, "cpu")
        made._named = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu") -> None: ...

    @property
    def device(self) -> torch.device:
        return self._named

    def clone_state(self) -> Generator:
        return Generator(self._named)

    def graphsafe_get_state(self) -> Generator:
        return Generator(self._named)

    def graphsafe_set_state(self, state: Any) -> None: ...
