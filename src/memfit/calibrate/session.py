"""The order in which a card is measured, and how figures become a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from memfit import data
from memfit.calibrate.card import card_table, table_of
from memfit.calibrate.file import to_toml
from memfit.calibrate.fitting import FittedRates, TimedCall, fit
from memfit.calibrate.host import host_table, transfer_table
from memfit.calibrate.meter import CardMeter, Measurements
from memfit.hardware import Gpu
from memfit.timing import Call
from memfit.timing.basis import rates_of
from memfit.timing.leaves import brought_up_to_date, find_leaves, in_proportion
from memfit.timing.rates import BESIDE_RATES

TEMPLATE: Final = "h200.toml"
"""The file of rates whose formulas' numbers are moved."""
LEAST_SUSTAINED: Final = 0.3
"""Of the share that one product reaches: below it, something else ran on the card."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Calibration:
    measured: Measurements
    fitted: FittedRates
    tables: dict[str, Any]
    """Of the file."""

    def to_toml(self) -> str:
        return to_toml(self.tables)


def measure(meter: CardMeter, *, seconds: float = 150.0, tell: Tell = lambda line: None) -> Measurements:
    """Everything that there is time for, most important first. Interrupting it keeps what was measured until then."""
    ends = time.monotonic() + seconds
    found = Measurements(card=meter.card())
    tell(f"{found.card.name}: {found.card.usable_bytes / 2**30:.2f} GiB, {found.card.num_sms} multiprocessors")

    def memory() -> None:
        found.memory = meter.memory()

    parts: list[tuple[str, Callable[[], None]]] = [
        ("what a process takes beside its tensors", memory),
        ("the host's pace", lambda: found.host.update(meter.host())),
        ("copies between host and card", lambda: found.copies.update(meter.copies())),
        ("products without a pause, while the card gets hot", lambda: found.sustained.update(meter.sustained())),
    ]
    parts += [(f"kernels: {family}", _kernels(meter, family, found)) for family in meter.kernel_families]
    try:
        for number, (what, part) in enumerate(parts):
            if time.monotonic() > ends:
                found.errors.append(f"no time was left for {', '.join(name for name, _ in parts[number:])}")
                break
            tell(f"{number + 1} of {len(parts)}: {what}")
            try:
                part()
            except (RuntimeError, ValueError, OSError, AttributeError) as error:
                found.errors.append(f"{what}: {type(error).__name__}: {error}".splitlines()[0][:200])
    except KeyboardInterrupt:
        found.errors.append("interrupted")
        tell("interrupted: what was measured until now is kept")
    return found


def _kernels(meter: CardMeter, family: str, found: Measurements) -> Callable[[], None]:
    def part() -> None:
        calls, errors = meter.kernels(family)
        found.calls.extend(calls)
        found.errors.extend(f"{family}: {error}" for error in errors)

    return part


def conclude(
    measured: Measurements, *, name: str = "", about: Mapping[str, Any] | None = None, template: Mapping[str, Any] | None = None
) -> Calibration:
    """The file's tables. ``about`` goes into its table ``calibration``: versions, date, seconds."""
    known = dict(template if template is not None else data.read_toml(data.FOLDER / "rates" / TEMPLATE))
    table = card_table(measured, _copied(measured), name)
    gpu = Gpu.from_table(table["name"], {key: value for key, value in table.items() if key != "name"}, "gpu")
    fitted = fit([*measured.calls, *_single_products(measured)], _template_for(known, gpu), gpu)
    tables = dict(fitted.tables)
    tables["products"] = {**tables["products"], "sustained_share": _sustained(measured, tables, gpu)}
    tables["transfers"] = transfer_table(measured.copies, tables["transfers"])
    tables["host"] = host_table(measured.host, tables["host"])
    calibration = {
        **(about or {}),
        "card": measured.card.name,
        **{f"{key}_version": value for key, value in measured.card.versions.items()},
        "num_calls": len(measured.calls),
        "off_before": round(fitted.before, 4),
        "off_after": round(fitted.after, 4),
        "measured": _measured_parts(measured, fitted),
        "not_measured": sorted({leaf.section for leaf in find_leaves(tables)} - fitted.measured),
        "errors": measured.errors[:20],
    }
    if measured.memory is not None:
        calibration["memory"] = asdict(measured.memory)
    return Calibration(measured, fitted, {**tables, "gpu": table, "calibration": calibration})


def tables_of(gpu: Gpu) -> dict[str, Any]:
    """The tables of a card's file; of a GPU without one those that stand for it, as a file would have them."""
    if gpu.file:
        tables = data.read_toml(Path(gpu.file))
        beside: dict[str, Any] = {key: tables[key] for key in BESIDE_RATES if key in tables}
        return {**brought_up_to_date(tables, data.read_toml(data.FOLDER / "rates" / TEMPLATE)), **beside}
    return {**data.table_of(rates_of(gpu)), "gpu": table_of(gpu), "calibration": {}}


def _template_for(template: Mapping[str, Any], gpu: Gpu) -> dict[str, Any]:
    """The template's figures at the peaks of this card."""
    found = in_proportion(template, gpu.memory_bandwidth, gpu.f32_flops)
    return {**found, "measured_on": gpu.name, "memory_bandwidth": gpu.memory_bandwidth / 1e9, "f32_flops": gpu.f32_flops}


def _sustained(measured: Measurements, tables: Mapping[str, Any], gpu: Gpu) -> float:
    """Of the peak of half types; in the template's proportion to one product where it was not measured."""
    one = float(tables["products"]["power_share"])
    kind = "bf16" if "bf16" in measured.sustained else "f16"
    if kind not in measured.sustained:
        return float(tables["products"]["sustained_share"])
    share = measured.sustained[kind] / gpu.product_flops(kind)
    return round(share if share > LEAST_SUSTAINED * one else one, 4)


def _single_products(measured: Measurements) -> list[TimedCall]:
    """The products in float32 that followed one another: without tensor cores a card does not slow down, and they are a call like
    others."""
    if "f32" not in measured.sustained:
        return []
    return [TimedCall(Call.parse("mm f32[4096,4096] f32[4096,4096] > f32[4096,4096]"), 2 * 4096**3 / measured.sustained["f32"])]


def _copied(measured: Measurements) -> float:
    """Bytes a second of the fastest large copy."""
    found = [
        sum(tensor.size_bytes for tensor in (*timed.call.inputs, *timed.call.outputs)) / timed.seconds
        for timed in measured.calls
        if timed.call.name in ("clone", "mul") and timed.call.outputs[0].size_bytes > 2**26
    ]
    return max(found, default=500e9)


def _measured_parts(measured: Measurements, fitted: FittedRates) -> list[str]:
    parts = {
        "memory": measured.memory is not None,
        "host": bool(measured.host),
        "transfers": bool(measured.copies),
        "sustained": bool(measured.sustained),
    }
    return [*(name for name, is_there in parts.items() if is_there), *sorted(fitted.measured)]
