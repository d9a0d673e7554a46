"""What a solver is told of a model, with PyTorch's names: module by module, and moment by moment.

::

    MemTracker ──────┐
    RuntimeEstimator ┼─ aggregate_stats ──> ModuleInfo ── parse_module_info ──> Graph ──> sac_ilp.sac_milp
    SACEstimator ────┘
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import torch

from memfit.compat.estimators.curves import policies_of
from memfit.compat.estimators.moments import PiecePeak, moments_of
from memfit.compat.estimators.units import is_self_or_submodule, is_submodule
from memfit.compat.mem_tracker import MemTracker
from memfit.compat.runtime_estimator import RuntimeEstimator
from memfit.compat.sac_estimator import SACEstimator
from memfit.compat.trackers.torch_categories import MemRefType, ModState, SnapshotState
from memfit.compat.trackers.tracker_snapshots import ModuleMemStats
from memfit.errors import ConfigError
from memfit.ledger import Ledger
from memfit.ledger.schema import Array

__all__ = [
    "Graph",
    "ModOrder",
    "ModRuntime",
    "ModStats",
    "ModuleInfo",
    "Node",
    "aggregate_stats",
    "display_bytes",
    "get_peak_memory_runtime_baseline",
    "is_self_or_submodule",
    "is_submodule",
    "parse_module_info",
]


class ModOrder(TypedDict):
    """Names of modules as they began and ended; one that is called twice is there twice."""

    fw_pre_order: list[str]
    bw_pre_order: list[str]
    fw_post_order: list[str]
    bw_post_order: list[str]


class ModRuntime(TypedDict):
    """Milliseconds."""

    fw: float
    bw: float


class ModStats(TypedDict):
    """What is known of a module. Sizes are bytes, and of a module with all modules inside it."""

    fqn: str
    param_per_module: int
    grad_per_module: int
    """Of those parameters that are trained."""
    grad_total: int
    """All gradients when its backward begins."""
    act_fw_per_module: int
    """What its forward leaves for backward, without its inputs and outputs."""
    act_bw_per_module: int
    """All activations at the highest moment of its backward."""
    act_grad_per_module: int
    """By how much temporaries grow from the beginning of its backward to the highest moment."""
    act_total: int
    """All activations when its forward ends."""
    input_per_module: int
    output_per_module: int
    fw_runtime_per_module: float
    bw_runtime_per_module: float
    is_leaf: bool
    sac_runtime: float
    sac_memory: int
    n_segments: int
    slopes: list[float]
    intercepts: list[float]
    breakpoints: list[float]
    tradeoff_curve: OrderedDict[float, float]
    policies: NotRequired[list[tuple[int, int, float]]]
    """For each point of the curve: bytes kept, how many of those autograd would not keep, milliseconds that run again."""
    held_inputs: NotRequired[int]
    """What a checkpoint would hold in inputs, and that nothing holds without it."""


class ModuleInfo(TypedDict):
    mod_order: ModOrder
    mod_stats: list[ModStats]
    moments: NotRequired[list[PiecePeak]]
    """The highest moments of the step, with everything that was in use: optimizer state and temporaries too."""
    workspace_bytes: NotRequired[int]
    """What libraries keep on a GPU beside that, at all moments."""


class Node(ModStats):
    index: int
    """In the order in which modules began their forwards."""
    pos_fw_post_order: int
    """In the order in which they ended them, for the last time."""


class Graph:
    """The modules of a model as a tree, in the order of forward."""

    def __init__(self, n: int) -> None:
        self.nodes: list[Node] = []
        self.name2node: dict[str, Node] = {}
        self.ad_matrix: Array = np.zeros((n, n))
        """``[i][j]`` is 1 where ``j`` is ``i`` or inside it."""
        self.fw_post_order: list[str] = []
        self.moments: list[PiecePeak] = []
        self.workspace_bytes = 0

    def add_node(self, node: Node) -> None:
        self.nodes.append(node)
        self.name2node[node["fqn"]] = node


def aggregate_stats(
    model: torch.nn.Module,
    mem_tracker: MemTracker,
    runtime_estimator: RuntimeEstimator,
    sac_estimator: SACEstimator,
    dev: torch.device,
) -> ModuleInfo:
    """Puts together what three runs of a model's training step have shown. All three must be memfit's.

    ``mem_tracker`` counts from its last ``reset_mod_stats``: reset it after a first step, so that the optimizer has its state.
    """
    for given, kind in ((mem_tracker, MemTracker), (runtime_estimator, RuntimeEstimator), (sac_estimator, SACEstimator)):
        if not isinstance(given, kind):
            raise TypeError(
                f"aggregate_stats needs a memfit.compat.{kind.__name__}, not a {type(given).__module__}.{type(given).__name__}"
            )
    sac_estimator.pwlf_sac_tradeoff_curve(n_segments=None)
    tracked = dict(mem_tracker.memory_tracking)
    stats = [
        _module_stats(module, tracked[module], runtime_estimator, sac_estimator, dev)
        for module in model.modules()
        if module in tracked and tracked[module].mod_fqn in runtime_estimator.mod_fw_pre_order
    ]
    ledger = mem_tracker.ledger
    candidates = [one["fqn"] for one in stats if not one["is_leaf"]]
    return {
        "mod_order": {
            "fw_pre_order": list(runtime_estimator.mod_fw_pre_order),
            "bw_pre_order": list(runtime_estimator.mod_bw_pre_order),
            "fw_post_order": list(runtime_estimator.mod_fw_post_order),
            "bw_post_order": list(runtime_estimator.mod_bw_post_order),
        },
        "mod_stats": stats,
        "moments": moments_of(ledger, _device_number(ledger, dev), mem_tracker.first_event, candidates),
        "workspace_bytes": runtime_estimator.workspace_bytes if dev.type == "cuda" else 0,
    }


def _module_stats(
    module: torch.nn.Module, memory: ModuleMemStats, times: RuntimeEstimator, sac: SACEstimator, dev: torch.device
) -> ModStats:
    name = memory.mod_fqn
    sizes = _Snapshots(memory, dev)
    curve, operators = sac.sac_mod_tradeoff_stats.get(name), sac.sac_mod_stats.get(name)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    is_all_trained = len(trained) == len(list(module.parameters()))
    spent = times.mod_runtimes.get(name, {})
    if operators is None:
        kept = max(0, sizes.at(ModState.POST_FW, MemRefType.ACT) - sizes.at(ModState.PRE_FW, MemRefType.ACT) - memory.output_mem)
    else:
        kept = sum(operators.memory[i] for i in operators.saved_autograd_ops)
    return {
        "fqn": name,
        "param_per_module": memory.parameter_mem,
        "grad_per_module": memory.parameter_mem if is_all_trained else sum(one.numel() * one.element_size() for one in trained),
        "grad_total": sizes.at(ModState.PRE_BW, MemRefType.GRAD),
        "act_fw_per_module": kept,
        "act_bw_per_module": sizes.at(ModState.PEAK_BW, MemRefType.ACT),
        "act_grad_per_module": max(0, sizes.at(ModState.PEAK_BW, MemRefType.TEMP) - sizes.at(ModState.PRE_BW, MemRefType.TEMP)),
        "act_total": sizes.at(ModState.POST_FW, MemRefType.ACT),
        "input_per_module": memory.input_mem,
        "output_per_module": memory.output_mem,
        "fw_runtime_per_module": spent.get("fw", 0.0),
        "bw_runtime_per_module": spent.get("bw", 0.0),
        "is_leaf": curve is None,
        "sac_runtime": curve.sac_runtime if curve else 0.0,
        "sac_memory": curve.sac_memory if curve else 0,
        "n_segments": curve.n_segments if curve else 0,
        "slopes": list(curve.slopes) if curve else [],
        "intercepts": list(curve.intercepts) if curve else [],
        "breakpoints": list(curve.fit_breaks) if curve else [],
        "tradeoff_curve": OrderedDict(curve.tradeoff_curve) if curve else OrderedDict(),
        "policies": [
            (policy.stored_bytes, policy.stored_for_nothing_bytes, policy.recompute_ms)
            for policy in (policies_of(operators) if operators else ())
        ],
        "held_inputs": sac.held_inputs.get(name, 0),
    }


class _Snapshots:
    """A module's snapshots on one device. A module without backward has none of it: nothing was in use then for it."""

    def __init__(self, memory: ModuleMemStats, dev: torch.device) -> None:
        self._snapshots: Mapping[SnapshotState, list[dict[torch.device, Any]]] = memory.snapshots
        self._device = dev

    def at(self, state: SnapshotState, kind: MemRefType) -> int:
        taken = [one for one in self._snapshots.get(state, []) if self._device in one]
        return int(taken[-1][self._device][kind]) if taken else 0


