"""The page as people see it: in a real browser, by mouse, by keyboard, on a phone, against the analysis."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers.report_runs import HOSTILE, hostile, long, timed, training

from memfit.analysis import Family, breakdown_at, build_report, gather_module_stats, grow_tree, largest_blocks_at
from memfit.ledger import Coverage, Ledger, RunInfo
from memfit.ledger.run_info import Failure
from memfit.ledger.schema import Activity
from memfit.testing import ledger
from memfit.units import format_bytes
from memfit.views.html import study

if TYPE_CHECKING:
    from playwright.sync_api import Page

RUN = training()
TIMELINE, MODULES = ".over-time .readout", ".tree .readout"


def hover(page: Page, fraction: float) -> None:
    """Points at a part of the timeline."""
    box = page.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + fraction * box["width"], box["y"] + box["height"] / 2)


def chosen_event(page: Page) -> int:
    return int(page.get_attribute(TIMELINE, "data-event") or -1)


# -- it draws ----------------------------------------------------------------------------------------------------------------


def test_it_draws(open_page):
    visit = open_page({"run": RUN})
    colours = visit.page.evaluate("""() => {
        const canvas = document.querySelector("canvas");
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Map();
        for (let i = 0; i < pixels.length; i += 4) {
            const key = [pixels[i], pixels[i + 1], pixels[i + 2]].join();
            if (pixels[i + 3] === 255) seen.set(key, (seen.get(key) ?? 0) + 1);
        }
        return [...seen].filter(([, count]) => count > 500).length;
    }""")
    assert colours >= 4
    assert visit.page.locator(".cell").count() >= 5


def test_the_sections_come_in_order(open_page):
    visit = open_page({"run": RUN})
    assert visit.page.locator("h2").all_inner_texts() == [
        f"It fits on A100-40GB, with {format_bytes(verdict_on(RUN).margin)} to spare.",
        "Memory over the run",
        "The peak explained",
        "Where it lives",
        "Segments of the allocator",
        "Steps side by side",
        "Assumptions, versions, settings",
    ]
    visit.page.locator(".assumptions summary").click()
    assert visit.text(".assumptions") == "Rests on 1 assumption a bool was taken to be False"


def test_the_course_of_a_run_is_drawn(open_page):
    """Bars for steps, dots for evaluations and saves, a ring around the largest batch; their words are titles."""
    steps = "; ".join(f"step; alloc {size}MiB a{size} on cuda:0; free a{size}" for size in (4, 30, 8, 16, 2))
    run = ledger(f"alloc 1MiB parameter w on cuda:0; {steps}")
    births = run.birth.tolist()
    shapes = ("8 x 10", "8 x 90", "16 x 5", "8 x 40")
    rows = [(births[1], 0, 0, 0), (births[2], 0, 1, 1), (births[3], 1, 0, 2), (births[4], 0, 2, 3), (births[5], 2, 0, -1)]
    table = [len(run.strings) + value if place % 4 == 3 and value >= 0 else value for place, value in enumerate(sum(rows, ()))]
    covered = Coverage(is_whole=False, training_steps=3, forward_passes=4, evaluations=1, saves=1)
    info = replace(run.info, covered=covered, versions={"torch": "2.11.0"}, gpu="T4")
    visit = open_page({"run": replace(run, strings=(*run.strings, *shapes), activity=Activity.from_rows(table), info=info)})
    assert visit.text("h2.answer").startswith("What was seen of it fits on T4")
    assert "3 training steps, 1 evaluation, 1 save; not to its end" in visit.text(".verdict")
    titles = visit.page.locator(".peaks > * > title").all_text_contents()
    assert titles == [
        "step 0: 5.00 MiB, 8 x 10",
        "step 1: 31.00 MiB, 8 x 90",
        "step 3: 17.00 MiB, 8 x 40",
        "evaluation 0: 9.00 MiB, 16 x 5",
        "save 0: 3.00 MiB",
        "the largest batch, 8 x 90: step 1",
    ]
    heights = visit.page.eval_on_selector_all(
        ".peaks rect", "bars => bars.map(bar => Math.round(bar.getBoundingClientRect().height))"
    )
    assert heights == [round(180 * size / 31) for size in (5, 31, 17)]
    assert visit.rows(".highlights") == [
        ["highest step, with the largest batch", "step 1", "31.00 MiB", "8 x 90"],
        ["evaluation", "after step 1", "9.00 MiB", "16 x 5"],
        ["save", "after step 3", "3.00 MiB", ""],
    ]


def verdict_on(run: Ledger):
    verdict = study("run", run).verdict
    assert verdict is not None
    return verdict


def test_the_ladder_says_what_the_allocator_says(open_page):
    visit, verdict = open_page({"run": RUN}), verdict_on(RUN)
    figures = {key: visit.text(f"[data-rung={key}] .figure") for key in ("allocated", "fit", "reserved", "needed", "usable")}
    sizes = (verdict.peak_allocated, verdict.smallest_fit, verdict.peak_reserved, verdict.needed, verdict.gpu.usable_bytes)
    assert list(figures.values()) == [format_bytes(size) for size in sizes]


def test_steps_side_by_side(open_page):
    rows = open_page({"run": RUN}).rows(".steps")
    steps = build_report(RUN).devices[0].steps
    assert [row[0].split()[0] for row in rows] == ["init", "0", "1"]
    assert [row[2] for row in rows] == [format_bytes(step.peak.size_bytes) for step in steps]
    assert [row[4] for row in rows] == [format_bytes(step.end_bytes) for step in steps]


# -- the timeline ------------------------------------------------------------------------------------------------------------


def figures_shown(visit) -> tuple[str, dict[str, str], list[list[str]]]:
    total = visit.text(f"{TIMELINE} .figure")
    categories = {label: size for label, size in visit.rows(f"{TIMELINE} .amounts") if size != "0 B"}
    blocks = [[*row[1].split("\n"), row[2]] for row in visit.rows(f"{TIMELINE} .largest")]
    return total, categories, blocks


def figures_expected(run: Ledger, event: int, device: int = 0) -> tuple[str, dict[str, str], list[list[str]]]:
    breakdown = breakdown_at(run, event, device)
    lives = largest_blocks_at(run, event, device, 6)
    blocks = [[life.name or life.module or "no module", life.op, format_bytes(life.size_bytes)] for life in lives]
    categories = {category.label: format_bytes(size) for category, size in breakdown.items()}
    return format_bytes(sum(breakdown.values())), categories, blocks


def test_hovering_gives_the_figures_of_the_analysis(open_page):
    visit, last = open_page({"run": RUN}), len(RUN.events) - 1
    reserved = study("run", RUN).reserved
    for event in range(0, last, 5):
        hover(visit.page, (event + 0.5) / last)
        assert chosen_event(visit.page) == max(RUN.memory_events[RUN.memory_events <= event])
        assert figures_shown(visit) == figures_expected(RUN, event)
        assert visit.text(f"{TIMELINE} .head").endswith(f"in use {format_bytes(int(reserved[event]))} reserved")


def test_it_opens_at_the_peak_and_goes_back_there(open_page):
    visit, peak = open_page({"run": RUN}), build_report(RUN).devices[0].peak
    assert chosen_event(visit.page) == peak.event
    hover(visit.page, 0.1)
    assert chosen_event(visit.page) != peak.event
    visit.page.get_by_role("button", name="Go to the peak").click()
    assert chosen_event(visit.page) == peak.event
    assert visit.text(f"{TIMELINE} .figure") == format_bytes(peak.size_bytes)
    assert "step 1, backward of layers.0" in visit.text(f"{TIMELINE} .where")


def spike() -> Ledger:
    """A peak of one event among thousands: narrower than a pixel, whatever part of the run is shown."""
    small = "; ".join("alloc 1MiB parameter s; free s" for _ in range(4_000))
    return ledger(f"alloc 1GiB parameter base; {small}; alloc 3GiB parameter peak; free peak; {small}")


@pytest.mark.parametrize("part", [None, (0.3, 0.9), (0.31, 0.87)])
def test_a_peak_of_one_event_is_drawn_up_to_its_height(open_page, part: tuple[float, float] | None):
    page = open_page({"run": spike()}).page
    if part is not None:
        box = page.locator(".u-over").bounding_box()
        page.mouse.move(box["x"] + part[0] * box["width"], box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + part[1] * box["width"], box["y"] + 50, steps=4)
        page.mouse.up()
        page.mouse.move(0, 0)
    share = page.evaluate("""() => {
        const over = document.querySelector(".u-over").getBoundingClientRect();
        const canvas = document.querySelector("canvas"), frame = canvas.getBoundingClientRect();
        const [ratio, context] = [canvas.width / frame.width, canvas.getContext("2d")];
        const [left, top] = [(over.left - frame.left) * ratio, (over.top - frame.top) * ratio];
        const [width, height] = [over.width * ratio, over.height * ratio];
        const drawn = context.getImageData(left, top, width, height), pixel = (i) => drawn.data.slice(i, i + 4).join();
        const ground = pixel(4 * ((drawn.height - 4) * drawn.width + 3)), half = Math.floor(drawn.height / 2);
        const rows = new Set();
        for (let i = 0; i < half * drawn.width; i += 1) if (pixel(4 * i) === ground) rows.add(Math.floor(i / drawn.width));
        return rows.size / half;
    }""")
    assert share > 0.5  # the peak is at four times the ground's height, and the drawing is not much higher


def test_zooming_shows_every_event(open_page):
    run = long(5_000)
    visit = open_page({"run": run})
    assert "the highest of every" in visit.text(".toolbar")
    hover(visit.page, 0.5)
    for _ in range(6):
        visit.page.get_by_role("button", name="Zoom in").click()
    assert "every change" in visit.text(".toolbar")
    seen = []
    for fraction in np.linspace(0.1, 0.9, 9):
        hover(visit.page, fraction)
        seen.append(chosen_event(visit.page))
        assert figures_shown(visit) == figures_expected(run, seen[-1])
    assert 0 < seen[-1] - seen[0] < len(run.events) / 50
    visit.page.get_by_role("button", name="Whole run").click()
    hover(visit.page, 0.99)
    assert chosen_event(visit.page) > 0.97 * len(run.events)


def test_dragging_zooms(open_page):
    run = long(5_000)
    visit = open_page({"run": run})
    hover(visit.page, 0.2)
    visit.page.mouse.down()
    hover(visit.page, 0.3)
    visit.page.mouse.up()
    hover(visit.page, 0.001)
    assert chosen_event(visit.page) == pytest.approx(0.2 * len(run.events), rel=0.02)
    hover(visit.page, 0.999)
    assert chosen_event(visit.page) == pytest.approx(0.3 * len(run.events), rel=0.02)


def test_the_peak_is_drawn_although_it_is_one_of_many(open_page):
    run = long(20_000)
    peak = build_report(run).devices[0].peak
    visit = open_page({"run": run})
    assert (chosen_event(visit.page), visit.text(f"{TIMELINE} .figure")) == (peak.event, "1.00 GiB")


# -- hands ------------------------------------------------------------------------------------------------------------------


def test_a_click_holds_a_moment_and_the_address_leads_to_it(open_page):
    visit = open_page({"run": RUN})
    hover(visit.page, 0.3)
    visit.page.mouse.down()
    visit.page.mouse.up()
    held = chosen_event(visit.page)
    assert visit.page.url.endswith(f"#run-0@{held}")
    hover(visit.page, 0.8)
    assert chosen_event(visit.page) == held
    visit.page.reload()
    visit.page.wait_for_selector("html[data-ready]")
    assert chosen_event(visit.page) == held
    visit.requests.pop()  # the second time it was opened
    visit.page.focus(".frame")
    visit.page.keyboard.press("Escape")
    assert visit.page.url.endswith("#run-0")
    hover(visit.page, 0.8)
    assert chosen_event(visit.page) != held


def test_the_wheel_zooms_and_a_drag_with_shift_moves(open_page):
    visit = open_page({"run": RUN})

    def left_end() -> int:
        hover(visit.page, 0.0)
        return chosen_event(visit.page)

    hover(visit.page, 0.5)
    visit.page.mouse.wheel(0, -400)
    visit.page.wait_for_timeout(50)
    zoomed = left_end()
    assert zoomed > 0
    hover(visit.page, 0.7)
    visit.page.keyboard.down("Shift")
    visit.page.mouse.down()
    hover(visit.page, 0.5)
    visit.page.mouse.up()
    visit.page.keyboard.up("Shift")
    assert left_end() > zoomed
    assert "@" not in visit.page.url, "a drag holds nothing"


def test_a_category_is_left_out_and_blocks_are_found(open_page):
    visit = open_page({"run": RUN})
    canvas = "document.querySelector('.u-wrap canvas').toDataURL()"
    before = visit.page.evaluate(canvas)
    button = visit.page.locator(".readout button.swatch").last
    button.click()
    visit.page.wait_for_timeout(100)
    assert visit.page.evaluate(canvas) != before
    button.click()
    visit.page.wait_for_timeout(100)
    assert visit.page.evaluate(canvas) == before
    visible = "[...document.querySelectorAll('.peak .tall tbody tr')].filter(row => !row.hidden).length"
    number = visit.page.evaluate(visible)
    visit.page.fill("input.filter", "no such block")
    assert visit.page.evaluate(visible) == 0
    visit.page.fill("input.filter", "")
    assert visit.page.evaluate(visible) == number > 0


def test_a_red_page_says_what_would_help_and_every_page_what_it_is_about(open_page):
    info = replace(
        RUN.info, gpu="T4", asked={"model": "gpt2", "gpu": "T4"}, command="memfit predict --model gpt2", speed={"mfu": 0.5}
    )
    versions = {"memfit": "0.9", "torch": "2.11+cu130"}
    info = replace(info, made_at="2026-11-18 02:10 UTC", speed={"step_seconds": 0.5, "mfu": 0.5}, versions=versions)
    run = replace(RUN, info=info)
    visit = open_page({"run": run})
    assert "memfit 0.9, torch 2.11+cu130" in visit.text("header")
    assert visit.text(".origin") == "Made 2026-11-18 02:10 UTC by memfit predict --model gpt2"
    assert visit.page.locator(".verdict .lead").all_inner_texts() == ["gpt2 on T4", "A step takes 500 ms, MFU 50.0%."]
    if "does not fit" in visit.text(".answer"):
        assert visit.rows(".helps")


def test_the_table_of_blocks_fits_a_desktop(open_page):
    """Names of many parts break between these, so that all columns are seen at once."""
    module = "transformers.models.llama.modeling_llama"
    run = ledger(
        "enter forward model.layers.12.post_attention_layernorm; "
        "alloc 4MiB parameter model.layers.12.post_attention_layernorm.weight on cuda:0; exit; step"
    )
    visit = open_page({"run": replace(run, info=replace(run.info, sources={"Module": f"{module}:364"}))})
    assert visit.page.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.blocks'))")
    assert visit.page.evaluate("document.querySelector('.blocks tbody tr').offsetHeight") < 100


# -- over milliseconds -------------------------------------------------------------------------------------------------------


def point_at_stream(page: Page, lane: int, milliseconds: float, whole: float) -> str:
    """Points at what a stream did at some time of the step; gives what the page says then."""
    page.locator("canvas.streams").scroll_into_view_if_needed()
    plot, streams = page.locator(".u-over").bounding_box(), page.locator("canvas.streams").bounding_box()
    assert plot is not None
    assert streams is not None
    height = streams["height"] / 3
    page.mouse.move(plot["x"] + plot["width"] * milliseconds / whole, streams["y"] + (lane + 0.7) * height)
    return " ".join(page.inner_text(".lanes .said").split())


def test_the_last_step_over_milliseconds(open_page):
    run = timed()
    begin = int(run.step_starts[-1])
    whole = max(len(run.events) - 1 - begin, 33)
    visit = open_page({"run": run})
    visit.page.get_by_role("button", name="events").click()
    assert not visit.page.locator("canvas.streams").is_visible()
    visit.page.get_by_role("button", name="milliseconds").click()
    said = [point_at_stream(visit.page, *at, whole) for at in ((0, 7), (0, 15), (1, 1), (2, 20.5))]
    assert said == [
        "default stream: forward of layers.1.mlp, 2.00 ms of 4.00 ms, 2 kernels, most of it mm, after 5.00 ms",
        "default stream: idle for 11.00 ms",
        "stream 4: mm of layers.0.mlp, 2.00 ms, 1 kernel, after 0 ns",
        "communication (mesh_dp): all_gather of layers.0.mlp, 20.00 ms, 1 kernel, after 2.00 ms",
    ]
    # What was in use is shown beside it, and by pointing at the memory itself.
    assert chosen_event(visit.page) == max(RUN.memory_events[RUN.memory_events <= begin + 20])
    visit.page.locator(".u-over").scroll_into_view_if_needed()
    for milliseconds in (0, 7, 20):
        hover(visit.page, (milliseconds + 0.5) / whole)
        event = chosen_event(visit.page)
        assert event == max(begin, *RUN.memory_events[RUN.memory_events <= begin + milliseconds])
        assert figures_shown(visit) == figures_expected(run, event)
        assert f"ms of the step, event {event:,}" in visit.text(f"{TIMELINE} .where") or not milliseconds
    visit.page.get_by_role("button", name="events").click()
    assert not visit.page.locator("canvas.streams").is_visible()
    hover(visit.page, 0.001)
    assert chosen_event(visit.page) == 0


def test_streams_are_drawn_in_the_colours_of_what_they_do(open_page):
    visit = open_page({"run": timed()})
    visit.page.get_by_role("button", name="milliseconds").click()
    drawn = """() => {
        const canvas = document.querySelector("canvas.streams");
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const found = {};
        for (const key of ["forward", "backward", "optimizer", "communication", "copy", "idle"]) {
            const colour = getComputedStyle(document.querySelector(`.legend .w-${key}`)).backgroundColor;
            const [red, green, blue] = colour.match(/\\d+/g).map(Number);
            found[key] = 0;
            for (let i = 0; i < pixels.length; i += 4) {
                const same = pixels[i] === red && pixels[i + 1] === green && pixels[i + 2] === blue;
                if (same && pixels[i + 3] === 255) found[key] += 1;
            }
        }
        return found;
    }"""
    found = visit.page.evaluate(drawn)
    # Of forward, the second half is drawn fainter: its stream is busy for half of it.
    assert found["communication"] == pytest.approx(2 * found["backward"], rel=0.05)
    assert found["backward"] == pytest.approx(5 * found["optimizer"], rel=0.1)
    assert found["forward"] == pytest.approx(2 * found["copy"], rel=0.1)
    assert found["idle"] > found["communication"]


def test_streams_by_keyboard(open_page):
    visit = open_page({"run": timed()})
    visit.page.get_by_role("button", name="milliseconds").click()
    streams = visit.page.get_by_role("slider").nth(1)
    streams.focus()
    spoken = []
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowUp", "ArrowUp", "End"):
        visit.page.keyboard.press(key)
        spoken.append((streams.get_attribute("aria-valuetext") or "").partition(",")[0])
    assert spoken == [
        "default stream: forward of layers.1.mlp",
        "stream 4: mm of layers.0.mlp",
        "communication (mesh_dp): all_gather of layers.0.mlp",
        "stream 4: mm of layers.0.mlp",
        "default stream: forward of layers.0.mlp",
        "default stream: optimizer",
    ]
    visit.page.keyboard.press("p")
    assert chosen_event(visit.page) == build_report(RUN).devices[0].steps[-1].peak.event
    visit.page.click("text=The streams of the last step as a table")
    rows = visit.rows(".streams")
    assert [row[:2] for row in rows] == [
        ["default stream", "18.00 ms"],
        ["stream 4", "2.00 ms"],
        ["communication (mesh_dp)", "20.00 ms"],
    ]


def test_a_run_without_streams_has_no_switch(open_page):
    visit = open_page({"run": RUN})
    assert visit.page.get_by_role("button", name="milliseconds").count() == 0


# -- the modules -------------------------------------------------------------------------------------------------------------


def tree(run: Ledger, *, merged: bool):
    return grow_tree(run, 0, tuple(gather_module_stats(run, 0)), merged=merged)


def test_clicking_a_module_descends_and_gives_its_figures(open_page):
    visit, nodes = open_page({"run": RUN}), tree(RUN, merged=True)
    number = next(i for i, node in enumerate(nodes) if node.path == "layers.*")
    visit.page.click(f".cell[data-node='{number}']")
    assert visit.text(".crumbs").split(" ") == ["cuda:0", "(Module)", "layers", "*", "×", "3"]
    shown = dict(row[:2] for row in visit.rows(f"{MODULES} .amounts"))
    node = nodes[number]
    assert shown["in use at the peak"] == format_bytes(node.bytes_at_peak)
    assert {family.value: shown[family.value] for family in Family} == {f.value: format_bytes(s) for f, s in node.highest.items()}
    assert shown["on the device while its forward ran"] == format_bytes(node.peak_forward_bytes)
    assert set(visit.page.eval_on_selector_all(".cell .name", "cells => cells.map(cell => cell.innerText)")) == {
        *("* × 3", "mlp × 3", "norm × 3"),
    }
    visit.page.click(".crumbs button >> nth=0")
    assert visit.text(".crumbs") == "cuda:0"


@pytest.mark.parametrize("family", list(Family))
def test_bars_are_as_wide_as_what_they_stand_for(open_page, family: Family):
    visit, nodes = open_page({"run": RUN}), tree(RUN, merged=False)
    visit.page.get_by_role("button", name="each layer").click()
    visit.page.get_by_role("group", name="Measure").get_by_role("button", name=family.value, exact=True).click()
    measure = "cells => Object.fromEntries(cells.map(c => [c.dataset.node, [c.getBoundingClientRect().width, c.ariaLabel]]))"
    bars = visit.page.eval_on_selector_all(".cell", measure)
    whole = visit.page.eval_on_selector(".bars", "bars => bars.clientWidth")
    total = nodes[0].highest[family]
    assert {int(number) for number in bars} == {i for i, node in enumerate(nodes) if total and node.highest[family]}
    for number, (width, label) in bars.items():
        node = nodes[int(number)]
        assert width == pytest.approx(whole * node.highest[family] / total - 1, abs=0.1)
        assert label == f"{node.path}, {format_bytes(node.highest[family])}"


def test_a_kind_of_memory_that_there_is_none_of(open_page):
    visit = open_page({"run": ledger("alloc 3MiB parameter a.w")})
    visit.page.get_by_role("button", name="gradients").click()
    assert visit.text(".bars") == "There is none."
    visit.page.get_by_role("button", name="parameters").click()
    assert visit.page.locator(".cell").count() == 3


# -- several runs ------------------------------------------------------------------------------------------------------------


def test_a_switch_between_runs(open_page):
    runs = {f"rank {rank}": training(scale=rank + 1) for rank in range(8)}
    visit = open_page(runs, title="8 runs")
    assert visit.text("h2 >> nth=0") == "All 8 runs fit."
    assert [row[2] for row in visit.rows(".runs")] == [
        format_bytes(build_report(run).devices[0].peak.size_bytes) for run in runs.values()
    ]
    for rank in (5, 0):
        visit.page.get_by_role("button", name=f"rank {rank}", exact=True).click()
        shown = visit.page.locator("article.run:visible")
        assert shown.count() == 1
        assert shown.get_attribute("aria-label") == f"rank {rank}"
        peak = build_report(runs[f"rank {rank}"]).devices[0].peak
        assert shown.locator(".over-time .figure").inner_text() == format_bytes(peak.size_bytes)
        assert shown.locator("canvas").count() == 1


# -- runs that went wrong ----------------------------------------------------------------------------------------------------


def test_a_run_that_ran_out_of_memory_says_so(open_page):
    failure = Failure(message="CUDA out of memory. Tried to allocate 20.00 GiB.", device="cuda:0")
    visit = open_page({"run": replace(RUN, info=replace(RUN.info, failure=failure))})
    verdict = verdict_on(RUN)
    assert visit.text("h2 >> nth=0") == f"It needs at least {format_bytes(verdict.needed)}, and ended early."
    assert "Tried to allocate 20.00 GiB" in visit.text(".alarm >> nth=0")
    assert visit.page.locator(".answer.fits").count() == 0


def test_a_run_too_large_says_how_much_is_missing(open_page):
    visit = open_page({"run": training(scale=500)})
    verdict = verdict_on(training(scale=500))
    assert visit.text("h2 >> nth=0") == f"It does not fit on A100-40GB: short by {format_bytes(-verdict.margin)}."
    assert "The smallest GPU on which it fits: " in visit.text(".remarks")


def test_a_run_without_a_gpu_asks_for_one(open_page):
    visit = open_page({"run": ledger("alloc 3MiB parameter a.w; enter forward a; alloc 1MiB x; exit")})
    assert visit.text("h2 >> nth=0") == "4.00 MiB in use at most on cpu"
    assert "--gpu" in visit.text(".verdict")
    assert visit.page.locator("svg.bar").count() == 0


# -- strangers' names --------------------------------------------------------------------------------------------------------


def test_hostile_names_are_text(open_page):
    visit = open_page({HOSTILE: hostile()}, title=HOSTILE)
    assert visit.page.title() == f"{HOSTILE} – memfit"
    assert visit.page.evaluate("document.scripts.length") == 2
    assert visit.page.locator("img").count() == 0
    hover(visit.page, 0.5)
    assert HOSTILE in visit.text(f"{TIMELINE} .where")
    visit.page.click(".cell >> nth=2")
    assert visit.text(f"{MODULES} .head") == HOSTILE
    assert HOSTILE in visit.text(".peak")
    assert "\u202e" not in visit.page.content()


def test_no_request_can_leave_the_page(open_page):
    visit = open_page({"run": RUN}, forgive=True)
    attempt = "() => fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'stopped')"
    assert visit.page.evaluate(attempt) == "stopped"
    assert any("Content Security Policy" in complaint for complaint in visit.complaints)
    visit.page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.broken = true";
        document.body.append(script);
    }""")
    assert visit.page.evaluate("window.broken") is None


