"""Which facts about a GPU were measured, published by others, or are assumed: what ``memfit doctor --gpu`` prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memfit.data import read_toml
from memfit.hardware import Gpu
from memfit.hardware.gpu import KEPT_SOURCE
from memfit.timing.basis import USUAL, is_measured
from memfit.timing.shares import published_shares
from memfit.units import format_bytes


def gpu_fact_lines(gpu: Gpu) -> Iterator[str]:
    """A line for each fact: measured, published or assumed, and by whom."""
    told: dict[str, Any] = read_toml(Path(gpu.file)).get("calibration", {}) if gpu.file else {}
    by_owner, is_known = set(told.get("measured", ())), is_measured(gpu) and not gpu.file
    yield f"{gpu.name} ({gpu.arch}, {gpu.num_sms} multiprocessors)"
    yield _line("memory", f"{format_bytes(gpu.usable_bytes)} usable", *_memory(gpu))
    context = (
        ("published", "2 KiB a thread, as four kinds of cards") if gpu.arch.startswith("sm_") else ("assumed", "as on other cards")
    )
    context = ("measured", "on this card") if "memory" in by_owner or is_known else context
    yield _line("context", f"{format_bytes(gpu.context_bytes)} beside tensors", *context)
    yield _line("NCCL", f"{format_bytes(gpu.communicator_bytes)} for the first group", "published", "NVIDIA/nccl issue 964")
    yield _line("peaks", f"{gpu.f16_flops / 1e12:,.0f} teraflops in half types", *_peaks(gpu))
    yield _line("products", "share of the peak", *_products(gpu, is_known, by_owner))
    assumed = ("assumed", f"the shares of peaks that an {USUAL} reaches")
    shares = published_shares(gpu)
    of_attention = ("published", "with the products") if shares is not None and shares.flash is not None else assumed
    for section, what in (("attention", "attention"), ("elementwise", "elementwise"), ("convolution", "convolutions")):
        otherwise = of_attention if section == "attention" else assumed
        yield _line(what, "", *(("measured", "") if section in by_owner or is_known else otherwise))
    host = ("measured", "") if "host" in by_owner or is_known else ("assumed", f"the machine that an {USUAL} was measured in")
    yield _line("host", "its pace", *host)
    yield _line("links", "collectives", "published", "others' measurements of NCCL (data/collectives.toml)")
    if rest := told.get("not_measured"):
        yield _line("the rest", "", "assumed", f"scaled with what was measured: {', '.join(rest)}")


def _memory(gpu: Gpu) -> tuple[str, str]:
    if gpu.usable_source.startswith("measured"):
        return "measured", gpu.usable_source.removeprefix("measured, ")
    return ("assumed" if gpu.usable_source in (KEPT_SOURCE, "as described") else "published"), gpu.usable_source


def _peaks(gpu: Gpu) -> tuple[str, str]:
    """A paper that nobody held against another table is not called published."""
    if gpu.file:
        return "published", gpu.speed_source
    if gpu.speed_compared:
        return "published", f"{gpu.speed_source}; the same in {gpu.speed_compared}"
    return "assumed", f"{gpu.speed_source}; not held against a second table"


def _products(gpu: Gpu, is_known: bool, by_owner: set[str]) -> tuple[str, str]:
    if is_known or "products" in by_owner:
        return "measured", ""
    shares = published_shares(gpu)
    return ("assumed", f"as an {USUAL}") if shares is None else ("published", shares.source)


def _line(what: str, value: str, how: str, source: str) -> str:
    return f"  {what:13s}{how:11s}{value}{': ' if value and source else ''}{source}".rstrip()