def _device_number(ledger: Ledger, dev: torch.device) -> int:
    names = [device.name for device in ledger.devices]
    wanted = [str(dev), f"{dev.type}:{dev.index or 0}", dev.type]
    for name in wanted:
        if name in names:
            return names.index(name)
    raise ConfigError(f"nothing was in use on {dev}: the run was on {', '.join(names) or 'no device'}")


def parse_module_info(module_info: ModuleInfo) -> Graph:
    """The tree of modules. Modules stand in the order in which they began their first forward, however they are registered."""
    order = list(dict.fromkeys(module_info["mod_order"]["fw_pre_order"]))
    ends = module_info["mod_order"]["fw_post_order"]
    stats = {one["fqn"]: one for one in module_info["mod_stats"]}
    unknown = [name for name in stats if name not in order or name not in ends]
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} never ran forward, and cannot be in a graph of what did: leave it out of mod_stats"
        )
    graph = Graph(len(stats))
    graph.fw_post_order = list(ends)
    last_end = {name: position for position, name in enumerate(ends)}
    for index, name in enumerate(name for name in order if name in stats):
        graph.add_node(cast(Node, {**stats[name], "index": index, "pos_fw_post_order": last_end[name]}))
    for i, ancestor in enumerate(graph.nodes):
        for j, descendant in enumerate(graph.nodes):
            graph.ad_matrix[i][j] = is_self_or_submodule(descendant["fqn"], ancestor["fqn"])
    graph.moments = module_info.get("moments") or _moments_from_nodes(graph)
    graph.workspace_bytes = module_info.get("workspace_bytes", 0)
    return graph


