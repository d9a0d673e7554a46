"""The time of a step in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memfit.timing.basis import MEASURED, basis_of

if TYPE_CHECKING:
    from memfit.hardware import Gpu
    from memfit.ledger import RunInfo
    from memfit.predict.result import Prediction

LEAST_SHARE = 0.005
"""A part of a step below this is not worth a word."""

HOST_BOUND_SHARE = 0.15
"""A GPU that is idle for a larger part of a step waits for its host, whose pace differs from day to day."""


def format_seconds(seconds: float) -> str:
    """``41.3 ms``, ``1.27 s``."""
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    return f"{1000 * seconds:.3g} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def speed_line(info: RunInfo) -> str:
    """``A step takes 1.07 s, 7,647 tokens a second, MFU 40.6%.``, from what a ledger has of it; empty where it has nothing."""
    speed = info.speed
    seconds = speed.get("step_seconds")
    return _speed(seconds, speed.get("tokens_per_second"), speed.get("mfu"), info.world_size) if seconds else ""


def speed_words(info: RunInfo, gpu: Gpu) -> Iterator[str]:
    """The same, and what it rests on."""
    if line := speed_line(info):
        yield line
        yield from _how_sure(gpu.name, basis_of(gpu))
        if info.world_size > 1:
            yield "Links between GPUs are those of usual nodes; none was measured."


def _speed(seconds: float, tokens: float | None, mfu: float | None, world_size: int) -> str:
    facts = [f"A step takes {format_seconds(seconds)}"]
    if tokens:
        # GPUs of a tensor parallel group look up the same ones, and nothing here says which GPUs those are.
        facts.append(f"{tokens:,.0f} tokens a second{'' if world_size == 1 else ' on this rank'}")
    facts += [f"MFU {mfu:.1%}"] if mfu else []
    return ", ".join(facts) + "."


def time_words(prediction: Prediction) -> Iterator[str]:
    """How long a step takes, where that time goes, and how sure it is; nothing where no step was seen."""
    parts = prediction.time_breakdown
    if parts is None or prediction.step_seconds is None or prediction.time is None:
        return
    yield _speed(prediction.step_seconds, prediction.tokens_per_second, prediction.mfu, prediction.ledger.info.world_size)
    shares = {
        "computing": parts.compute - parts.recompute,
        "computing again what was not kept": parts.recompute,
        "communication that nothing hides": parts.exposed_communication,
        "waiting for the host": parts.idle,
    }
    told = [f"{seconds / parts.total:.0%} {what}" for what, seconds in shares.items() if seconds > LEAST_SHARE * parts.total]
    if told:
        yield f"Of that, {', '.join(told)}."
    if parts.idle > HOST_BOUND_SHARE * parts.total and prediction.step_seconds_range is not None:
        low, high = map(format_seconds, prediction.step_seconds_range)
        yield f"The host is the slow one, and hosts differ: expect {low} to {high} for a step."
    time = prediction.time
    yield from _how_sure(prediction.target.gpu.name, time.basis, time.interconnect if parts.communication else "")


def _how_sure(gpu: str, basis: str, interconnect: str = "") -> Iterator[str]:
    """What was measured of it, in a line; ``interconnect`` where collectives take part of it."""
    of_links = f"links between GPUs are taken to be {interconnect}" if interconnect else ""
    if basis != MEASURED:
        more = f", and {of_links}" if interconnect else ""
        yield f"No operator was timed on {gpu}: its time is from published peaks{more} (memfit doctor --gpu {gpu})."
    elif interconnect:
        yield f"{of_links[0].upper()}{of_links[1:]}; none was measured."


def time_json(prediction: Prediction) -> dict[str, float | list[float] | None]:
    """For programs; null where no step was seen."""
    between = prediction.step_seconds_range
    return {
        "step_seconds": prediction.step_seconds,
        "step_seconds_range": None if between is None else list(between),
        "tokens_per_second": prediction.tokens_per_second,
        "mfu": prediction.mfu,
    }
