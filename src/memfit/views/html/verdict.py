"""Does it fit: the answer, and one bar for what it needs of what there is."""

from __future__ import annotations

from collections.abc import Iterator

from memfit.allocator import Verdict
from memfit.errors import MemfitError
from memfit.explain import explain
from memfit.ledger import RunInfo
from memfit.units import format_bytes
from memfit.views.html.markup import Markup, element, join, table
from memfit.views.html.packing import percent
from memfit.views.html.runs import Run
from memfit.views.verdicts import Rung, answer, coverage_words, ladder, remarks
from memfit.views.words.moments import count, name_moment
from memfit.views.words.recipe import recipe_line
from memfit.views.words.timing import speed_line


def verdict_section(run: Run) -> Markup:
    """The first thing on the page."""
    verdict = run.verdict
    is_open = run.ended_early or not run.report.info.covered.is_whole
    kind = "" if verdict is None or (is_open and verdict.fits) or run.ended_early else ("fits" if verdict.fits else "fails")
    info = run.report.info
    parts = [element("h2", _headline(run), class_=f"answer {kind}".strip())]
    parts += [element("p", line, class_="lead") for line in (recipe_line(info.asked), speed_line(info)) if line]
    if seen := coverage_words(run.report.info.covered):
        parts.append(element("p", seen, class_="lead"))
    parts += [element("p", sentence, class_="alarm") for sentence in _alarms(run)]
    parts += _with_gpu(verdict, info) if verdict else [element("p", _without_gpu(run), class_="lead")]
    parts += _what_would_help(run)
    parts += _assumptions(run)
    return element("section", *parts, class_="verdict", aria_label="The verdict")


def _headline(run: Run) -> str:
    verdict, peak = run.verdict, format_bytes(run.device.peak.size_bytes)
    if verdict is None:
        return f"{peak} in use at most on {run.device.name}"
    if run.ended_early:
        return f"It needs at least {format_bytes(verdict.needed)}, and ended early."
    if run.gpu_was_named or not verdict.fits:
        return answer(verdict, covered=run.report.info.covered)
    return f"The smallest GPU it fits on is {verdict.gpu.name}, with {format_bytes(verdict.margin)} to spare."


def _alarms(run: Run) -> Iterator[str]:
    info = run.report.info
    if info.failure:
        yield f"The run ran out of memory: {info.failure.message}"
        yield "What was asked for, and what would have made it fit: memfit explain."
    elif not info.complete:
        yield f"The ledger is incomplete: {info.problem}"
    if run.ended_early:
        yield "Everything below is what happened until then; a longer run may need more."
    if run.note:
        yield run.note


def _assumptions(run: Run) -> list[Markup]:
    """What the answer rests on stands next to it, in a line that opens."""
    found = [element("li", sentence) for sentence in run.report.info.assumptions]
    summary = element("summary", f"Rests on {count(len(found), 'assumption')}")
    return [element("details", summary, element("ul", *found), class_="assumptions")] if found else []


def _what_would_help(run: Run) -> list[Markup]:
    """For a run that does not fit: changes, each tried by replay."""
    verdict = run.verdict
    if verdict is None or verdict.fits or run.ended_early:
        return []
    try:
        remedies = explain(run.ledger, verdict.gpu.name).remedies
    except MemfitError:  # of a run without enough in it to be changed
        return []
    rows = [
        (
            element("span", _SERVED[remedy.served], class_="fits" if remedy.served else "fails"),
            remedy.what,
            format_bytes(remedy.peak_allocated),
            format_bytes(remedy.smallest_fit),
        )
        for remedy in remedies
    ]
    title = "What would make it fit, each tried by replay"
    if not rows:
        return []
    return [element("h3", title), table(title, ("fits", "with", "allocated>", "smallest fit>"), rows, class_="helps")]


_SERVED = {True: "yes", False: "no", None: "?"}


def _without_gpu(run: Run) -> str:
    return f"Reached {name_moment(run.device.peak)}. To ask whether it would fit on a GPU, name one: memfit report --gpu H100."


def _with_gpu(verdict: Verdict, info: RunInfo) -> list[Markup]:
    rungs = ladder(verdict)
    sentences = [element("li", sentence) for sentence in remarks(verdict, info)]
    notes = [element("li", warning, class_="warning") for warning in verdict.warnings]
    return [
        _bar(verdict),
        element("dl", *(_rung(rung, key) for rung, key in zip(rungs, _KEYS, strict=True)), class_="ladder"),
        element("ul", *sentences, *notes, class_="remarks"),
        _alternatives(verdict),
    ]


_KEYS = ("allocated", "fit", "reserved", "needed", "usable")


def _rung(rung: Rung, key: str) -> Markup:
    label = element("dt", element("i", class_=f"key k-{key}"), rung.label)
    return element(
        "div",
        label,
        element("dd", format_bytes(rung.size_bytes), class_="figure"),
        element("dd", rung.remark, class_="quiet"),
        data_rung=key,
    )


def _bar(verdict: Verdict) -> Markup:
    """The GPU's memory, what the process takes of it beside its tensors at the right, and the ladder from the left."""
    usable = verdict.gpu.usable_bytes
    whole = max(usable, verdict.needed, verdict.peak_reserved)
    end = min(verdict.smallest_fit, verdict.capacity)
    parts = [
        _piece("k-free", 0, usable, whole),
        _piece("k-context", verdict.capacity, usable, whole),
        _piece("k-reserved", 0, verdict.peak_reserved, whole, inset=6),
        _piece("k-fit", 0, end, whole, inset=6),
        _piece("k-allocated", 0, min(verdict.peak_allocated, end), whole, inset=6),
        _piece("k-missing", verdict.capacity, max(verdict.smallest_fit, verdict.capacity), whole, inset=6),
        element("line", x1=percent(usable, whole), x2=percent(usable, whole), y1=0, y2=44, class_="edge"),
    ]
    words = ", ".join(f"{rung.label} {format_bytes(rung.size_bytes)}" for rung in ladder(verdict))
    return element("svg", *parts, class_="bar", width="100%", height=44, role="img", aria_label=f"{words}.")


def _piece(kind: str, start: int, end: int, whole: int, inset: int = 0) -> Markup:
    width = percent(max(end - start, 0), whole)
    return element("rect", class_=kind, x=percent(start, whole), width=width, y=4 + inset, height=36 - 2 * inset)


def _alternatives(verdict: Verdict) -> Markup:
    rows = [(need.alloc_conf, format_bytes(need.smallest_fit), format_bytes(need.peak_reserved)) for need in verdict.alternatives]
    if not rows:
        return join()
    caption = "What it would need under other settings of the allocator"
    return element("details", element("summary", caption), table(caption, ("with", "smallest fit>", "reserved>"), rows))