def _moments_from_nodes(graph: Graph) -> list[PiecePeak]:
    """Without recorded moments: the beginning of each module's backward, of what its own figures say. No optimizer state."""
    parameters = graph.nodes[0]["param_per_module"] if graph.nodes else 0
    found = []
    for node in graph.nodes:
        rest = node["act_total"] + node["act_grad_per_module"]
        over = set(graph.fw_post_order[: node["pos_fw_post_order"]])
        held = [
            other["fqn"] for other in graph.nodes if other["fqn"] in over and not is_self_or_submodule(node["fqn"], other["fqn"])
        ]
        found.append(
            PiecePeak(
                module=node["fqn"],
                phase="backward",
                total=parameters + node["grad_total"] + rest,
                parameters=parameters,
                gradients=node["grad_total"],
                optimizer=0,
                rest=rest,
                held=held,
                again="",
                excess=0,
            )
        )
    return found


_UNITS = {"B": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def display_bytes(b: int, unit: str = "MiB") -> str:
    """``1.50 GiB``."""
    if unit not in _UNITS:
        raise ConfigError(f"cannot show bytes in {unit!r}: {', '.join(_UNITS)} are known")
    return f"{b / _UNITS[unit]:.2f} {unit}"


def get_peak_memory_runtime_baseline(graph: Graph) -> tuple[int, float]:
    """Bytes at the peak of forward and backward, and milliseconds of both, with no checkpointing and nothing sharded.

    As PyTorch defines it, neither the optimizer's state nor workspaces are in it. ``sac_milp`` counts both.
    """
    peak = max((one["total"] - one["optimizer"] for one in graph.moments if one["phase"] != "optimizer"), default=0)
    roots = [node for node in graph.nodes if "." not in node["fqn"]]
    return peak, sum(node["fw_runtime_per_module"] + node["bw_runtime_per_module"] for node in roots)
