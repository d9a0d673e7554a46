"""How GPUs are connected, by name: ``8xH100-NVLink+400G`` is nodes of eight H100 on NVLink, each with 400 gigabits to others."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from memfit.errors import ConfigError
from memfit.hardware import GIGA, GPUS_PER_NODE, Gpu, find_gpu

NETWORK_GIGABITS: Final = 400
"""For each GPU where nothing is said: an HGX node has a 400 Gb/s adapter for each."""

NVLINK_SHARE: Final = 370 / 450
"""Of NVLink's line rate, what NCCL reaches: github.com/NVIDIA/nccl-tests issue 212 (370 GB/s), issue 309 (368.76 GB/s)."""

NETWORK_SHARE: Final = 47 / 50
"""Of an adapter's line rate: 46 to 48 GB/s of 400 Gb/s, github.com/NVIDIA/nccl-tests issue 290."""

PCIE_SHARE: Final = 0.8
"""Of PCIe's line rate, between GPUs: 26 of 32 GB/s is usual where peers reach each other. Not measured."""

MULTICAST_BUS_BANDWIDTH: Final = 478 * GIGA / (450 * GIGA)
"""NVLink SHARP, as a share of NVLink's line rate, in nccl-tests' way of counting: 475 GB/s on 8 H200 (nccl-tests issue 272), 476 on
8 H100 (issue 290), 480 at most (issue 212)."""


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """Links of a job. Bandwidths are bytes a second of one GPU in one direction, as NCCL reaches them."""

    name: str
    gpus_per_node: int
    node_bandwidth: float
    network_bandwidth: float
    multicast_bandwidth: float = 0.0
    """What the switch reaches when it adds up itself, counted as nccl-tests count; 0 where it cannot."""
    is_nvlink: bool = True
    takes_no_time: bool = False
    """Every collective is over at once: one rank alone is looked at."""
    host_seconds_per_rank: float = 0.0
    """What the host spends on an all-gather for each rank."""

    def spans_nodes(self, num_ranks: int) -> bool:
        return num_ranks > self.gpus_per_node


FREE: Final = Interconnect(
    name="none", gpus_per_node=GPUS_PER_NODE, node_bandwidth=float("inf"), network_bandwidth=float("inf"), takes_no_time=True
)
"""Communication that takes no time, as under torch's fake process group on a real GPU."""

FAKE: Final = replace(FREE, name="fake", host_seconds_per_rank=24.5e-6)
"""Torch's fake process group on a real GPU, which is how one rank of many was measured: nothing is sent, but an all-gather copies
what this rank has to the place of every other. 35 all-gathers among 64 ranks take 48 milliseconds longer than among 8 (``fsdp2_64``
and ``fsdp2_full`` in ``benchmarks/truth/h200_step_times.json``)."""

_NAME: Final = re.compile(r"(?:(\d+)x)?(.+?)-(nvlink|pcie)(?:\+(\d+)g)?", re.IGNORECASE)


def parse_interconnect(name: str) -> Interconnect:
    """Reads ``8xH100-NVLink+400G``; ``none`` is communication that takes no time."""
    if name.lower() in ("none", "fake"):
        return FREE if name.lower() == "none" else FAKE
    match = _NAME.fullmatch(name.strip())
    if match is None:
        raise ConfigError(
            f"cannot read {name!r} as an interconnect: write it like 8xH100-NVLink+400G (GPUs of a node, their link, gigabits a "
            "second of each GPU to other nodes), 4xL40S-PCIe+100G, or none"
        )
    chip = find_gpu(match[2])
    return _interconnect(
        name, chip, int(match[1] or GPUS_PER_NODE), match[3].lower() == "nvlink", float(match[4] or NETWORK_GIGABITS)
    )


def usual_interconnect(chip: Gpu, gpus_per_node: int = GPUS_PER_NODE) -> Interconnect:
    """What nodes of these GPUs usually have."""
    has_nvlink = chip.link_bandwidth > chip.host_bandwidth
    kind = "NVLink" if has_nvlink else "PCIe"
    name = f"{gpus_per_node}x{chip.name}-{kind}+{NETWORK_GIGABITS}G"
    return _interconnect(name, chip, gpus_per_node, has_nvlink, NETWORK_GIGABITS)


def _interconnect(name: str, chip: Gpu, gpus_per_node: int, is_nvlink: bool, gigabits: float) -> Interconnect:
    if gpus_per_node < 1 or gigabits <= 0:
        raise ConfigError(f"{name!r}: a node has at least one GPU, and a network more than 0 gigabits a second")
    if is_nvlink and chip.link_bandwidth <= chip.host_bandwidth:
        raise ConfigError(f"{name!r}: {chip.name} has no NVLink; write {gpus_per_node}x{chip.name}-PCIe")
    return Interconnect(
        name=name,
        gpus_per_node=gpus_per_node,
        node_bandwidth=chip.link_bandwidth * NVLINK_SHARE if is_nvlink else chip.host_bandwidth * PCIE_SHARE,
        network_bandwidth=gigabits / 8 * GIGA * NETWORK_SHARE,
        multicast_bandwidth=chip.link_bandwidth * MULTICAST_BUS_BANDWIDTH if is_nvlink and chip.has_multicast else 0.0,
        is_nvlink=is_nvlink,
    )
