"""A phantom world to test in, with nothing recorded."""

from __future__ import annotations

from memfit.phantom import PhantomWorld, Target


class NoMeter:
    """Knows nothing."""

    def statistics(self) -> dict[str, int]:
        return {"allocated_bytes.all.current": 0, "reserved_bytes.all.current": 0}

    def reset_peak(self) -> None: ...


def phantom(gpu: str = "H200", torch_version: str = "2.11+cu130", world_size: int = 1, rank: int = 0) -> PhantomWorld:
    return PhantomWorld(Target.parse(gpu, torch_version), NoMeter(), world_size=world_size, rank=rank)
