"""What others published of GPUs that were not timed here: shares of their peaks, in place of those of the GPU that was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from memfit.data import FOLDER, parse_table, read_toml
from memfit.hardware import Gpu, known_gpus
from memfit.timing.rates import AttentionKernel, Rates


@dataclass(frozen=True, kw_only=True)
class FlashShares:
    """Of heads of 64, 128 and 256."""

    forward: tuple[float, float, float]
    backward: tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class PublishedShares:
    """A table of ``data/shares.toml``, whose head says what the keys mean."""

    gpus: tuple[str, ...]
    product: float
    sustained: float | None = None
    flash: FlashShares | None = None
    source: str


def published_shares(gpu: Gpu) -> PublishedShares | None:
    """What was published of a GPU or, where it is a part of one or has other memory, of that one."""
    name = gpu.name.split("=")[0].split(" MIG ")[0]
    return _by_name().get(name)


def with_shares(rates: Rates, shares: PublishedShares) -> Rates:
    """Rates with the published shares in place of those that were measured on another GPU."""
    products, attention = rates.products, rates.attention
    sustained = shares.sustained or shares.product * products.sustained_share / products.power_share
    if shares.flash is not None:
        flash = AttentionKernel(forward=shares.flash.forward, backward=shares.flash.backward)
        attention = replace(attention, kernels={**attention.kernels, "flash": flash})
    return replace(rates, products=replace(products, power_share=shares.product, sustained_share=sustained), attention=attention)


@cache
def _by_name() -> Mapping[str, PublishedShares]:
    tables: dict[str, Any] = read_toml(FOLDER / "shares.toml")
    parsed = [parse_table(PublishedShares, table, f"shares.toml, {name}") for name, table in tables.items()]
    unknown = {name for table in parsed for name in table.gpus} - {gpu.name for gpu in known_gpus()}
    assert not unknown, f"shares.toml names GPUs that gpus.toml does not have: {sorted(unknown)}"
    return {name: table for table in parsed for name in table.gpus}
