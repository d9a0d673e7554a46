"""What the figures rest on: versions, settings; and what else is in the ledger. Assumptions stand next to the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from memfit.units import format_bytes
from memfit.views.html.markup import Markup, element
from memfit.views.html.runs import Run
from memfit.views.words.moments import count, format_duration, name_moment


def facts_section(run: Run) -> Markup:
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in _facts(run)]
    return element(
        "section",
        element("h2", "Assumptions, versions, settings"),
        _assumptions(run),
        element("dl", *pairs, class_="facts"),
        class_="facts-section",
        aria_label="Assumptions, versions, settings",
    )


def _assumptions(run: Run) -> Markup:
    if run.report.info.assumptions:
        return element("p", "What was assumed stands next to the verdict.")
    return element("p", "Nothing was assumed." if run.report.info.source == "predicted" else "Measured: nothing was assumed.")


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    report, info = run.report, run.report.info
    yield "ledger", f"{info.source}, {count(report.num_events, 'event')}, {count(report.num_blocks, 'block')}"
    yield "steps", f"{report.num_steps:,}"
    if info.source == "measured":
        yield "recorded for", format_duration(report.duration_ns)
    if info.world_size > 1:
        yield "rank", f"{info.rank} of {info.world_size:,}"
    if info.command:
        yield "command", info.command
    if info.made_at:
        yield "made", info.made_at
    yield from info.facts.items()
    yield "allocator settings", info.alloc_conf or "default"
    if run.verdict is not None:
        yield "allocator of torch", run.verdict.settings.torch_version
        yield f"{run.verdict.gpu.name}'s memory", f"{format_bytes(run.verdict.gpu.usable_bytes)}: {run.verdict.gpu.usable_source}"
    for device in report.devices[1:]:
        yield f"also on {device.name}", f"{format_bytes(device.peak.size_bytes)} at most, {name_moment(device.peak)}"
