"""Blocks and events as comma-separated values.

Spreadsheets run cells that begin with ``=``, ``+``, ``-`` or ``@`` as formulas, and a module may have any name: such a cell gets an
apostrophe before it, which makes it text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from memfit.analysis import trace_lifetimes, trace_total
from memfit.ledger import EventKind, Ledger, Phase
from memfit.ledger.columns import steps_at
from memfit.ledger.schema import Array
from memfit.views.escaping import printable
from memfit.views.exports.frames import BlockIndex

_FORMULA_STARTS = tuple("=+-@＝＋－＠")

BLOCK_COLUMNS = (
    *("block", "device", "stream", "category", "op", "module", "name", "phase", "step", "bytes"),
    *("birth_event", "birth_ns", "death_event", "death_ns"),
)
EVENT_COLUMNS = ("event", "time_ns", "step", "kind", "device", "block", "category", "op", "module", "phase", "change", "in_use")


def write_blocks(ledger: Ledger) -> bytes:
    """One row a block, with the most it ever held."""
    facts = BlockIndex(ledger.check())
    streams = ledger.blocks.stream.tolist()
    return _table(
        BLOCK_COLUMNS,
        (
            (
                *(
                    life.block,
                    life.device,
                    streams[life.block],
                    known.category,
                    known.op,
                    known.modules[0] if known.modules else "",
                ),
                *(known.name, known.phase, known.step, life.size_bytes),
                *(life.birth_event, life.birth_ns, life.death_event, life.death_ns),
            )
            for life, known in ((life, facts[life.block]) for life in trace_lifetimes(ledger))
        ),
    )


def write_events(ledger: Ledger) -> bytes:
    """One row an event. Of memory events: by how many bytes its device's memory in use changed, and what it came to."""
    return _table(EVENT_COLUMNS, _event_rows(ledger.check()))


def _event_rows(ledger: Ledger) -> Iterator[Sequence[Any]]:
    facts, in_use = BlockIndex(ledger), _in_use(ledger).tolist()
    devices = [ledger.devices[device].name for device in ledger.blocks.device.tolist()]
    steps = steps_at(ledger, np.arange(len(ledger.events))).tolist()
    columns = (ledger.events.time_ns, ledger.events.kind, ledger.events.subject, ledger.deltas)
    rows = zip(steps, *(column.tolist() for column in columns), strict=True)
    for event, (step, time_ns, kind, subject, delta) in enumerate(rows):
        name = EventKind(kind).name.lower()
        if kind <= EventKind.RESIZE:
            known = facts[subject]
            about = (devices[subject], subject, known.category, known.op, known.modules[0] if known.modules else "", known.phase)
            yield (event, time_ns, step, name, *about, delta, in_use[event])
        elif kind in (EventKind.ENTER, EventKind.EXIT):
            module, phase = ledger.module_path(int(ledger.scopes.module[subject])), Phase(ledger.scopes.phase[subject]).label
            yield (event, time_ns, step, name, "", "", "", "", module, phase, "", "")
        else:
            yield (event, time_ns, step, name, *[""] * 8)


def _in_use(ledger: Ledger) -> Array:
    """Per memory event: what was in use on its device right after it."""
    totals = np.zeros(len(ledger.events), dtype=np.int64)
    for device in range(len(ledger.devices)):
        timeline = trace_total(ledger, device)
        totals[timeline.events[1:]] = timeline.totals[1:]
    return totals


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return file.getvalue().encode()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