# -- by keyboard, by ear, on a phone -----------------------------------------------------------------------------------------


def test_the_timeline_by_keyboard(open_page):
    visit, peak = open_page({"run": RUN}), build_report(RUN).devices[0].peak.event
    chart = visit.page.get_by_role("slider", name="Memory over the run")
    chart.focus()
    assert "Arrow keys move" in (chart.get_attribute("aria-label") or "")
    visit.page.keyboard.press("ArrowRight")
    assert chosen_event(visit.page) == peak + 1
    visit.page.keyboard.press("Home")
    assert chosen_event(visit.page) == 0
    visit.page.keyboard.press("End")
    assert chosen_event(visit.page) == len(RUN.events) - 1
    visit.page.keyboard.press("p")
    assert chosen_event(visit.page) == peak
    spoken = chart.get_attribute("aria-valuetext") or ""
    assert spoken.startswith(f"{figures_expected(RUN, peak)[0]} in use at event {peak:,}: step 1, backward of layers.0")
    visit.page.keyboard.press("ArrowLeft")
    assert chosen_event(visit.page) == max(RUN.memory_events[RUN.memory_events < peak])


def test_the_modules_by_keyboard(open_page):
    visit = open_page({"run": RUN})
    visit.page.focus(".cell[tabindex='0']")

    def at() -> str:
        return visit.text(f"{MODULES} .head")

    assert at() == "cuda:0"
    visit.page.keyboard.press("ArrowDown")
    visit.page.keyboard.press("ArrowDown")
    assert at() == "layers"
    visit.page.keyboard.press("ArrowRight")
    assert at() == "head"
    visit.page.keyboard.press("ArrowLeft")
    visit.page.keyboard.press("Enter")
    assert visit.text(".crumbs span") == "layers"
    visit.page.keyboard.press("Escape")
    assert visit.text(".crumbs span") == "(Module)"
    visit.page.keyboard.press("ArrowUp")
    assert at() == "(Module)"


