"""How the ranks of a job are arranged, as one of them sees it: what it takes to know which of them can differ.

::

    DeviceMesh(...)            the axes of the job, by name
    PipelineStage(...)         ranks that hold different layers
    an engine's own groups     both, where it has no mesh (``Engine.axis_groups``)
    parameters, after a step   groups among which something is shared out in unequal parts
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memfit.engines import ENGINES
from memfit.torch_compat import pipelining
from memfit.torch_compat.patches import Patches


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What one rank has seen of the others."""

    world_size: int = 1
    axes: tuple[tuple[str, int], ...] = ()
    """The names and sizes of the mesh over the whole world that has most of them, without those of size one; the slowest first."""
    pipeline: tuple[int, ...] = ()
    """The ranks of this rank's pipeline."""
    uneven: tuple[tuple[int, ...], ...] = ()
    """Groups of ranks, this one's, among which some parameter is shared out in unequal parts."""


@dataclass
class LayoutObserver:
    """Writes down how a run arranges its ranks."""

    pipeline: tuple[int, ...] = ()
    _axes: list[tuple[tuple[str, int], ...]] = field(default_factory=list)
    _uneven: set[tuple[int, ...]] = field(default_factory=set)
    _has_looked: bool = False

    def install(self, patches: Patches) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        def noting_axes(original: Any) -> Any:
            def make(mesh: Any, *args: Any, **kwargs: Any) -> None:
                original(mesh, *args, **kwargs)
                names = mesh.mesh_dim_names
                if names and mesh.size() == dist.get_world_size():
                    self._axes.append(tuple(zip(names, map(int, mesh.shape), strict=True)))

            return make

        def note_stage(stage: Any) -> None:
            self.pipeline = tuple(dist.get_process_group_ranks(stage.group or dist.group.WORLD))

        patches.wrap(DeviceMesh, "__init__", noting_axes)
        patches.when_imported(pipelining.STAGES, lambda stages: pipelining.note_stages(patches, stages, note_stage))

    def look_at(self, modules: Iterable[nn.Module]) -> None:
        """After a step, when everything is in its place: once is enough."""
        if self._has_looked or not dist.is_initialized():
            return
        self._has_looked = True
        modules = list(modules)
        for engine in ENGINES.values():
            self._note_groups(engine.axis_groups(modules))
        for module in modules:
            for parameter in module.parameters(recurse=False):
                if hasattr(parameter, "placements"):
                    self._uneven.update(_uneven_groups(parameter))

    def _note_groups(self, groups: Mapping[str, Sequence[int]]) -> None:
        """What an engine says: ranks next to each other along the fastest axis are next to each other."""
        groups = {name: ranks for name, ranks in groups.items() if len(ranks) > 1}
        if groups:
            slowest_first = sorted(groups, key=lambda name: groups[name][1] - groups[name][0], reverse=True)
            self._axes.append(tuple((name, len(groups[name])) for name in slowest_first))
            self.pipeline = tuple(groups.get("pp", ()))

    def layout(self, world_size: int) -> Layout:
        axes = max(([(name, size) for name, size in mesh if size > 1] for mesh in self._axes), key=len, default=[])
        return Layout(world_size=world_size, axes=tuple(axes), pipeline=self.pipeline, uneven=tuple(sorted(self._uneven)))


def _uneven_groups(parameter: Any) -> Iterable[tuple[int, ...]]:
    """The groups among which a distributed tensor is cut into parts that are not all of one size."""
    mesh = parameter.device_mesh
    cuts: dict[int, list[int]] = {}
    for axis, placement in enumerate(parameter.placements):
        if placement.is_shard() and mesh.size(axis) > 1:
            cuts.setdefault(placement.dim, []).append(axis)
    for dim, axes in cuts.items():
        num_parts = torch.Size([mesh.size(axis) for axis in axes]).numel()
        if parameter.shape[dim] % num_parts:
            yield from (tuple(dist.get_process_group_ranks(mesh.get_group(axis))) for axis in axes)
