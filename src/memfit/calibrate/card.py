"""A measured card as a table of ``data/gpus.toml``: memory as measured, peaks as published or as its architecture has them."""

from __future__ import annotations

from typing import Any, Final

from memfit.calibrate.meter import CardFacts, Measurements, MemoryFacts
from memfit.errors import ConfigError
from memfit.hardware import GIGA, TERA, Gpu
from memfit.hardware.names import find_known
from memfit.units import MIB

HALF_PER_CLOCK: Final = {(7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192}
"""Operations in half types that a multiprocessor does in a clock, sums in float32 (NVIDIA's architecture papers)."""
HALF_PER_CLOCK_OTHERS: Final = 1024
GEFORCE_SHARE: Final = 0.5
"""Of that, what cards made for games do with sums in float32."""
FLOAT_PER_CLOCK: Final = {(6, 0): 128, (7, 0): 128, (7, 5): 128, (8, 0): 128}
FLOAT_PER_CLOCK_OTHERS: Final = 256
REACHED_BY_COPIES: Final = 0.915
"""Of a memory's bandwidth, by a large copy on an H200: where nothing says the bandwidth."""
REACHED_BY_PINNED: Final = 0.8671875
"""Of PCIe's, on an H200."""


def known_card(facts: CardFacts) -> Gpu | None:
    """The card of that name, where memfit knows one with as many multiprocessors."""
    try:
        found = find_known(facts.name)
    except ConfigError:
        return None
    return found if found.num_sms == facts.num_sms else None


def card_table(measured: Measurements, copied_bytes_per_second: float, name: str = "") -> dict[str, Any]:
    """A table like those of ``data/gpus.toml``, with the card's name. With a ``name`` of one's own nothing that is published of the
    card is used."""
    facts, known = measured.card, None if name else known_card(measured.card)
    major, minor = facts.capability
    table: dict[str, Any] = {
        "name": name or (known.name if known else facts.name.replace("NVIDIA ", "").replace(" ", "-")),
        "arch": f"sm_{major}{minor}",
        "num_sms": facts.num_sms,
        "total": facts.total_bytes,
        "usable": facts.usable_bytes,
        "usable_source": f"measured, with driver {facts.versions.get('driver', 'unknown')}",
        "l2_cache": facts.l2_cache_bytes,
    }
    if measured.memory is not None:
        table |= _memory_keys(measured.memory)
    host = measured.copies.get("pinned_to", 0.0) / REACHED_BY_PINNED
    if known is not None:
        peaks = {"bf16": known.bf16_flops, "f16": known.f16_flops, "tf32": known.tf32_flops, "f8": known.f8_flops}
        peaks |= {"f32": known.f32_flops, "f64": known.f64_flops}
        memory, link, source = known.memory_bandwidth, known.link_bandwidth, known.speed_source
        table["has_multicast"] = known.has_multicast
        host = host or known.host_bandwidth
    else:
        peaks = peaks_of(facts)
        memory = facts.memory_bandwidth or copied_bytes_per_second / REACHED_BY_COPIES
        host = host or 32 * GIGA
        link = measured.copies.get("peer", 0.0) or host
        source = "its clock and its architecture's operations in a clock"
    table["teraflops"] = {kind: round(peak / TERA, 4) for kind, peak in peaks.items()}
    table["gigabytes_per_second"] = {
        "memory": round(memory / GIGA, 2),
        "link": round(link / GIGA, 2),
        "host": round(host / GIGA, 3),
    }
    table["speed_source"] = source
    return table


def table_of(gpu: Gpu) -> dict[str, Any]:
    """A GPU as a table of a file, with its name; figures that were left out in its own table are written out."""
    peaks = {kind: gpu.product_flops(kind) for kind in ("bf16", "f16", "tf32", "f8", "f32", "f64")}
    bandwidths = {"memory": gpu.memory_bandwidth, "link": gpu.link_bandwidth, "host": gpu.host_bandwidth}
    return {
        "name": gpu.name.partition("=")[0],
        "arch": gpu.arch,
        "num_sms": gpu.num_sms,
        "total": gpu.total_bytes,
        "usable": gpu.usable_bytes,
        "usable_source": gpu.usable_source,
        "context": gpu.context_bytes,
        "communicator": gpu.communicator_bytes,
        "cublas_workspace": gpu.cublas_workspace_bytes,
        "caveat": gpu.caveat,
        "l2_cache": gpu.l2_cache_bytes,
        "last_level_cache": gpu.last_level_cache_bytes,
        "teraflops": {kind: round(peak / TERA, 4) for kind, peak in peaks.items()},
        "gigabytes_per_second": {path: round(bandwidth / GIGA, 3) for path, bandwidth in bandwidths.items()},
        "has_multicast": gpu.has_multicast,
        "speed_source": gpu.speed_source,
    }


def peaks_of(facts: CardFacts) -> dict[str, float]:
    """Operations a second by type, from the card's clock."""
    clocks = facts.num_sms * facts.clock_hertz
    half = HALF_PER_CLOCK.get(facts.capability, HALF_PER_CLOCK_OTHERS) * (GEFORCE_SHARE if "GeForce" in facts.name else 1.0)
    single = FLOAT_PER_CLOCK.get(facts.capability, FLOAT_PER_CLOCK_OTHERS)
    double = single / (2 if facts.capability in ((6, 0), (7, 0), (8, 0)) else 1 if facts.capability == (9, 0) else 64)
    has_bf16, has_f8 = facts.capability >= (8, 0), facts.capability >= (8, 9)
    return {
        "bf16": clocks * (half if has_bf16 else single),
        "f16": clocks * half,
        "tf32": clocks * (half / 2 if has_bf16 else single),
        "f8": clocks * half * (2 if has_f8 else 1),
        "f32": clocks * single,
        "f64": clocks * double,
    }


def _memory_keys(memory: MemoryFacts) -> dict[str, Any]:
    """Whole mebibytes, upwards: a figure that is too small would say that a run fits."""
    return {"context": -(-memory.context_bytes // MIB) * MIB, "cublas_workspace": memory.cublas_workspace_bytes}
