"""The peak explained: by category, by module, by operator, and block by block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from memfit.analysis import BlockLife, Breakdown, bytes_by_op, largest_blocks_at
from memfit.ledger import Category, Ledger, moments_at
from memfit.units import format_bytes
from memfit.views.html.markup import Markup, dotted, element, join, table
from memfit.views.html.packing import percent
from memfit.views.html.runs import Run
from memfit.views.words.moments import count, format_duration, name_moment, name_op

NUM_GROUPS: Final = 14
NUM_OPS: Final = 14
NUM_BLOCKS: Final = 200


def peak_section(run: Run) -> Markup:
    device = run.device
    when = f"{name_moment(device.peak)}, at event {device.peak.event:,}"
    lead = f"{format_bytes(device.peak.size_bytes)} in use on {device.name}, {when}."
    return element(
        "section",
        element("h2", "The peak explained"),
        element("p", lead, class_="lead"),
        element("div", _categories(run), _modules(run), _ops(run), class_="columns"),
        element("h3", "Block by block"),
        element("div", data_filter="Find blocks: a module, an operator, a category"),
        _blocks(run),
        class_="peak",
        aria_label="The peak explained",
    )


def swatch(category: Category) -> Markup:
    """A category with its colour."""
    return element("span", element("i", class_=f"key c-{category.name.lower()}"), category.label, class_="swatch")


def stacked_bar(breakdown: Breakdown, whole: int) -> Markup:
    """A breakdown as a bar, of which ``whole`` would be the full width."""
    pieces, start = [], 0
    for category, size in breakdown.items():
        width = percent(size, whole)
        pieces.append(element("rect", class_=f"c-{category.name.lower()}", x=percent(start, whole), width=width, y=0, height=12))
        start += size
    return element("svg", *pieces, class_="share", width="100%", height=12, aria_hidden="true")


def _categories(run: Run) -> Markup:
    shares = run.device.shares_at_peak
    largest = max((share.size_bytes for share in shares), default=1)
    rows = [
        (
            swatch(share.category),
            stacked_bar({share.category: share.size_bytes}, largest),
            format_bytes(share.size_bytes),
            f"{share.fraction:.1%}",
        )
        for share in shares
    ]
    return _column("By category", table("The peak by category", ("category", "", "bytes>", "share>"), rows))


def _modules(run: Run) -> Markup:
    device = run.device
    rows = [
        (dotted(group.path), f"{group.num_modules:,}", format_bytes(group.bytes_at_peak))
        for group in device.module_groups[:NUM_GROUPS]
    ]
    if device.bytes_outside_modules:
        rows.append((element("span", "outside all modules", class_="quiet"), "", format_bytes(device.bytes_outside_modules)))
    left = len(device.module_groups) - NUM_GROUPS
    note = f"and {count(left, 'smaller group')}" if left > 0 else ""
    return _column("By module", table("The peak by module", ("module, without those below it", "modules>", "bytes>"), rows), note)


def _ops(run: Run) -> Markup:
    shares = bytes_by_op(run.ledger, run.device.peak.event, run.device_number)
    rows = [(dotted(name_op(share.op)), f"{share.num_blocks:,}", format_bytes(share.size_bytes)) for share in shares[:NUM_OPS]]
    left = len(shares) - NUM_OPS
    note = f"and {count(left, 'smaller operator')}" if left > 0 else ""
    return _column("By operator", table("The peak by operator", ("operator that made it", "blocks>", "bytes>"), rows), note)


def _column(title: str, body: Markup, note: str = "") -> Markup:
    return element("div", element("h3", title), body, element("p", note, class_="quiet") if note else "")


def _blocks(run: Run) -> Markup:
    lives = largest_blocks_at(run.ledger, run.device.peak.event, run.device_number, NUM_BLOCKS)
    written = _where_classes_are(run.ledger)
    births = moments_at(run.ledger, np.array([life.birth_event for life in lives], dtype=np.int64))
    rows = [
        (
            format_bytes(life.size_bytes),
            swatch(life.category),
            _owner(life, written),
            dotted(name_op(life.op)),
            f"event {life.birth_event:,}",
            birth.label,
            _lifetime(run, life),
        )
        for life, birth in zip(lives, births, strict=True)
    ]
    headings = ("bytes>", "category", "belongs to", "operator", "born at>", "in", "lives for>")
    listed = f"The {count(len(lives), 'largest block')} of the {run.num_blocks_at_peak:,} in use at the peak."
    return element(
        "div", table("The largest blocks at the peak", headings, rows, class_="tall blocks"), element("p", listed, class_="quiet")
    )


def _where_classes_are(ledger: Ledger) -> dict[str, str]:
    """For the path of each module, the file and line of its class, or of the nearest around it that is not torch's own."""
    kinds, parents = ledger.modules.kind.tolist(), ledger.modules.parent.tolist()
    found: list[str] = []
    for kind, parent in zip(kinds, parents, strict=True):
        around = found[parent] if 0 <= parent < len(found) else ""
        found.append(ledger.info.sources.get(ledger.strings[kind], around))
    return {ledger.module_path(number): written for number, written in enumerate(found)}


def _owner(life: BlockLife, written: Mapping[str, str]) -> Markup:
    """What a block belongs to, and where that is written."""
    name = dotted(life.name or life.module or "–")
    where = written.get(life.module, "")
    return join(name, " ", dotted(where, "span", class_="quiet", title="the forward of its module")) if where else name


def _lifetime(run: Run, life: BlockLife) -> Markup | str:
    end = len(run.ledger.events) if life.death_event is None else life.death_event
    words = count(end - life.birth_event, "event") + ("" if life.death_event is not None else ", to the end")
    if not run.report.info.has_clock:
        return words
    return join(f"{format_duration(life.lifetime_ns)} ", element("span", words, class_="quiet"))
