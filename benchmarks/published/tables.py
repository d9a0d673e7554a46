"""How far predictions are from published figures: tables, and a picture."""

from __future__ import annotations

import math
import pathlib
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.published.cases import Case

Row = tuple[Case, dict[str, Any]]
_SAID = {"allocated": "peak_allocated", "reserved": "peak_reserved", "used": "peak_reserved"}


def off_in_time(case: Case, predicted: dict[str, Any]) -> float | None:
    """As a share; a step that is said to take longer than published is above 0."""
    return case.per_second / predicted["per_second"] - 1 if case.per_second and predicted.get("per_second") else None


def off_in_memory(case: Case, predicted: dict[str, Any]) -> dict[str, float]:
    return {
        kind: (predicted[_SAID[kind]] + (predicted["context"] if kind == "used" else 0)) / published - 1
        for kind, published in case.memory.items()
    }


def write_tables(cases: Sequence[Case], known: dict[str, Any], to: pathlib.Path | None) -> list[str]:
    """The summary's lines; the whole goes to the file, if there is one."""
    rows: list[Row] = [
        (case, known[case.key]["predicted"]) for case in cases if "predicted" in known.get(case.key, {}) and not case.why_not
    ]
    lines = ["# Figures that others published, predicted", "", "Written by `python benchmarks/published/run.py --table`.", ""]
    runs = {case.key for case, _ in rows}
    days = Counter(known[key].get("made", "") for key in runs)
    told = ", ".join(f"{count} on {day}" for day, count in sorted(days.items()))
    lines += [f"{len(rows)} of {len(cases)} rows are predicted, {len(runs)} different runs: {told}.", ""]
    lines += _by_gpu(rows) + _halves(rows)
    summary = list(lines)
    lines += [
        "",
        "## Each row",
        "",
        "| row | GPU | torch | published a second | predicted | step longer by | memory |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for case, predicted in rows:
        time, memory = off_in_time(case, predicted), off_in_memory(case, predicted)
        speeds = f"{case.per_second:,.4g} | {predicted['per_second']:,.4g} | {time:+.1%}" if time is not None else " | | "
        told = ", ".join(f"{off:+.1%} {kind}" for kind, off in memory.items())
        told += f" ({'fits' if predicted['fits'] else 'said not to fit'})" if case.fits is not None else ""
        lines.append(f"| {case.name} | {case.gpu} | {case.torch} | {speeds} | {told} |")
    reasons: dict[str, list[str]] = {}
    for case in cases:
        entry = known.get(case.key, {})
        if case.why_not or "predicted" not in entry:
            reasons.setdefault(case.why_not or entry.get("error", "") or "not run yet", []).append(case.name)
    lines += ["", "## Not predicted, and why", ""]
    lines += [
        f"- {len(names)}: {' '.join(why.split())} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for why, names in reasons.items()
    ]
    if to is not None:
        to.write_text("\n".join(lines) + "\n")
    else:
        summary = lines
    return summary


def _median(values: Iterable[float]) -> str:
    sizes = sorted(map(abs, values))
    return f"{statistics.median(sizes):.1%}" if sizes else ""


def _nine_in_ten(values: Iterable[float]) -> str:
    sizes = sorted(map(abs, values))
    return f"{sizes[math.ceil(0.9 * len(sizes)) - 1]:.1%}" if sizes else ""


def judged_times(rows: Iterable[Row]) -> list[float]:
    return [off for case, predicted in rows if not case.time_note and (off := off_in_time(case, predicted)) is not None]


def is_known_torch(case: Case) -> bool:
    """Its kernels are those of a version that memfit knows; older ones are predicted with the oldest of these."""
    found = re.match(r"(\d+)\.(\d+)", case.torch)
    return found is not None and "older" not in case.torch and (int(found[1]), int(found[2])) >= (2, 6)


def judged_memory(rows: Iterable[Row], kinds: Sequence[str] = ("allocated", "reserved", "used")) -> list[float]:
    return [
        off for case, predicted in rows if case.is_recent for kind, off in off_in_memory(case, predicted).items() if kind in kinds
    ]


def _fits(rows: Iterable[Row]) -> str:
    facts = [predicted["fits"] == case.fits for case, predicted in rows if case.fits is not None]
    return f"{sum(facts)} of {len(facts)}" if facts else ""


def _by_gpu(rows: list[Row]) -> list[str]:
    head = "| GPU | rows | time: median error | lies by (median) | of torch 2.6 on | memory, torch 2.9 on: median | nine in ten "
    head += "| older: median | fits: right |"
    lines = [head, "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    groups = {gpu: [row for row in rows if row[0].gpu == gpu] for gpu in sorted({case.gpu for case, _ in rows})}
    for gpu, members in {**groups, "all": rows}.items():
        times, recent = judged_times(members), judged_memory(members)
        older = [off for case, said in members if not case.is_recent for off in off_in_memory(case, said).values()]
        lies = f"{statistics.median(times):+.1%}" if times else ""
        new = judged_times(row for row in members if is_known_torch(row[0]))
        counted = [f"{_median(offs)} ({len(offs)})" if offs else "" for offs in (times, new, recent)]
        told = [counted[0], lies, *counted[1:]]
        lines.append(f"| {gpu} | {len(members)} | {' | '.join([*told, _nine_in_ten(recent), _median(older), _fits(members)])} |")
    return lines


def _halves(rows: list[Row]) -> list[str]:
    lines = [
        "",
        "| half of the rows, by a hash of their names | time | allocated | reserved | nine in ten of both | fits |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, is_held_out in (("rules were looked for here", False), ("took no part", True)):
        half = [row for row in rows if row[0].is_held_out == is_held_out]
        memory = [_median(judged_memory(half, (kind,))) for kind in ("allocated", "reserved")]
        both = _nine_in_ten(judged_memory(half))
        lines.append(f"| {name} | {_median(judged_times(half))} | {' | '.join(memory)} | {both} | {_fits(half)} |")
    return lines


# -- the picture -------------------------------------------------------------------------------------------------------------------

COLOURS = (
    "#1b6ca8",
    "#d1495b",
    "#2e8b57",
    "#8e5ea2",
    "#e0a030",
    "#444444",
    "#3fa7a0",
    "#b36b2c",
    "#7a9e3b",
    "#c06c9b",
    "#5577cc",
    "#aa3377",
)
SIDE, LEFT, TOP = 400, 64, 40


def write_picture(cases: Sequence[Case], known: dict[str, Any], to: pathlib.Path) -> None:
    """Speed and memory, each predicted over published on logarithmic scales, with a colour for each GPU."""
    rows = [(case, known[case.key]["predicted"]) for case in cases if "predicted" in known.get(case.key, {}) and not case.why_not]
    speeds = [
        (case.gpu, case.per_second, said["per_second"])
        for case, said in rows
        if not case.time_note and off_in_time(case, said) is not None
    ]
    memory = [
        (case.gpu, case.memory[kind] / 2**30, (1 + off) * case.memory[kind] / 2**30)
        for case, said in rows
        if case.is_recent
        for kind, off in off_in_memory(case, said).items()
    ]
    names = sorted({gpu for gpu, _, _ in speeds + memory})
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1100 520" font-family="sans-serif" font-size="13">']
    parts.append('<rect width="1100" height="520" fill="white"/>')
    for offset, points, title in ((0, speeds, "tokens, images or steps a second"), (490, memory, "GiB, torch 2.9 and newer")):
        if points:
            parts += _panel(points, offset, title, names)
    for number, gpu in enumerate(names):
        place = TOP + 12 + 22 * number
        dot = f'<circle cx="985" cy="{place - 4}" r="5" fill="{COLOURS[number % len(COLOURS)]}"/>'
        parts.append(f'{dot}<text x="996" y="{place}">{gpu}</text>')
    to.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _panel(points: list[tuple[str, float, float]], offset: int, title: str, names: list[str]) -> list[str]:
    ends = [value for _, *pair in points for value in pair]
    low, high = math.log10(min(ends)) - 0.1, math.log10(max(ends)) + 0.1

    def at(value: float) -> float:
        return SIDE * (math.log10(value) - low) / (high - low)

    left, bottom = offset + LEFT, TOP + SIDE
    parts = [f'<path d="M{left} {bottom} l{SIDE} -{SIDE}" stroke="#999" stroke-dasharray="4 4"/>']
    parts.append(f'<path d="M{left} {TOP} V{bottom} h{SIDE}" stroke="#333" fill="none"/>')
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        place, text = at(10**exponent), f"{10**exponent:,g}"
        parts.append(f'<text x="{left + place:.0f}" y="{bottom + 18}" text-anchor="middle">{text}</text>')
        parts.append(f'<text x="{left - 6}" y="{bottom - place + 4:.0f}" text-anchor="end">{text}</text>')
    parts.append(f'<text x="{left + SIDE / 2:.0f}" y="{bottom + 40}" text-anchor="middle">published: {title}</text>')
    parts.append(f'<text x="{left + 8}" y="{TOP + 10}">predicted</text>')
    for gpu, published, predicted in points:
        place = f'cx="{left + at(published):.1f}" cy="{bottom - at(predicted):.1f}"'
        parts.append(f'<circle {place} r="3.5" fill="{COLOURS[names.index(gpu) % len(COLOURS)]}" fill-opacity="0.6"/>')
    return parts
