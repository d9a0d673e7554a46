"""Seconds of a collective: from its bytes, its ranks and their links.

NCCL has several ways to do each, and takes the one that it expects to be the fastest. So does this file:

::

    ring      each rank passes a part on to its neighbour: the least bytes, a hop's latency for every rank
    tree      up and down a tree: all-reduce in twice the logarithm of the nodes, for small messages and many nodes
    NVLS      NVLink's switch adds up: all-reduce inside a node at more than the links' own rate

and each with a protocol: ``LL`` sends a flag with every word (half the bandwidth, the least latency), ``LL128`` with every 120
bytes, ``Simple`` waits between chunks. What each takes is in ``data/collectives.toml``, with its source.
"""

from __future__ import annotations

import math
from typing import Final

from memfit.timing.links import Interconnect, Protocol, facts

PROTOCOLS: Final = facts().protocols.ordered
"""LL, LL128 and Simple."""


def all_gather_seconds(total_bytes: float, num_ranks: int, links: Interconnect, ranks_are_adjacent: bool = True) -> float:
    """``total_bytes`` are what every rank has in the end."""
    return _ring(total_bytes, num_ranks, links, 1, ranks_are_adjacent)


def reduce_scatter_seconds(total_bytes: float, num_ranks: int, links: Interconnect, ranks_are_adjacent: bool = True) -> float:
    """``total_bytes`` are what every rank brings."""
    return _ring(total_bytes, num_ranks, links, 1, ranks_are_adjacent)


def all_reduce_seconds(size_bytes: float, num_ranks: int, links: Interconnect, ranks_are_adjacent: bool = True) -> float:
    """``size_bytes`` are what each rank brings, and has in the end."""
    ways = [_ring(size_bytes, num_ranks, links, 2, ranks_are_adjacent)]
    if num_ranks > 1 and not links.takes_no_time:
        inside = ranks_are_adjacent and not links.spans_nodes(num_ranks)
        if inside and links.multicast_bandwidth:
            ways.append(facts().multicast.base + _bus_bytes(size_bytes, num_ranks, 2) / links.multicast_bandwidth)
        elif not inside:
            ways.append(_tree(size_bytes, num_ranks, links, ranks_are_adjacent))
    return min(ways)


def broadcast_seconds(size_bytes: float, num_ranks: int, links: Interconnect, ranks_are_adjacent: bool = True) -> float:
    """From one rank to all; a reduction to one rank takes as long."""
    if num_ranks < 2 or links.takes_no_time:
        return 0.0
    # A ring passes all of it on, in parts.
    return min(
        protocol.base
        + _hops(num_ranks - 1, num_ranks, links, protocol, ranks_are_adjacent)
        + size_bytes / bandwidth / protocol.share
        for protocol in PROTOCOLS
        for bandwidth in (_bandwidth(num_ranks, links, ranks_are_adjacent),)
    )


def all_to_all_seconds(size_bytes: float, num_ranks: int, links: Interconnect, ranks_are_adjacent: bool = True) -> float:
    """``size_bytes`` are what each rank brings, for all ranks together: its own part stays."""
    if num_ranks < 2 or links.takes_no_time:
        return 0.0
    per_node = min(num_ranks, links.gpus_per_node) if ranks_are_adjacent else 1
    inside = size_bytes * (per_node - 1) / num_ranks / links.node_bandwidth
    outside = size_bytes * (num_ranks - per_node) / num_ranks / links.network_bandwidth
    simple = PROTOCOLS[-1]
    latency = simple.base + (simple.network_hop if outside else simple.node_hop)
    return latency + max(inside, outside)


def point_to_point_seconds(size_bytes: float, links: Interconnect, same_node: bool) -> float:
    """From one rank to another."""
    if links.takes_no_time:
        return 0.0
    bandwidth = links.node_bandwidth if same_node else links.network_bandwidth
    simple = PROTOCOLS[-1]
    hop = simple.network_hop if not same_node else simple.node_hop if links.is_nvlink else simple.pcie_hop
    return simple.base + hop + size_bytes / bandwidth


def least_seconds(bus_bytes: float, links: Interconnect) -> float:
    """What the links' own rates forbid to beat: the bytes that one GPU has to send over the fastest of them."""
    best = max(links.node_bandwidth, links.network_bandwidth, links.multicast_bandwidth)
    return bus_bytes / best


def _bus_bytes(size_bytes: float, num_ranks: int, passes: int) -> float:
    """What one rank sends in a ring."""
    return passes * size_bytes * (num_ranks - 1) / num_ranks


def _bandwidth(num_ranks: int, links: Interconnect, ranks_are_adjacent: bool) -> float:
    """Of the slowest link of a ring. All GPUs of a node send through their own adapters side by side, so that a ring over whole
    nodes has as many times the network's bandwidth as it has GPUs in a node; one over a GPU of each node has it once."""
    if ranks_are_adjacent and not links.spans_nodes(num_ranks):
        return links.node_bandwidth
    rails = min(num_ranks, links.gpus_per_node) if ranks_are_adjacent else 1
    return min(links.node_bandwidth, links.network_bandwidth * rails)


def _hops(steps: int, num_ranks: int, links: Interconnect, protocol: Protocol, ranks_are_adjacent: bool) -> float:
    inside = protocol.node_hop if links.is_nvlink else protocol.pcie_hop
    if ranks_are_adjacent and not links.spans_nodes(num_ranks):
        return steps * inside
    per_node = min(num_ranks, links.gpus_per_node) if ranks_are_adjacent else 1
    outside = steps / per_node
    return (steps - outside) * inside + outside * protocol.network_hop


def _ring(size_bytes: float, num_ranks: int, links: Interconnect, passes: int, ranks_are_adjacent: bool) -> float:
    if num_ranks < 2 or links.takes_no_time:
        return 0.0
    bandwidth = _bandwidth(num_ranks, links, ranks_are_adjacent)
    bus_bytes = _bus_bytes(size_bytes, num_ranks, passes)
    steps = passes * (num_ranks - 1)
    return min(
        protocol.base + _hops(steps, num_ranks, links, protocol, ranks_are_adjacent) + bus_bytes / bandwidth / protocol.share
        for protocol in PROTOCOLS
    )


def _tree(size_bytes: float, num_ranks: int, links: Interconnect, ranks_are_adjacent: bool) -> float:
    per_node = min(num_ranks, links.gpus_per_node) if ranks_are_adjacent else 1
    num_nodes = math.ceil(num_ranks / per_node)
    depth = max(1, math.ceil(math.log2(num_nodes)))
    bandwidth = _bandwidth(num_ranks, links, ranks_are_adjacent)
    return min(
        protocol.base
        + 2 * ((per_node - 1) * (protocol.node_hop if links.is_nvlink else protocol.pcie_hop) + depth * protocol.network_hop)
        + _bus_bytes(size_bytes, num_ranks, 2) / bandwidth / protocol.share
        for protocol in PROTOCOLS
    )
