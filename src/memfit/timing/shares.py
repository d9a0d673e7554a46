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


def on_multiprocessors(rates: Rates, measured: Gpu, gpu: Gpu) -> Rates:
    """Rates of ``measured`` for ``gpu``, whose multiprocessors are others, in number and in what each multiplies.

    Small tiles reach more of the peak of one that multiplies less. A tile's rows and columns come from the cache at a rate that is
    much the same for all multiprocessors: tiles of 64 by 64, 128 by 64 and 128 by 128 that were measured load 104 to 125 gigabytes
    a second, whatever share of the peak that leaves. One that multiplies less waits for them less, up to the share that large tiles
    reach. Where it multiplies more, the library's tiles are larger.

    What one group of threads does, as for each channel of a norm, is done by one multiprocessor, however many others there are.
    """
    fed = measured.f16_flops / measured.num_sms / (gpu.f16_flops / gpu.num_sms)
    kernels, alone = rates.products.tensor_cores, measured.num_sms / gpu.num_sms
    top = max(rates.products.power_share, max(share for *_, share in kernels.tiles))
    tiles = tuple((rows, columns, min(top, max(fed, 1.0) * share)) for rows, columns, share in kernels.tiles)
    groups = {name: replace(group, rate=group.rate * alone) for name, group in rates.batch_norm.groups.items()}
    return replace(
        rates,
        products=replace(rates.products, tensor_cores=replace(kernels, tiles=tiles)),
        batch_norm=replace(rates.batch_norm, groups=groups),
    )


@cache
def _by_name() -> Mapping[str, PublishedShares]:
    tables: dict[str, Any] = read_toml(FOLDER / "shares.toml")
    parsed = [parse_table(PublishedShares, table, f"shares.toml, {name}") for name, table in tables.items()]
    unknown = {name for table in parsed for name in table.gpus} - {gpu.name for gpu in known_gpus()}
    assert not unknown, f"shares.toml names GPUs that gpus.toml does not have: {sorted(unknown)}"
    return {name: table for table in parsed for name in table.gpus}