def test_everything_can_be_reached_with_tab(open_page):
    visit = open_page({"run": RUN})
    reached = set()
    for _ in range(40):
        visit.page.keyboard.press("Tab")
        reached.add(visit.page.evaluate("document.activeElement.className || document.activeElement.innerText"))
    assert {"frame", "cell", "Go to the peak", "Zoom in", "activations", "scroll steps"} <= reached
    visit.page.focus(".frame")
    visit.page.keyboard.press("ArrowRight")
    assert visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_drawings_have_words(open_page):
    visit = open_page({"run": RUN})
    assert visit.page.locator("svg[role=img]:not([aria-label])").count() == 0
    assert visit.page.locator("table:not(:has(caption)):not([aria-label])").count() == 0
    assert visit.page.locator("button:not([aria-label])").evaluate_all("all => all.filter(b => !b.innerText.trim()).length") == 0
    visit.page.click("text=The phases of the run as a table")
    assert [row[1] for row in visit.rows(".over-time details")] == ["forward", "backward", "optimizer"] * 2
    visit.page.click("text=The modules as a table")
    assert len(visit.rows(".tree details")) == len(tree(RUN, merged=True))


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out_sideways(open_page, width: int):
    visit = open_page({"run": RUN}, viewport={"width": width, "height": 800})
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    assert visit.page.locator("canvas").bounding_box()["width"] <= width


def test_a_finger_chooses_a_moment(open_page):
    visit = open_page({"run": RUN}, viewport={"width": 390, "height": 800}, has_touch=True)
    visit.page.locator(".u-over").scroll_into_view_if_needed()
    box = visit.page.locator(".u-over").bounding_box()
    assert box is not None
    visit.page.touchscreen.tap(box["x"] + 0.25 * box["width"], box["y"] + 40)
    assert chosen_event(visit.page) == pytest.approx(0.25 * len(RUN.events), abs=5)
    assert figures_shown(visit) == figures_expected(RUN, chosen_event(visit.page))


def test_dark_and_light(open_page):
    paper = {
        scheme: open_page({"run": RUN}, color_scheme=scheme).page.evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    }
    lightness = {scheme: sum(int(part) for part in colour[4:-1].split(",")) for scheme, colour in paper.items()}
    assert lightness["light"] > 600 > 200 > lightness["dark"]


def test_an_unfinished_ledger_is_drawn_to_its_end(open_page):
    run = replace(RUN, info=RunInfo(versions={"torch": "2.11"}, problem="the process died"))
    visit = open_page({"run": run})
    assert "the process died" in visit.text(".alarm >> nth=0")
    assert "ended early" in visit.text("h2 >> nth=0")
