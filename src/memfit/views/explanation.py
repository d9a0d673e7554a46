"""Why memory ran out, on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.explain import Explanation, Remedy
from memfit.ledger import Category
from memfit.units import format_bytes
from memfit.views.escaping import printable
from memfit.views.tables import plain_table
from memfit.views.terminal import NARROW, course_sections
from memfit.views.verdicts import coverage_words
from memfit.views.words.moments import name_op
from memfit.views.words.recipe import recipe_line

NUM_OWNERS = 10
NUM_BLOCKS = 6

_VERDICTS = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "yellow")}


def show_explanation(explanation: Explanation, console: Console) -> None:
    """Prints what was asked for, what was there, who held it, and what would have helped."""
    console.print(Text(explained_headline(explanation), style="bold red" if explanation.ran_out else "bold green"))
    if recipe := recipe_line(explanation.about):
        console.print(Text(printable(recipe), style="dim"))
    if seen := coverage_words(explanation.covered):
        console.print(Text(seen))
    for part in (*map(Text, explained_sentences(explanation)), *_sections(explanation, is_narrow=console.width < NARROW)):
        console.print(part)
    if explanation.course is not None:
        for section in course_sections(explanation.course, console):
            console.print(section)
    for note in (*explanation.notes, *about_batches(explanation)):
        console.print(Text(f"note: {printable(note)}", style="yellow"))


def explained_headline(explanation: Explanation) -> str:
    """What ran out where, or that nothing does."""
    device, where = printable(explanation.holdings.device), printable(explanation.holdings.where)
    if is_enough(explanation):
        until = "" if explanation.future_known else " up to where it did"
        until += "" if explanation.covered.is_whole else " in what was seen of it"
        enough, capacity = format_bytes(explanation.enough or 0), format_bytes(explanation.capacity or 0)
        return f"On {explanation.gpu} it does not run out of memory{until}: {enough} of {capacity} are enough."
    if not explanation.ran_out:
        return f"No request failed. This is what {device} held in the end."
    what = f"On {explanation.gpu} it would run out of memory" if explanation.gpu else f"{device} ran out of memory"
    what += f" ({where})" if where else ""
    if explanation.asked is None:
        return f"{what}."
    asks = f"{printable(explanation.holdings.op) or 'it'} {'asks' if explanation.gpu else 'asked'} for"
    return f"{what}: {asks} {format_bytes(explanation.asked)}."


def is_enough(explanation: Explanation) -> bool:
    """True if it does not run out of memory on the GPU that was asked about."""
    return not explanation.ran_out and explanation.capacity is not None


def explained_sentences(explanation: Explanation) -> Iterator[str]:
    """What was in use and left; nothing where it was enough."""
    held = f"In use: {format_bytes(explanation.allocated)}. Reserved: {format_bytes(explanation.reserved)}"
    if is_enough(explanation):
        return
    if explanation.capacity is None or explanation.left is None:
        yield f"{held}."
        return
    left, capacity = format_bytes(explanation.left), format_bytes(explanation.capacity)
    yield f"{held} of the {capacity} that the allocator can get; {left} are left."


def _sections(explanation: Explanation, *, is_narrow: bool) -> Iterator[RenderableType]:
    if is_enough(explanation):
        return
    if explanation.holdings.categories:
        yield _section("In use, by category", _categories(explanation))
    by = "module" if explanation.knows_modules else "place in the code"
    yield _section(f"In use, by {by}", _owners(explanation, by))
    yield _section("The largest blocks", _blocks(explanation, is_narrow=is_narrow))
    if explanation.unusable:
        yield _section(unusable_title(explanation), _unusable(explanation))
    if explanation.remedies:
        yield _section(remedies_title(explanation), _remedies(explanation, is_narrow=is_narrow))


def unusable_title(explanation: Explanation) -> str:
    return "Reserved, but not in use" if explanation.asked is None else "Reserved, but not usable for this request"


def remedies_title(explanation: Explanation) -> str:
    would = "What would make it fit" if explanation.gpu else "What would have made it fit"
    until = "" if explanation.future_known else " up to the failure"
    return f"{would}, each tried by replay{until}"


def _section(title: str, table: Table) -> RenderableType:
    return Group(Text(f"\n{title}", style="bold"), Padding(table, (0, 0, 0, 2), expand=False))


def _categories(explanation: Explanation) -> Table:
    table = plain_table("", ">", ">")
    found = categories_of(explanation)
    total = sum(size for _, _, size in found)
    for _, label, size in found:
        table.add_row(label, format_bytes(size), f"{size / total:.1%}")
    return table


def categories_of(explanation: Explanation) -> list[tuple[Category | None, str, int]]:
    """Bytes in use by category, the most first; ``None`` stands for what the ledger does not know."""
    holdings = explanation.holdings
    rows: list[tuple[Category | None, str, int]] = [
        (category, category.label, size) for category, size in holdings.categories.items()
    ]
    if rows and holdings.unknown_bytes:
        rows.append((None, "not in the ledger", holdings.unknown_bytes))
    return sorted(rows, key=lambda row: -row[2])


def _owners(explanation: Explanation, by: str) -> Table:
    table = plain_table(by, "number>", "bytes>")
    unowned = "outside all modules" if explanation.knows_modules else "no stack was recorded"
    for owner in explanation.holdings.owners[:NUM_OWNERS]:
        name = Text(printable(owner.owner)) if owner.owner else Text(unowned, style="dim")
        table.add_row(name, f"{owner.num_members:,}", format_bytes(owner.size_bytes))
    return table


def _blocks(explanation: Explanation, *, is_narrow: bool) -> Table:
    """A snapshot knows neither category nor operator; a narrow terminal has no room for the latter."""
    known = explanation.knows_modules
    headings = ("category", *(() if is_narrow else ("op",)), "belongs to") if known else ("made at",)
    table = plain_table("bytes>", *headings)
    for block in explanation.holdings.blocks[:NUM_BLOCKS]:
        size, owner = format_bytes(block.size_bytes), Text(printable(block.owner))
        op = Text(name_op(block.op))
        table.add_row(size, *((block.category, *(() if is_narrow else (op,))) if known else ()), owner)
    return table


def _unusable(explanation: Explanation) -> Table:
    table = plain_table("bytes>", "pieces>", "largest>", "because it is")
    for group in explanation.unusable:
        table.add_row(format_bytes(group.size_bytes), f"{group.num_pieces:,}", format_bytes(group.largest_piece), group.reason)
    return table


def _remedies(explanation: Explanation, *, is_narrow: bool) -> Table:
    table = plain_table("fits", "with", *(() if is_narrow else ("allocated>", "smallest fit>")), "to spare>")
    for remedy in explanation.remedies:
        word, colour = _VERDICTS[remedy.served]
        spare = spare_bytes(explanation, remedy)
        sizes = () if is_narrow else (format_bytes(remedy.peak_allocated), format_bytes(remedy.smallest_fit))
        table.add_row(Text(word, style=colour), remedy.what, *sizes, "" if spare is None else format_bytes(spare))
    return table


def about_batches(explanation: Explanation) -> Iterator[str]:
    """A ledger of a script does not say how many sequences a micro-batch has."""
    if "batch" not in explanation.about and any("micro-batch" in remedy.kind for remedy in explanation.remedies):
        yield "a micro-batch of one sequence cannot be halved: there, a part of it is a shorter sequence"


def spare_bytes(explanation: Explanation, remedy: Remedy) -> int | None:
    """What would be left with a remedy; ``None`` where that cannot be said."""
    if explanation.capacity is None or remedy.kind == "gpu":
        return None
    return explanation.capacity - remedy.smallest_fit
