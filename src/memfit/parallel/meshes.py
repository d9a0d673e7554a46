"""The ranks, arranged: one mesh for sharding and tensor parallelism, one for sequences, one for experts.

::

    (pp, replicate, shard, tp)    what FSDP shards over is data and sequences together, so it has an axis of its own
    (pp, dp, cp, tp)              the same ranks, with sequences apart
    (pp, replicate, ep)           the same ranks, as the experts see them: some share the experts, the others shard each of those

The tp axis is the fastest: its ranks are neighbours, on one node. Meshes of one root can be combined in one tensor, and FSDP asks
for that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from memfit.errors import ConfigError
from memfit.parallel.config import Parallelism


@dataclass(frozen=True, kw_only=True)
class Meshes:
    """Over which ranks each kind of parallelism goes; ``None`` where there is none."""

    shard: DeviceMesh
    """For FSDP: ranks that shard, or (replicas, ranks that shard)."""
    tp: DeviceMesh | None
    pp: DeviceMesh | None
    cp: DeviceMesh | None
    ep: DeviceMesh | None
    expert_shard: DeviceMesh | None
    """For FSDP of the experts: the ranks that hold the same ones. ``None`` where experts are sharded as everything else is."""


def make_meshes(wanted: Parallelism, device_type: str, *, has_experts: bool) -> Meshes:
    if not dist.is_initialized():
        raise ConfigError(
            "there is no process group yet: call torch.distributed.init_process_group() before parallelize(), under torchrun or in "
            "memfit.predict"
        )
    world = dist.get_world_size()
    wanted.check_world(world)
    in_a_stage = world // wanted.pp
    sharding = in_a_stage // (wanted.replicas * wanted.tp)
    names = ("pp", "replicate", "shard", "tp")
    mesh = init_device_mesh(device_type, (wanted.pp, wanted.replicas, sharding, wanted.tp), mesh_dim_names=names)
    apart, expert_mesh = None, None
    if wanted.cp > 1:
        sizes = {"pp": wanted.pp, "dp": in_a_stage // (wanted.cp * wanted.tp), "cp": wanted.cp, "tp": wanted.tp}
        apart = init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    # With tensor parallelism each rank computes its own tokens' experts, so that their gradients must be summed over tp, too.
    if has_experts and (wanted.ep > 1 or wanted.tp > 1):
        sizes = {"pp": wanted.pp, "expert_shard": in_a_stage // wanted.ep, "ep": wanted.ep}
        expert_mesh = init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    return Meshes(
        shard=mesh["replicate", "shard"] if wanted.replicas > 1 else mesh["shard"],
        tp=mesh["tp"] if wanted.tp > 1 else None,
        pp=mesh["pp"] if wanted.pp > 1 else None,
        cp=apart["cp"] if apart is not None else None,
        ep=expert_mesh["ep"] if expert_mesh is not None and wanted.ep > 1 else None,
        expert_shard=expert_mesh["expert_shard"] if expert_mesh is not None else None,
    )
