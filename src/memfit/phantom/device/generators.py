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

    def get_state(self) -> torch.Tensor:
        """Of a GPU's: its seed, and how far it has got, which is never far here."""
        if self._named.type == "cpu":
            state: torch.Tensor = super().get_state()
            return state
        seed = self.initial_seed() % 2**64
        return torch.tensor([*seed.to_bytes(8, "little"), *bytes(8)], dtype=torch.uint8, device="cpu")

    def set_state(self, new_state: torch.Tensor) -> Any:
        if self._named.type == "cpu":
            return super().set_state(new_state)
        if new_state.numel() not in (8, 16):
            raise RuntimeError(f"the state of a GPU's generator has 16 bytes, this one has {new_state.numel()}")
        self.manual_seed(int.from_bytes(bytes(new_state.tolist()[:8]), "little"))
        return self

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> None: ...

    def clone_state(self) -> Generator:
        made = Generator(self._named)
        made.manual_seed(self.initial_seed())
        return made

    def graphsafe_get_state(self) -> Generator:
        return self.clone_state()

    def graphsafe_set_state(self, state: Any) -> None:
        self.manual_seed(state.initial_seed())
