"""How a run stands, on the terminal: one rank in full, or all of them in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from memfit.analysis.peaks import share_out
from memfit.analysis.status import Status
from memfit.units import format_bytes
from memfit.views.escaping import printable
from memfit.views.tables import block_of, plain_table
from memfit.views.terminal import BAR_WIDTH, BESIDE_BARS, LEAST_BAR_WIDTH
from memfit.views.words.moments import count, name_step


def draw_status(statuses: Sequence[Status], console: Console) -> RenderableType:
    """The rank with the least room in full; where there are several, a row for each, that one first."""
    parts: list[RenderableType] = []
    if len(statuses) > 1:
        parts.append(_ranks(statuses))
    if statuses:
        parts += list(_one(statuses[0], console))
    return Group(*parts)


def _ranks(statuses: Sequence[Status]) -> RenderableType:
    table = plain_table("rank>", "step>", "in use>", "reserved>", "peak>", "left>", "")
    for number, status in enumerate(statuses):
        left = "" if status.headroom_bytes is None else format_bytes(status.headroom_bytes)
        reserved = "" if status.reserved_bytes is None else format_bytes(status.reserved_bytes)
        row = str(status.rank), name_step(status.step), format_bytes(status.allocated_bytes), reserved
        remark = "least room" if number == 0 else ""
        alarms = count(len(status.alarms), "alarm") if status.alarms else ""
        table.add_row(*row, format_bytes(status.peak_bytes), left, Text(", ".join(filter(None, (remark, alarms))), style="yellow"))
    return table


def _one(status: Status, console: Console) -> Iterator[RenderableType]:
    place = f"rank {status.rank}, {printable(status.device)}" if status.device else f"rank {status.rank}"
    yield Text.assemble((place, "bold"), f"  {_step(status.step)} finished" if status.step >= 0 else "  no step finished yet")
    yield Text(f"  in use    {format_bytes(status.allocated_bytes)}")
    yield Text(f"  peak      {format_bytes(status.peak_bytes)}")
    if status.reserved_bytes is not None and status.unused_bytes is not None:
        yield Text(f"  reserved  {format_bytes(status.reserved_bytes)}, {format_bytes(status.unused_bytes)} of it not in use")
    if status.headroom_bytes is not None and status.capacity_bytes is not None:
        yield Text(f"  left      {format_bytes(status.headroom_bytes)} of {format_bytes(status.capacity_bytes)}")
    yield Text(f"  trend     {_trend(status)}")
    if status.breakdown:
        yield Text(f"  by category, as of {_step(status.breakdown_step)}:")
        table = plain_table("", ">", ">", "")
        block, width = block_of(console), max(min(BAR_WIDTH, console.width - BESIDE_BARS), LEAST_BAR_WIDTH)
        for share in share_out(status.breakdown):
            bar = block * max(1, round(share.fraction * width))
            table.add_row(f"  {share.category.label}", format_bytes(share.size_bytes), f"{share.fraction:.1%}", bar)
        yield table
    for alarm in status.alarms:
        yield Text(f"  ! {printable(alarm)}", style="bold red")
    if status.problem:
        yield Text(f"  {printable(status.problem)}", style="yellow")


def _step(number: int) -> str:
    return f"step {number}" if number >= 0 else "the beginning"


def _trend(status: Status) -> str:
    if status.growth_per_step is None:
        return "not known yet"
    if abs(status.growth_per_step) < 1:
        return "flat"
    direction = "grows" if status.growth_per_step > 0 else "shrinks"
    line = f"{direction} by {format_bytes(int(abs(status.growth_per_step)))} a step"
    return line if status.steps_left is None else f"{line}: full in {status.steps_left:,} steps"
