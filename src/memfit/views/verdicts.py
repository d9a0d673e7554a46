"""A verdict in words: the answer, the ladder behind it, and what else there is to say; and all of it on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.allocator import Verdict
from memfit.ledger import Coverage, RunInfo
from memfit.units import GIB, format_bytes
from memfit.views.escaping import printable
from memfit.views.tables import block_of
from memfit.views.words.recipe import recipe_line

if TYPE_CHECKING:
    from memfit.analysis import Growth
    from memfit.predict.host import HostMemory

BAR_WIDTH: Final = 40
LEAST_BAR_WIDTH: Final = 24
"""Shorter ones do not tell 27 GiB from 39."""
_BESIDE_BARS: Final = 2 + len("smallest fit") + 2 + len("1,024.00 MiB") + 2 + 2
"""Columns of a terminal that labels, sizes and margins take."""
ALL: Final = Coverage()
"""Of a run of which no part was left out."""
HOST_WORTH_SAYING: Final = GIB
"""Less is not mentioned: every machine has it."""


@dataclass(frozen=True)
class Rung:
    """A step of the ladder from what the program holds to what the GPU has."""

    label: str
    size_bytes: int
    remark: str
    short: str
    """The remark, where there is little room."""


def answer(verdict: Verdict, problem: str = "", covered: Coverage = ALL) -> str:
    """Does it fit, and by how much? Where something of the run was not seen (``problem``), that it fits is not said; where the run
    was stopped before its end, it is said of what was seen."""
    if problem and verdict.fits:
        return f"Not known whether it fits on {verdict.gpu.name}: {problem}. What was seen needs {format_bytes(verdict.needed)}."
    name, amount = verdict.gpu.name, format_bytes(abs(verdict.margin))
    if verdict.fits and not covered.is_whole:
        return f"What was seen of it fits on {name}, with {amount} to spare. It did not come to its end."
    if verdict.fits:
        return f"It fits on {name}, with {amount} to spare."
    if verdict.margin < 0:
        return f"It does not fit on {name}: short by {amount}."
    return f"It does not complete on {name}, although it would with less memory."


def coverage_words(covered: Coverage) -> str:
    """What was seen, and what was not; empty where nothing is known of it."""
    if not covered.is_known:
        return ""
    seen = [_count(covered.training_steps, "training step", "no training")]
    if covered.steps_in_all:
        seen = [f"{covered.training_steps:,} of {covered.steps_in_all:,} training steps"]
    if covered.batches_in_all:
        seen.append(f"stopped after {covered.batches_seen:,} of {covered.batches_in_all:,} batches of this epoch")
    if covered.kinds_of_batches:
        kinds = _count(covered.kinds_of_batches, "shape of batches", "", "shapes of batches")
        seen.append(f"{kinds}, the largest {covered.longest_batch}")
    if not covered.training_steps:
        seen.append(_count(covered.forward_passes, "forward pass", "", "forward passes"))
    seen += [
        _count(covered.evaluations, "evaluation", "no evaluation"),
        _count(covered.saves, "save", "no save"),
        *([_count(covered.generations, "generation", "")] if covered.generations else []),
    ]
    end = "up to its end" if covered.is_whole else "not to its end: what comes later may need more"
    return f"Seen: {', '.join(seen)}; {end}."


def _count(number: int, one: str, none: str, several: str = "") -> str:
    return none if number == 0 else f"{number:,} {one if number == 1 else several or f'{one}s'}"


def ladder(verdict: Verdict) -> tuple[Rung, ...]:
    """From what the program holds to what the GPU has."""
    return (
        Rung("allocated", verdict.peak_allocated, verdict.where, "in tensors"),
        Rung("smallest fit", verdict.smallest_fit, "the least memory in which the run completes", "least to complete"),
        Rung("reserved", verdict.peak_reserved, "what it takes if there is memory to spare", "with room to spare"),
        Rung("device", verdict.needed, _device_remark(verdict), "least, and CUDA's"),
        Rung("usable", verdict.gpu.usable_bytes, f"on {verdict.gpu.name}", f"on {verdict.gpu.name}"),
    )


def _device_remark(verdict: Verdict) -> str:
    parts = [f"smallest fit + {format_bytes(verdict.context)} for CUDA"]
    if verdict.communicators:
        parts.append(f"{format_bytes(verdict.communicators)} for NCCL")
    return " + ".join(parts)


def remarks(verdict: Verdict, info: RunInfo | None = None) -> Iterator[str]:
    """What else there is to say, one sentence each; ``info`` says how much of the run was seen."""
    if verdict.fits and verdict.num_alloc_retries:
        given_back, times = (
            format_bytes(verdict.given_back),
            "once" if verdict.num_alloc_retries == 1 else f"{verdict.num_alloc_retries} times",
        )
        yield f"On this GPU the allocator runs short of memory {times}, and gives {given_back} of cached memory back."
    if verdict.out_of_memory is not None:
        oom = verdict.out_of_memory
        held = f"{format_bytes(oom.allocated)} allocated and {format_bytes(oom.cached)} free, but in pieces that are too small"
        yield f"It runs out at event {oom.event:,}, asking for {format_bytes(oom.asked)} with {held}."
    if not verdict.fits:
        it = "it" if info is None or (info.covered.is_whole and not info.problem) else "what was seen"
        yield f"The smallest GPU on which {it} fits: {verdict.least_gpu.name if verdict.least_gpu else 'none that memfit knows'}."
    if verdict.largest:
        yield "At the peak: " + ", ".join(f"{label} {format_bytes(size)}" for label, size in verdict.largest[:4]) + "."


def words_about_others(device: str, verdicts: Mapping[str, Verdict]) -> Iterator[str]:
    """Where a process uses several GPUs: the figures above are about ``device``, these about the others."""
    if verdicts:
        yield f"That was {device}. This process uses {len(verdicts) + 1} GPUs:"
    for name, verdict in sorted(verdicts.items()):
        yield f"  {name}: {_in_short(verdict)}, {format_bytes(verdict.peak_allocated)} allocated, {verdict.where}"


def _in_short(verdict: Verdict) -> str:
    amount = format_bytes(abs(verdict.margin))
    return f"fits, with {amount} to spare" if verdict.fits else f"does not fit, short by {amount}"


def growth_words(growth: Growth | None, verdict: Verdict) -> Iterator[str]:
    """How fast memory grows, what stays, and when the GPU is full."""
    if growth is None:
        return
    full = growth.full_at_step(verdict.peak_allocated, verdict.capacity)
    end = f"{verdict.gpu.name} would be full at about step {full:,}" if full is not None else f"{verdict.gpu.name} is full by now"
    yield f"Memory grows by {format_bytes(round(growth.bytes_a_step))} a step over {growth.num_steps:,} steps: {end}."
    stays = ", ".join(f"{op}{f' in {module}' if module else ''} ({format_bytes(size)})" for op, module, size in growth.places)
    if stays:
        yield f"What stays, in the later half of them: {stays}."


def host_words(host: HostMemory) -> Iterator[str]:
    """What tensors take on the host, where that is much or its size is known."""
    if host.moment is None or (host.peak < HOST_WORTH_SAYING and host.limit is None):
        return
    pinned = f", {format_bytes(host.pinned)} of it pinned" if host.pinned else ""
    all_of_them = f"; its {host.num_processes} processes {format_bytes(host.of_node)}" if host.num_processes > 1 else ""
    yield f"On the host, tensors of a process take {format_bytes(host.peak)}{pinned} ({host.moment.label}){all_of_them}."
    if host.limit is not None:
        short = f"fits into {format_bytes(host.limit)}" if host.fits else f"is more than the {format_bytes(host.limit)} that it has"
        yield f"That {short}. Python, libraries and the workers of data loaders come on top."


# -- on a terminal ---------------------------------------------------------------------------------------------------------------


def verdict_sections(
    verdict: Verdict,
    console: Console,
    info: RunInfo | None = None,
) -> Iterator[RenderableType]:
    """A verdict, ready to be printed: the answer, what it is about and what of that was seen (``info``), the bars, and what else
    there is to say."""
    info = info or RunInfo()
    covered, problem = info.covered, info.problem
    style = "bold red" if problem or not verdict.fits else "bold green" if covered.is_whole else "bold yellow"
    yield Text(printable(answer(verdict, problem, covered)), style=style)
    if recipe := recipe_line(info.asked):
        yield Text(printable(recipe), style="dim")
    if seen := coverage_words(covered):
        yield Text(printable(seen))
    yield Padding(_ladder(verdict, console), (0, 2), expand=False)
    yield from (Text(line) for line in remarks(verdict, info))
    if verdict.alternatives:
        yield Padding(_alternatives(verdict), (0, 2), expand=False)
    yield from (Text(f"note: {printable(warning)}", style="yellow") for warning in verdict.warnings)


def assumption_line(assumptions: Sequence[str], where: str = "memfit show --assumptions") -> str:
    """How many there are and where they can be read; empty where there are none."""
    return f"{_count(len(assumptions), 'assumption', '')} ({where})" if assumptions else ""


def _ladder(verdict: Verdict, console: Console) -> Table:
    """Bars of the same scale at every width; remarks as far as there is room for them."""
    rungs = ladder(verdict)
    largest = max(rung.size_bytes for rung in rungs) or 1
    room = console.width - _BESIDE_BARS
    remarks = next((each for each in ([rung.remark for rung in rungs], [rung.short for rung in rungs]) if _fit(each, room)), None)
    width = min(BAR_WIDTH, room - max(map(len, remarks)) - 2 if remarks else room)
    block = block_of(console)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for rung, remark in zip(rungs, remarks or [""] * len(rungs), strict=True):
        bar = Text(block * max(1, round(width * rung.size_bytes / largest)), style="cyan")
        table.add_row(rung.label, format_bytes(rung.size_bytes), bar, *([Text(remark, style="dim")] if remarks else []))
    return table


def _fit(remarks: Sequence[str], room: int) -> bool:
    return room - max(map(len, remarks)) - 2 >= LEAST_BAR_WIDTH


def _alternatives(verdict: Verdict) -> Table:
    table = Table(box=None, padding=(0, 4, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("with", overflow="fold")
    table.add_column("smallest fit", justify="right", no_wrap=True)
    table.add_column("reserved", justify="right", no_wrap=True)
    for need in verdict.alternatives:
        table.add_row(need.alloc_conf, format_bytes(need.smallest_fit), format_bytes(need.peak_reserved))
    return table
