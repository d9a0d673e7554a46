"""A report on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.analysis import Course, DeviceReport, Report, StepPeak
from memfit.ledger import Category
from memfit.units import MIB, format_bytes
from memfit.views.escaping import printable
from memfit.views.tables import block_of, plain_table
from memfit.views.verdicts import assumption_line
from memfit.views.words.course import highlights, is_worth_drawing, sparkline
from memfit.views.words.moments import count, name_moment, name_op, name_running, name_step
from memfit.views.words.recipe import origin_line, recipe_line

NUM_GROUPS = 12
NUM_BLOCKS = 8
NUM_STEPS_EACH_END = 5
BAR_WIDTH = 40
LEAST_BAR_WIDTH = 8
BESIDE_BARS = 2 + len("unsharded parameter") + 2 + len("1,024.00 MiB") + 2 + len("100.0%") + 2
"""Columns of a terminal that labels, sizes and shares take."""
NARROW = 80
"""With fewer columns, a table has what tells most alone."""
WORTH_SAYING = MIB
"""Less on another device is left out."""
NUM_CHARACTERS = 72

_COLOURS = {
    Category.PARAMETER: "blue",
    Category.SHARDED_PARAMETER: "blue",
    Category.UNSHARDED_PARAMETER: "bright_blue",
    Category.BUFFER: "cyan",
    Category.GRADIENT: "magenta",
    Category.SHARDED_GRADIENT: "magenta",
    Category.UNSHARDED_GRADIENT: "bright_magenta",
    Category.OPTIMIZER_STATE: "yellow",
    Category.ACTIVATION: "green",
    Category.INPUT: "bright_cyan",
}
"""The rest is what a run uses in passing, and stays grey."""


def show(report: Report, console: Console) -> None:
    """Prints where the memory of a run went: in colour on a terminal, plain and aligned elsewhere."""
    for part in report_sections(report, console):
        console.print(part)


def show_assumptions(report: Report, console: Console) -> None:
    """Prints what a run rests on, one sentence a line."""
    for sentence in report.info.assumptions or ("Nothing was assumed.",):
        console.print(Text(f"- {printable(sentence)}"))


def report_sections(report: Report, console: Console) -> Iterator[RenderableType]:
    """A report, ready to be printed: the main device in full, others by category where there is something on them."""
    yield _header(report)
    for index, device in enumerate(report.devices):
        sections = [_headline(device), *_sections(device, console)]
        yield from sections if index == 0 else sections[:2] if device.peak.size_bytes >= WORTH_SAYING else ()


def _header(report: Report) -> RenderableType:
    info = report.info
    facts = [info.source, count(report.num_steps, "step"), count(report.num_events, "event")]
    if info.world_size > 1:
        facts.append(f"rank {info.rank} of {info.world_size}")
    facts += [f"{name} {version}" for name, version in info.facts.items()]
    lines = [Text(printable(line)) for line in (recipe_line(info.asked),) if line]
    lines.append(Text(printable(", ".join(facts)), style="dim"))
    lines += [Text(printable(line), style="dim") for line in (origin_line(info),) if line]
    if not info.complete:
        lines.append(Text(f"incomplete: {printable(info.problem)}", style="bold red"))
    lines += [Text(f"alarm: {printable(alarm)}", style="bold red") for alarm in info.alarms]
    lines += [Text(line, style="yellow") for line in (assumption_line(info.assumptions),) if line]
    lines += [Text(f"note: {printable(note)}", style="dim") for note in info.notes]
    return Group(*lines)


def _headline(device: DeviceReport) -> Text:
    line = Text(f"\n{printable(device.name)}", style="bold")
    line.append(f"  peak {format_bytes(device.peak.size_bytes)}", style="green")
    line.append(f"  {name_moment(device.peak)}", style="not bold")
    return line


def _sections(device: DeviceReport, console: Console) -> list[RenderableType]:
    if not device.peak.size_bytes:
        return []
    return [
        _section("The peak by category", _categories(device, console)),
        _section("The modules that hold it", _modules(device)),
        _section("The largest blocks in it", _blocks(device, is_narrow=console.width < NARROW)),
        *course_sections(device.course, console),
        _section("The peak of each step", _steps(device)),
    ]


def course_sections(course: Course, console: Console) -> Iterator[RenderableType]:
    """How high each step rose, as one line, and which of them are worth a look; nothing for a few steps that are alike."""
    if not is_worth_drawing(course):
        return
    if course.steps:
        most, steps = max(leg.peak_bytes for leg in course.steps), count(len(course.steps), "step")
        yield Text(f"\nThe peaks of {steps}, from 0 to {format_bytes(most)}", style="bold")
        width = min(NUM_CHARACTERS, console.width - 4)
        yield Padding(Text(sparkline(course, width, ascii_only=console.options.ascii_only), style="green"), (0, 2))
    table = plain_table("", "when", "peak>", "largest batch")
    for found in highlights(course):
        table.add_row(found.what, found.when, format_bytes(found.leg.peak_bytes), Text(printable(found.leg.batch)))
    yield Padding(table, (0, 0, 0, 2), expand=False)


def _section(title: str, table: Table) -> RenderableType:
    return Group(Text(f"\n{title}", style="bold"), Padding(table, (0, 0, 0, 2), expand=False))


def _categories(device: DeviceReport, console: Console) -> Table:
    table = plain_table("", ">", ">", "")
    block, width = block_of(console), max(min(BAR_WIDTH, console.width - BESIDE_BARS), LEAST_BAR_WIDTH)
    for share in device.shares_at_peak:
        bar = Text(block * max(1, round(share.fraction * width)), style=_COLOURS.get(share.category, "bright_black"))
        table.add_row(share.category.label, format_bytes(share.size_bytes), f"{share.fraction:.1%}", bar)
    return table


def _modules(device: DeviceReport) -> Table:
    table = plain_table("module", "modules>", "bytes>")
    for group in device.module_groups[:NUM_GROUPS]:
        table.add_row(Text(printable(group.path)), f"{group.num_modules:,}", format_bytes(group.bytes_at_peak))
    if device.bytes_outside_modules:
        table.add_row(Text("outside all modules", style="dim"), "", format_bytes(device.bytes_outside_modules))
    return table


def _blocks(device: DeviceReport, *, is_narrow: bool) -> Table:
    """Where there is little room, a block that belongs to a module is not said to be made by an operator."""
    table = plain_table("bytes>", "category", *(("belongs to, or made by",) if is_narrow else ("op", "belongs to")))
    for block in device.largest_blocks[:NUM_BLOCKS]:
        owner, op = Text(printable(block.name or block.module)), Text(name_op(block.op))
        whose = (owner or op,) if is_narrow else (op, owner)
        table.add_row(format_bytes(block.size_bytes), block.category.label, *whose)
    return table


def _steps(device: DeviceReport) -> Table:
    table = plain_table("step>", "peak>", "at its end>", "the peak is in")
    for step in _chosen_steps(device):
        if step is None:
            table.add_row("...")
            continue
        style = "bold green" if step.step == device.peak.step else ""
        size, end = format_bytes(step.peak.size_bytes), format_bytes(step.end_bytes)
        table.add_row(name_step(step.step), size, end, Text(name_running(step.peak)), style=style)
    return table


def _chosen_steps(device: DeviceReport) -> Iterator[StepPeak | None]:
    """The first, the last and the highest of many steps; ``None`` for a gap."""
    last = len(device.steps) - NUM_STEPS_EACH_END
    before = -1
    for index, step in enumerate(device.steps):
        if index <= NUM_STEPS_EACH_END or index >= last or step.step == device.peak.step:
            if index > before + 1:
                yield None
            yield step
            before = index
