"""Predicted against measured memory as a picture, from the tables in results/.

    python benchmarks/accuracy/draw.py       # writes docs/accuracy.svg again

Left: every workload, what an H200 allocated at most against what was predicted. Right: how far off each is, by set. Rows that
were known before are left out of blind sets.
"""

from __future__ import annotations

import html
import math
import pathlib
import re
import statistics
from collections.abc import Callable, Iterator

BENCHMARKS = pathlib.Path(__file__).parents[1]
PICTURE = BENCHMARKS.parent / "docs" / "accuracy.svg"

SETS = {
    "accuracy": "34 workloads",
    "accuracy_more": "51 more",
    "ranks_blind": "ranks of jobs, blind",
    "compiled_blind": "compiled, blind, first set",
    "compiled_kinds": "compiled, blind, second set",
    "whole_runs": "whole scripts, blind",
    "deepspeed_blind": "DeepSpeed, blind",
    "megatron_blind": "Megatron-core, blind",
    "libraries_blind": "libraries, blind",
    "wild": "other people's scripts",
}
KNOWN_BEFORE = ("varlen", "trainer_eval", "growing")
"""Of the whole scripts, those that were given with their measurements."""
COLOURS = ("#0b65ab", "#6db9ea", "#0a8f69", "#f0b21a", "#c94a12", "#8f3f86", "#38434b", "#7b8389", "#e3a3c9", "#cdb592")
WIDTH, HEIGHT, SIDE, EDGE = 1060, 460, 380, 40
LEFT_OF_STRIPS, RIGHT_OF_STRIPS = 620, 990
TICKS = (-100, -10, -1, -0.1, 0, 0.1, 1, 10, 100)
"""Percent."""
LEAST = 0.01
"""Percent; below, an error is drawn as none."""


def read(name: str) -> list[tuple[float, float]]:
    """Measured and predicted MiB of each row of a table."""
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in _lines(name)]
    head = rows[0]
    found = []
    for row in rows[2:]:
        cells: dict[str, str] = {}
        for heading, cell in zip(head, row, strict=False):
            cells.setdefault(heading, cell)  # of two columns of one name, the first
        measured = cells.get("H200 peak") or cells.get("measured") or cells.get("allocated") or ""
        predicted = cells.get("predicted") or cells.get("predicted: allocated, reserved MiB") or ""
        numbers = [number for text in (measured, predicted) if (number := _number(text)) is not None]
        if len(numbers) == 2 and "*" not in row[0] and row[0] not in KNOWN_BEFORE:
            found.append((numbers[0], numbers[1]))
    return found


def _lines(name: str) -> Iterator[str]:
    for line in (BENCHMARKS / "results" / f"{name}.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            yield line


def _number(text: str) -> float | None:
    """The first of ``13,229.4, 15,280``."""
    match = re.match(r"\d{1,3}(?:,\d{3})*(?:\.\d+)?", text)
    return float(match[0].replace(",", "")) if match else None


def draw(sets: dict[str, list[tuple[float, float]]]) -> str:
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">'
    parts = [start, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *_diagonal(sets), *_strips(sets)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _diagonal(sets: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    sizes = [size for rows in sets.values() for row in rows for size in row]
    low, high = math.log10(min(sizes)) - 0.1, math.log10(max(sizes)) + 0.1

    def at(mib: float) -> float:
        return 60 + SIDE * (math.log10(mib) - low) / (high - low)

    floor = EDGE + SIDE
    yield f'<path d="M60 {EDGE} V{floor} H{60 + SIDE}" stroke="#333" fill="none"/>'
    yield f'<path d="M60 {floor} L{60 + SIDE} {EDGE}" stroke="#999" stroke-dasharray="4 4"/>'
    for mib, label in ((102.4, "0.1"), (1024, "1"), (10240, "10"), (102400, "100"), (1024000, "1,000")):
        if low <= math.log10(mib) <= high:
            yield f'<text x="{at(mib):.0f}" y="{floor + 18}" text-anchor="middle">{label}</text>'
            yield f'<text x="54" y="{floor + 64 - at(mib):.0f}" text-anchor="end">{label}</text>'
    yield f'<text x="{60 + SIDE / 2:.0f}" y="{floor + 36}" text-anchor="middle">an H200 allocated, GiB</text>'
    middle = EDGE + SIDE // 2
    yield f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">predicted, GiB</text>'
    for colour, rows in zip(COLOURS, sets.values(), strict=True):
        yield from (_dot(at(measured), floor + 60 - at(predicted), colour) for measured, predicted in rows)


def _strips(sets: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    place, step = _error_axis(), SIDE / len(sets)
    for tick in TICKS:
        label = "0" if tick == 0 else f"{tick:+g} %"
        yield f'<path d="M{place(tick):.0f} {EDGE} V{EDGE + SIDE}" stroke="#ddd"/>'
        yield f'<text x="{place(tick):.0f}" y="{EDGE + SIDE + 18}" text-anchor="middle" font-size="11">{label}</text>'
    middle = (LEFT_OF_STRIPS + RIGHT_OF_STRIPS) / 2
    yield f'<text x="{middle:.0f}" y="{EDGE + SIDE + 36}" text-anchor="middle">predicted too low | too high</text>'
    yield f'<text x="{RIGHT_OF_STRIPS + 66}" y="{EDGE - 8}" text-anchor="end" font-size="11">median</text>'
    for number, (colour, (name, rows)) in enumerate(zip(COLOURS, sets.items(), strict=True)):
        y = EDGE + step * (number + 0.5)
        errors = [100 * (predicted / measured - 1) for measured, predicted in rows]
        yield f'<text x="{LEFT_OF_STRIPS - 14}" y="{y + 4:.0f}" text-anchor="end">{html.escape(name)}</text>'
        median = statistics.median(map(abs, errors))
        yield f'<text x="{RIGHT_OF_STRIPS + 66}" y="{y + 4:.0f}" text-anchor="end">{median:.2f} %</text>'
        for row, error in enumerate(errors):
            yield _dot(place(error), y + (row % 5 - 2) * 3, colour)


def _error_axis() -> Callable[[float], float]:
    """The same room for each power of ten, to both sides of none."""
    half, powers = (RIGHT_OF_STRIPS - LEFT_OF_STRIPS) / 2, math.log10(100 / LEAST)

    def place(percent: float) -> float:
        size = min(max(math.log10(max(abs(percent), LEAST) / LEAST) / powers, 0), 1)
        return LEFT_OF_STRIPS + half + math.copysign(size * half, percent)

    return place


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}" fill-opacity="0.65"/>'


if __name__ == "__main__":
    PICTURE.write_text(draw({title: read(name) for name, title in SETS.items()}), encoding="utf-8")
    print(f"{PICTURE.name} is written")
