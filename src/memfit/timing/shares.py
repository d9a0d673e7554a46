"""What others published of GPUs that were not timed here: shares of their peaks, in place of those of the GPU that was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Final

from memfit.data import FOLDER, parse_table, read_toml
from memfit.hardware import Gpu, known_gpus
from memfit.timing.rates import AttentionKernel, ConvolutionRates, Rates, Row

HALF_AS_MANY: Final = ("sm_60", "sm_70", "sm_75", "sm_80")
"""Architectures whose multiprocessors add 64 numbers of float32 at a time; NVIDIA's others 128. Integers, loads, stores and
special functions are as many on all of them (CUDA's programming guide, arithmetic instructions)."""

WITH_OWN_INSTRUCTIONS: Final = ("sm_90", "sm_100", "sm_103")
"""Architectures whose whole peak only instructions of their own reach: not those with which FlashAttention 2 and the
memory-efficient kernels are written."""
SHARE_OF_OLD_INSTRUCTIONS: Final = 0.629
"""Of an H100's peak (arXiv 2402.13499)."""


@dataclass(frozen=True, kw_only=True)
class FlashShares:
    """Of heads of 64, 128 and 256."""

    forward: tuple[float, float, float]
    backward: tuple[float, float, float]
    source: str


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
        measured, efficient = attention.kernels["flash"], attention.kernels["efficient"]
        flash = AttentionKernel(forward=shares.flash.forward, backward=shares.flash.backward)
        # Both are written with the same instructions: what one reaches more, the other does.
        efficient = AttentionKernel(
            forward=_in_proportion(efficient.forward, flash.forward, measured.forward),
            backward=_in_proportion(efficient.backward, flash.backward, measured.backward),
        )
        attention = replace(attention, kernels={**attention.kernels, "flash": flash, "efficient": efficient})
    return replace(rates, products=replace(products, power_share=shares.product, sustained_share=sustained), attention=attention)


def on_multiprocessors(rates: Rates, measured: Gpu, gpu: Gpu) -> Rates:
    """Rates of ``measured`` for ``gpu``, whose multiprocessors are others, in number and in what each multiplies.

    Small tiles reach more of the peak of one that multiplies less. A tile's rows and columns come from the cache at a rate that is
    much the same for all multiprocessors: tiles of 64 by 64, 128 by 64 and 128 by 128 that were measured load 104 to 125 gigabytes
    a second, whatever share of the peak that leaves. One that multiplies less waits for them less, up to the share that large tiles
    reach; so do convolutions on tensor cores. Where it multiplies more, the library's tiles are larger.

    What one group of threads does, as for each channel of a norm, is done by one multiprocessor, however many others there are. It
    waits for memory to answer, which takes as long on all: 273 nanoseconds on an H100, 331 on an A100, 217 on an RTX 4090 (arXiv
    2402.13499).
    """
    fed = max(1.0, measured.f16_flops / measured.num_sms / (gpu.f16_flops / gpu.num_sms))
    kernels = rates.products.tensor_cores
    top = max(rates.products.power_share, max(share for *_, share in kernels.tiles))
    tiles = tuple((rows, columns, min(top, fed * share)) for rows, columns, share in kernels.tiles)
    there = replace(
        rates,
        products=replace(rates.products, tensor_cores=replace(kernels, tiles=tiles)),
        convolution=_with_fed_convolutions(rates.convolution, fed),
    )
    if not gpu.arch.startswith("sm_"):
        return there
    if gpu.arch in HALF_AS_MANY:
        there = _with_half_the_adders(there)
    alone = there.f32_flops / gpu.f32_flops
    groups = {name: replace(group, rate=group.rate * alone) for name, group in there.batch_norm.groups.items()}
    there = replace(there, batch_norm=replace(there.batch_norm, groups=groups))
    memory_for_each = gpu.memory_bandwidth / measured.memory_bandwidth / (_pace(gpu) / _pace(measured))
    return _on_less_memory(there, memory_for_each) if memory_for_each < 1 else there


def _with_fed_convolutions(rates: ConvolutionRates, fed: float) -> ConvolutionRates:
    def more(shares: Mapping[str, float]) -> Mapping[str, float]:
        return {name: min(1.0, fed * share) for name, share in shares.items()}

    kernels = {
        kind: replace(
            each,
            shares=more(each.shares),
            grouped_shares=more(each.grouped_shares),
            pointwise_shares=more(each.pointwise_shares),
            image_shares=more(each.image_shares),
        )
        if kind != "plain"
        else each
        for kind, each in rates.kernels.items()
    }
    return replace(rates, kernels=kernels)


def with_old_instructions(rates: Rates, gpu: Gpu) -> Rates:
    """Rates of the GPU that was measured, whose attention kernels reach a share of what its own instructions do, for one whose peak
    is that of the instructions they have."""
    if not gpu.arch.startswith("sm_") or gpu.arch in WITH_OWN_INSTRUCTIONS:
        return rates

    def more(shares: tuple[float, float, float]) -> tuple[float, float, float]:
        first, second, third = (min(1.0, share / SHARE_OF_OLD_INSTRUCTIONS) for share in shares)
        return first, second, third

    kernels = dict(rates.attention.kernels)
    for name in ("flash", "efficient"):
        kernels[name] = AttentionKernel(forward=more(kernels[name].forward), backward=more(kernels[name].backward))
    return replace(rates, attention=replace(rates.attention, kernels=kernels))


def _pace(gpu: Gpu) -> float:
    """Instructions a second of all multiprocessors, but for their number at a time, which is the same."""
    return gpu.f32_flops * (2 if gpu.arch in HALF_AS_MANY else 1)


def _with_half_the_adders(rates: Rates) -> Rates:
    """Rates are in proportion to the peak in float32. Where that is lower because there are half as many adders, only arithmetic in
    float32 is slower by it; types, places and loads are not."""
    elementwise, compiled, convolution = rates.elementwise, rates.compiled, rates.convolution
    direct = {name: teraflops / 2 for name, teraflops in convolution.direct_teraflops.items()}
    return replace(
        rates,
        f32_flops=rates.f32_flops / 2,
        elementwise=replace(elementwise, slow={name: rate / 2 for name, rate in elementwise.slow.items()}),
        compiled=replace(compiled, slow_loop=compiled.slow_loop / 2),
        convolution=replace(convolution, direct_teraflops=direct),
    )


def _on_less_memory(rates: Rates, memory_for_each: float) -> Rates:
    """Kernels that leave a part of the memory's bandwidth unused ask for no more: their multiprocessors have only so many loads on
    the way. Where there is less memory bandwidth for each instruction, they use more of it, up to what a plain copy does. Of
    several kernels each may read again what the first has read: two of three tensors, as in the backward of a norm."""
    top = rates.elementwise.memory_share

    def used(share: float, num_kernels: int = 1) -> float:
        return max(share, min(top * 3 / (2 * num_kernels + 1), share / memory_for_each))

    def there(value: Any) -> Any:
        if isinstance(value, Row):
            share = used(value.bandwidth / rates.memory_bandwidth, value.num_kernels)
            return replace(value, bandwidth=share * rates.memory_bandwidth)
        if is_dataclass(value) and not isinstance(value, type):
            changed = {field.name: there(getattr(value, field.name)) for field in fields(value)}
            if "memory_share" in changed:
                changed["memory_share"] = used(changed["memory_share"])
            return replace(value, **changed)
        if isinstance(value, Mapping):
            return {key: there(each) for key, each in value.items()}
        return tuple(map(there, value)) if isinstance(value, tuple) else value

    found: Rates = there(rates)
    turning = {size: used(share) for size, share in found.convolution.turning_share.items()}
    return replace(found, convolution=replace(found.convolution, turning_share=turning))


def _in_proportion(
    shares: tuple[float, float, float], there: tuple[float, float, float], here: tuple[float, float, float]
) -> tuple[float, float, float]:
    first, second, third = (min(1.0, share * now / then) for share, now, then in zip(shares, there, here, strict=True))
    return first, second, third


@cache
def _by_name() -> Mapping[str, PublishedShares]:
    tables: dict[str, Any] = read_toml(FOLDER / "shares.toml")
    parsed = [parse_table(PublishedShares, table, f"shares.toml, {name}") for name, table in tables.items()]
    unknown = {name for table in parsed for name in table.gpus} - {gpu.name for gpu in known_gpus()}
    assert not unknown, f"shares.toml names GPUs that gpus.toml does not have: {sorted(unknown)}"
    return {name: table for table in parsed for name in table.gpus}
