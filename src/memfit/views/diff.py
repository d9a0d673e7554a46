"""What two runs differ in, on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.analysis.diff.blocks import BlockChange, Change
from memfit.analysis.diff.compared import Compared
from memfit.analysis.diff.levels import PhaseLevel
from memfit.analysis.diff.runs import Diff, Figure, Side
from memfit.units import format_bytes
from memfit.views.escaping import printable
from memfit.views.tables import plain_table
from memfit.views.words.moments import count, name_moment, name_op, name_step
from memfit.views.words.recipe import recipe_line

NUM_ROWS = 8
NUM_BLOCKS = 12
UNLIMITED = 10_000
_INDENT = 2

_GREW, _SHRANK = "red", "green"


def show_diff(diff: Diff, console: Console) -> None:
    """Prints what grew and what shrank, the largest change first: in colour on a terminal, plain and aligned elsewhere."""
    console.print(*_sections(diff, console), sep="\n")


def _sections(diff: Diff, console: Console) -> Iterator[RenderableType]:
    names = side_names(diff)
    yield _heads(diff, names)
    yield from (Text(note, style="yellow") for note in notes(diff))
    yield Text(f"\n{diff_answer(diff)}", style="bold")
    yield Padding(_figures(diff, names), (0, 0, 0, 2), expand=False)
    if diff.empty:
        return
    yield from _part("By category", "category", diff.categories, names, "")
    yield from _part("By module", "module", diff.modules, names, "outside all modules")
    yield from _part("By the phase in which it was allocated", "phase", diff.phases, names, "outside all phases")
    yield from _part("By operator", "operator", [replace(change, name=name_op(change.name)) for change in diff.ops], names, "")
    if diff.blocks:
        yield from _section("The blocks behind it", _widest(diff.blocks, names, console))
    if diff.levels:
        yield from _section("The peaks of phases, where they differ", _levels(diff.levels, names))


# -- the two runs ------------------------------------------------------------------------------------------------------------


def side_names(diff: Diff) -> tuple[str, str]:
    """What to call the two runs."""
    if diff.compares_a_prediction:
        return diff.before.info.source, diff.after.info.source
    return "before", "after"


def _heads(diff: Diff, names: tuple[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, side in zip(names, (diff.before, diff.after), strict=True):
        table.add_row(Text(name, style="bold"), Text(describe_side(side), style="dim"))
    return table


def describe_side(side: Side) -> str:
    """What a run is about, its steps, and where its peak is."""
    info = side.info
    asked = recipe_line(info.asked)
    facts = [*([printable(asked)] if asked else []), printable(info.source), count(side.num_steps, "step")]
    if info.world_size > 1:
        facts.append(f"rank {info.rank} of {info.world_size}")
    if side.peak is not None:
        facts.append(f"the peak of {printable(side.peak.device)} is {name_moment(side.peak)}")
    return ", ".join(facts)


def notes(diff: Diff) -> Iterator[str]:
    """What differs beside memory, and may be the reason."""
    before, after = diff.before, diff.after
    versions = before.info.facts, after.info.facts
    for name in sorted(versions[0].keys() & versions[1].keys()):
        if versions[0][name] != versions[1][name]:
            yield printable(f"{name} differs: {versions[0][name]} and {versions[1][name]}")
    devices = [side.peak.device for side in (before, after) if side.peak is not None]
    if len({device.partition(":")[0] for device in devices}) > 1:
        yield printable(f"one ran on {devices[0]}, the other on {devices[1]}: they use different kernels")
    if before.info.alloc_conf != after.info.alloc_conf:
        settings = [side.info.alloc_conf or "default" for side in (before, after)]
        yield printable(f"the allocator's settings differ: {settings[0]} and {settings[1]}")
    if before.num_steps != after.num_steps:
        yield f"they have {before.num_steps} and {after.num_steps} steps: phases are compared in the steps that both have"
    for side in (before, after):
        if not side.info.complete:
            yield printable(f"one is incomplete: {side.info.problem}")


def diff_answer(diff: Diff) -> str:
    """What became of the peak, in a sentence."""
    if diff.empty:
        return "No difference: both peaks hold the same blocks, and every phase of every step has the same peak."
    if diff.compares_a_prediction:
        return _judge_prediction(diff.prediction_error)
    peak = diff.headline
    if not peak.change_bytes:
        return f"The peak has the same size, {format_bytes(peak.after_bytes)} {peak.name}, but other contents."
    verb = "grew" if peak.change_bytes > 0 else "shrank"
    share = "" if peak.growth is None else f" ({peak.growth:+.2%})"
    return f"The peak {verb} by {format_bytes(abs(peak.change_bytes))}{share}."


def _judge_prediction(error: Figure) -> str:
    if not error.change_bytes:
        return f"The predicted peak is exact: {format_bytes(error.before_bytes)} {error.name}."
    share = "" if error.growth is None else f" ({abs(error.growth):.2%})"
    return (
        f"The predicted peak is {format_bytes(abs(error.change_bytes))}{share} too {'high' if error.change_bytes > 0 else 'low'}."
    )


# -- tables ------------------------------------------------------------------------------------------------------------------


def _section(title: str, table: Table) -> list[RenderableType]:
    return [Text(f"\n{title}", style="bold"), Padding(table, (0, 0, 0, 2), expand=False)]


def _figures(diff: Diff, names: tuple[str, str]) -> Table:
    table = plain_table("peak", *(f"{name}>" for name in names), "change>")
    for figure in diff.figures:
        before, after, change = _amounts(figure)
        if figure.change_bytes and figure.growth is not None:
            change.append(f"  {figure.growth:+.2%}")
        table.add_row(figure.name, before, after, change)
    return table


def _part(title: str, heading: str, changes: Sequence[Change], names: tuple[str, str], nameless: str) -> list[RenderableType]:
    if not changes:
        return []
    table = plain_table("change>", *(f"{name}>" for name in names), heading)
    for change in changes[:NUM_ROWS]:
        before, after, difference = _amounts(change)
        table.add_row(difference, before, after, Text(printable(change.name) or nameless))
    _say_rest(table, changes[NUM_ROWS:])
    return _section(title, table)


def _widest(changes: Sequence[BlockChange], names: tuple[str, str], console: Console) -> Table:
    """The blocks with as many columns as there is room for; what tells least is left out first."""
    unlimited = console.options.update_width(UNLIMITED)
    least_first = ("phase", f"{names[0]}>", "operator", f"{names[1]}>")
    for num_left_out in range(len(least_first) + 1):
        table = _blocks(changes, names, least_first[:num_left_out])
        if Measurement.get(console, unlimited, table).maximum + _INDENT <= console.width:
            break
    return table


def _blocks(changes: Sequence[BlockChange], names: tuple[str, str], left_out: Sequence[str]) -> Table:
    rows = []
    for change in changes[:NUM_BLOCKS]:
        before, after, difference = _amounts(change)
        kind = change.kind
        row: dict[str, str | Text] = {"change>": difference, f"{names[0]}>": before, f"{names[1]}>": after}
        row |= {"blocks>": number_of_blocks(change), "category": kind.category.label, "operator": Text(name_op(kind.op))}
        row |= {"phase": kind.phase.label if kind.phase is not None else "", "module": Text(printable(kind.module))}
        rows.append({heading: cell for heading, cell in row.items() if heading not in left_out})
    table = plain_table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    _say_rest(table, changes[NUM_BLOCKS:], num_figures=sum(heading.endswith(">") for heading in rows[0]))
    return table


def number_of_blocks(change: BlockChange) -> str:
    """``12``, or ``12 -> 24``."""
    before, after = f"{change.before_blocks:,}", f"{change.after_blocks:,}"
    return before if before == after else f"{before} -> {after}"


def _levels(levels: Sequence[PhaseLevel], names: tuple[str, str]) -> Table:
    """The largest changes, in the order in which they happened."""
    least = sorted((abs(level.change_bytes) for level in levels), reverse=True)[:NUM_BLOCKS][-1]
    shown = [level for level in levels if abs(level.change_bytes) >= least][:NUM_BLOCKS]
    table = plain_table("change>", *(f"{name}>" for name in names), "step>", "phase")
    for level in shown:
        before, after, difference = _amounts(level)
        phase = level.phase.label if level.phase is not None else "outside all phases"
        table.add_row(difference, before, after, name_step(level.step), phase)
    if len(levels) > len(shown):
        table.add_row("", "", "", "", f"{len(levels) - len(shown)} more", style="dim")
    return table


def _say_rest(table: Table, rest: Sequence[Compared], num_figures: int = 3) -> None:
    if rest:
        total = sum(change.change_bytes for change in rest)
        table.add_row(signed_bytes(total), *[""] * (num_figures - 1), f"{len(rest)} more", style="dim")


def _amounts(compared: Compared) -> tuple[str, str, Text]:
    return format_bytes(compared.before_bytes), format_bytes(compared.after_bytes), _signed(compared)


def _signed(compared: Compared) -> Text:
    style = _GREW if compared.change_bytes > 0 else _SHRANK if compared.change_bytes < 0 else ""
    return Text(signed_bytes(compared.change_bytes), style=style)


def signed_bytes(size_bytes: int) -> str:
    """``+1.50 GiB``."""
    return f"+{format_bytes(size_bytes)}" if size_bytes > 0 else format_bytes(size_bytes)
