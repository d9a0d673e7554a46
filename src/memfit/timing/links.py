"""How GPUs are connected, by name: ``8xH100-NVLink+400G`` is nodes of eight H100 on NVLink, each with 400 gigabits to others."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from memfit.data import FOLDER, parse_table, read_toml
from memfit.errors import ConfigError
from memfit.hardware import GIGA, GPUS_PER_NODE, Gpu, find_gpu

NETWORK_GIGABITS: Final = 400
"""For each GPU where nothing is said: an HGX node has a 400 Gb/s adapter for each."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How data is told from no data yet. Seconds, and the share of the bandwidth."""

    base: float
    """Before the first byte."""
    node_hop: float
    """For one step over NVLink."""
    pcie_hop: float
    network_hop: float
    share: float


@dataclass(frozen=True, kw_only=True)
class ProtocolFacts:
    ll: Protocol
    ll128: Protocol
    simple: Protocol
    source: str

    @property
    def ordered(self) -> tuple[Protocol, ...]:
        return self.ll, self.ll128, self.simple


@dataclass(frozen=True, kw_only=True)
class LinkShares:
    nvlink: float
    nvlink_source: str
    network: float
    network_source: str
    pcie: float
    pcie_source: str


@dataclass(frozen=True, kw_only=True)
class MulticastFacts:
    base: float
    base_source: str
    share: float
    share_source: str


@dataclass(frozen=True, kw_only=True)
class BesideFacts:
    slowdown: float
    source: str


@dataclass(frozen=True, kw_only=True)
class CollectiveFacts:
    """``data/collectives.toml``, whose head says what the keys mean."""

    protocols: ProtocolFacts
    shares: LinkShares
    multicast: MulticastFacts
    beside: BesideFacts


@cache
def facts() -> CollectiveFacts:
    return parse_table(CollectiveFacts, read_toml(FOLDER / "collectives.toml"), "collectives.toml")


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
    slowdown_beside: float = 0.0
    """How much longer kernels take while a collective runs."""
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
    shares = facts().shares
    return Interconnect(
        name=name,
        gpus_per_node=gpus_per_node,
        node_bandwidth=chip.link_bandwidth * shares.nvlink if is_nvlink else chip.host_bandwidth * shares.pcie,
        network_bandwidth=gigabits / 8 * GIGA * shares.network,
        multicast_bandwidth=chip.link_bandwidth * facts().multicast.share if is_nvlink and chip.has_multicast else 0.0,
        is_nvlink=is_nvlink,
        slowdown_beside=facts().beside.slowdown,
    )
