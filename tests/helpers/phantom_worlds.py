"""A phantom world to test in, with nothing recorded."""

from __future__ import annotations

import torch

from memfit.phantom import PhantomWorld, Target
from memfit.phantom.distributed.environment import RankInfo
from memfit.phantom.values.assumptions import Expected


class NoMeter:
    """Knows nothing."""

    def statistics(self) -> dict[str, int]:
        return dict.fromkeys(
            (f"{kind}_bytes.all.{which}" for kind in ("allocated", "reserved") for which in ("current", "peak")), 0
        )

    def reset_peak(self) -> None: ...

    def reset_accumulated(self) -> None: ...

    def configure(self, settings: str) -> None: ...

    def used_on(self, tensor: torch.Tensor, stream: int) -> None: ...


def phantom(
    gpu: str = "H200",
    torch_version: str = "2.11+cu130",
    world_size: int = 1,
    rank: int = 0,
    expected: dict[str, float] | None = None,
) -> PhantomWorld:
    processes = RankInfo(world_size=world_size, rank=rank)
    return PhantomWorld(Target.parse(gpu, torch_version), NoMeter(), processes=processes, expected=Expected(expected or {}))
