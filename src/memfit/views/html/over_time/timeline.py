"""Memory over the run: what the script draws, at every zoom, and the words for every moment of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from memfit.analysis import INIT, Moments, choose_moments, find_window, largest_live, trace_phases
from memfit.analysis.lifetimes import BlockLife, describe_blocks
from memfit.analysis.timeline import events_on
from memfit.ledger import Category, moments_at
from memfit.units import format_bytes
from memfit.views.html.markup import Markup, element, table
from memfit.views.html.over_time.lanes import lanes_table, pack_lanes
from memfit.views.html.packing import HEIGHT, Scale, Texts, place
from memfit.views.html.runs import Run
from memfit.views.words.moments import format_duration, name_step

COARSEST: Final = 1_600
"""Moments for the whole run: a few a pixel would be lost on any screen."""
FINEST: Final = 40_000
"""Moments of the most detailed level, for all runs of a page together: they are most of its size."""
NUM_BLOCKS: Final = 6
"""Listed for every moment."""
MAX_ROWS: Final = 500

STACK: Final = (
    Category.PARAMETER,
    Category.SHARDED_PARAMETER,
    Category.UNSHARDED_PARAMETER,
    Category.BUFFER,
    Category.OPTIMIZER_STATE,
    Category.SHARDED_GRADIENT,
    Category.UNSHARDED_GRADIENT,
    Category.GRADIENT,
    Category.KEY_VALUE_CACHE,
    Category.ACTIVATION,
    Category.FORWARD_TEMPORARY,
    Category.BACKWARD_TEMPORARY,
    Category.OPTIMIZER_TEMPORARY,
    Category.ALL_GATHER,
    Category.REDUCE_SCATTER,
    Category.ALL_REDUCE,
    Category.WORKSPACE,
    Category.INPUT,
    Category.CHECKPOINT,
    Category.OTHER,
)
"""From the bottom: what stays first, so that what comes and goes is seen on top of it."""


def timeline_section(run: Run, number: int) -> Markup:
    """The place where the script draws, and the same as a table."""
    keys = (
        "Wheel or drag to zoom, shift and drag to move. A click holds a moment, and the address then leads to it. Arrow keys move, "
        "plus and minus zoom, P goes to the peak, 0 shows the whole run. Click a category to leave it out of the drawing."
    )
    return element(
        "section",
        element("h2", "Memory over the run"),
        element("div", class_="timeline", data_timeline=number, data_keys=keys),
        element("p", keys, class_="quiet hint"),
        _as_table(run),
        lanes_table(run),
        class_="over-time",
        aria_label="Memory over the run",
    )


def _as_table(run: Run) -> Markup:
    caption = "The phases of the run as a table"
    rows = [
        (
            f"{'step ' if span.step != INIT else ''}{name_step(span.step)}",
            span.phase.label,
            *(f"{event:,}" for event in (span.first_event, span.last_event)),
            *(format_bytes(size) for size in (span.peak_bytes, span.end_bytes)),
        )
        for span in trace_phases(run.ledger, run.device_number)[:MAX_ROWS]
    ]
    headings = ("in", "phase", "first event>", "last event>", "peak>", "at its end>")
    return element("details", element("summary", caption), table(caption, headings, rows))


def pack_timeline(run: Run, texts: Texts, num_runs: int) -> dict[str, Any]:
    """Positions for drawing, and numbers of strings for reading."""
    moments = _choose(run, num_runs)
    scale, limit = _scale(run)
    categories = [category for category in STACK if category in moments.category_bytes]
    heights = np.cumsum([moments.category_bytes[category] for category in categories], axis=0)
    reserved = None if run.reserved is None else run.reserved[moments.events]
    peak = int(np.searchsorted(moments.events, max(run.device.peak.event, 0)))
    return {
        "height": HEIGHT,
        "ticks": scale.ticks,
        "limit": limit,
        "numEvents": len(run.ledger.events),
        "events": moments.events.tolist(),
        "levels": [level.tolist() for level in moments.levels],
        "levelTexts": [_fineness(run, len(level)) for level in moments.levels],
        "categories": [{"key": category.name.lower(), "label": category.label} for category in categories],
        "stack": [scale.places(row).tolist() for row in heights],
        "reserved": None if reserved is None else scale.places(reserved).tolist(),
        "totalTexts": texts.sizes(moments.totals),
        "reservedTexts": None if reserved is None else texts.sizes(reserved),
        "categoryTexts": [texts.sizes(moments.category_bytes[category]) for category in categories],
        "whereTexts": [texts.number(moment.label) for moment in moments_at(run.ledger, moments.events)],
        "timeTexts": _times(run, moments, texts),
        "steps": [
            [event, f"step {step}"]
            for step, event in zip(run.ledger.step_numbers.tolist(), run.ledger.step_starts.tolist(), strict=True)
        ],
        "phases": [
            [span.first_event, span.last_event, span.phase.label, span.phase.name.lower()]
            for span in trace_phases(run.ledger, run.device_number)
        ],
        "peak": peak,
        "cutShort": run.ended_early,
        "startsOverTime": run.report.info.source == "predicted",
        "clock": pack_lanes(run, moments, texts, num_runs),
    } | _pack_blocks(run, moments, texts)


def _choose(run: Run, num_runs: int) -> Moments:
    counts = sorted({min(count, max(COARSEST, FINEST // num_runs)) for count in (COARSEST, 4 * COARSEST, FINEST)})
    return choose_moments(run.ledger, run.device_number, counts, keep=list(_peaks(run)))


def _peaks(run: Run) -> Iterator[int]:
    """The events that no zoom may hide: where most was in use in a step or reserved, and where a step over its time begins."""
    yield from (step.peak.event for step in run.device.steps if step.peak.event >= 0)
    if (window := find_window(run.ledger)) is not None:
        yield window.first_event
    if run.reserved is not None:
        yield int(np.argmax(run.reserved))


def _fineness(run: Run, num_moments: int) -> str:
    changes = len(events_on(run.ledger, run.device_number))
    every = round(changes / num_moments)
    return f"Drawn: the highest of every {every:,} changes." if every > 1 else "Drawn: every change."


def _scale(run: Run) -> tuple[Scale, list[Any] | None]:
    """The axis, and where on it the GPU ends, if that is near enough to be drawn."""
    highest = max(run.device.peak.size_bytes, 0 if run.reserved is None else int(run.reserved.max(initial=0)))
    if run.verdict is None or not highest / 2 < run.verdict.capacity < highest * 1.5:
        return Scale.up_to(highest), None
    capacity = run.verdict.capacity
    scale = Scale.up_to(max(highest, capacity))
    words = f"{run.verdict.gpu.name}: {format_bytes(capacity)} for the allocator"
    return scale, [place(capacity, scale.top_bytes), words]


def _times(run: Run, moments: Moments, texts: Texts) -> list[int] | None:
    """``None`` where they say nothing."""
    if not run.report.info.has_clock:
        return None
    return [texts.number(format_duration(time)) for time in moments.time_ns.tolist()]


def _pack_blocks(run: Run, moments: Moments, texts: Texts) -> dict[str, Any]:
    """The largest blocks of every moment. Blocks and lists of them are kept once: from moment to moment little changes."""
    lists: dict[tuple[tuple[int, int], ...], int] = {}
    live = largest_live(run.ledger, run.device_number, moments.events, NUM_BLOCKS)
    of_moment = [lists.setdefault(tuple(found), len(lists)) for found in live]
    entries = {entry: number for number, entry in enumerate(dict.fromkeys(entry for found in lists for entry in found))}
    blocks = np.array([block for block, _ in entries], dtype=np.int64)
    sizes = np.array([size for _, size in entries], dtype=np.int64)
    return {
        "blocks": [_pack_block(life, texts) for life in describe_blocks(run.ledger, blocks, sizes)],
        "blockLists": [[entries[entry] for entry in found] for found in lists],
        "blocksOfMoment": of_moment,
    }


def _pack_block(life: BlockLife, texts: Texts) -> list[int | str]:
    words = (format_bytes(life.size_bytes), life.op, life.name or life.module or "no module")
    return [life.category.name.lower(), *(texts.number(word) for word in words)]
