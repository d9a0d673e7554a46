"""What the page is made of, without a browser."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from helpers.arbitrary_ledgers import ledgers
from helpers.report_runs import hostile, long, timed, training
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.analysis import build_report
from memfit.errors import ConfigError
from memfit.hardware import find_gpu
from memfit.ledger import Category, Ledger, RunInfo
from memfit.testing import ledger
from memfit.units import GIB, MIB, format_bytes
from memfit.views.html import render_page, study
from memfit.views.html.markup import Markup, element, table
from memfit.views.html.over_time.timeline import STACK
from memfit.views.html.packing import HEIGHT, Scale, Texts
from memfit.views.html.runs import label_runs


def unpack(page: str) -> dict[str, Any]:
    packed = re.search(r'<script id="packed"[^>]*>([^<]*)</script>', page)
    assert packed is not None
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    return found


# -- markup ------------------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Collects what a browser would take for text, and which elements there are."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.tags, self.attributes = "", list[str](), dict[str, str | None]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(alphabet="<>&\"'/=abc \x1b\u202e"), st.text(alphabet="<>&\"'/=abc "))
def test_text_stays_text(text: str, attribute: str):
    reader = Reader()
    reader.feed(element("p", text, title=attribute))
    reader.close()
    assert reader.tags == ["p"]
    assert reader.text == text.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert reader.attributes == {"title": attribute}


def test_elements_nest_and_attributes_are_as_html_has_them():
    assert element("p", element("b", "a<"), "b<", class_="x", hidden=True, title=None, data_n=3) == (
        '<p class="x" hidden data-n="3"><b>a&lt;</b>b&lt;</p>'
    )
    assert isinstance(element("p"), Markup)


def test_tables_line_figures_up():
    html = table("Sizes", ("name", "bytes>"), [("a", "1 B")])
    assert '<caption class="quiet">Sizes</caption>' in html
    assert '<th scope="col">name</th><th scope="col" class="n">bytes</th>' in html
    assert '<th scope="row">a</th><td class="n">1 B</td>' in html


# -- axes and strings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "labels"),
    [
        (100 * MIB, ["0", "20 MiB", "40 MiB", "60 MiB", "80 MiB", "100 MiB"]),
        (3 * GIB, ["0", "500 MiB", "1000 MiB", "1500 MiB", "2000 MiB", "2500 MiB", "3000 MiB"]),
        (40 * GIB, ["0", "10 GiB", "20 GiB", "30 GiB", "40 GiB"]),
        (7, ["0", "1 B", "2 B", "3 B", "4 B", "5 B", "6 B", "7 B"]),
    ],
)
def test_axes_have_round_numbers(size: int, labels: list[str]):
    assert [label for _, label in Scale.up_to(size).ticks] == labels


@given(st.integers(0, 2**60))
def test_an_axis_has_room(size: int):
    scale = Scale.up_to(size)
    places = [place for place, _ in scale.ticks]
    assert size <= scale.top_bytes
    assert places == sorted(set(places))
    assert len(places) <= 8
    assert 0 <= int(scale.places(np.array([size]))[0]) <= HEIGHT


def test_strings_are_kept_once():
    texts = Texts()
    assert texts.sizes(np.array([MIB, 5, MIB])) == [1, 0, 1]
    assert texts.number("1.00 MiB") == 1
    assert texts.number("\x1b") == 2
    assert texts.all() == ["5 B", "1.00 MiB", "\\x1b"]


def test_every_category_has_its_place_in_the_stack():
    assert sorted(STACK) == list(Category)


# -- what is packed ----------------------------------------------------------------------------------------------------------


def test_positions_are_those_of_the_analysis():
    run = study("run", ledger("alloc 3MiB parameter w; alloc 1MiB x; free x; alloc 4MiB y"))
    packed = unpack(render_page([run], "run"))
    timeline, texts = packed["runs"][0]["timeline"], packed["texts"]
    top = 7 * MIB + 7 * MIB // 25
    assert timeline["events"] == [0, 1, 2, 3]
    assert [category["label"] for category in timeline["categories"]] == ["parameter", "other"]
    assert timeline["stack"][0] == [round(HEIGHT * 3 * MIB / top)] * 4
    assert timeline["stack"][1] == [round(HEIGHT * size * MIB / top) for size in (3, 4, 3, 7)]
    assert [texts[i] for i in timeline["totalTexts"]] == ["3.00 MiB", "4.00 MiB", "3.00 MiB", "7.00 MiB"]
    assert timeline["peak"] == 3


@settings(max_examples=40)
@given(ledgers)
def test_any_ledger_has_a_page(run: Ledger):
    if not any(device.peak.size_bytes for device in build_report(run).devices[:1]):
        with pytest.raises(ConfigError, match="has no memory in it"):
            study("run", run)
        return
    packed = unpack(render_page([study("run", run)], "run"))
    timeline = packed["runs"][0]["timeline"]
    assert len(timeline["events"]) == len(timeline["totalTexts"]) == len(timeline["blocksOfMoment"])
    assert max(timeline["stack"][-1]) <= HEIGHT
    assert all(max(column) < len(packed["texts"]) for column in timeline["categoryTexts"])


def test_the_same_ledger_makes_the_same_page():
    assert render_page([study("run", training())], "run") == render_page([study("run", training())], "run")


def test_blocks_say_where_their_module_is_written():
    run = ledger("enter forward block; enter forward block.inner; alloc 4MiB x on cuda:0; exit; exit; step")
    info = replace(run.info, sources={"Module": "<b>.py:42"})
    page = render_page([study("run", replace(run, info=info))], "run")
    assert "&lt;b&gt;.py:42" in page.replace("<wbr>", "")
    assert "<b>.py:42" not in page
    assert "forward of its module" not in render_page([study("run", run)], "run")


def test_pages_stay_small():
    assert len(render_page([study("run", long(50_000))], "run")) < 3_000_000


def test_the_policy_names_what_is_in_the_page():
    page = render_page([study("run", hostile())], "run")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    parts = dict(part.strip().split(" ", 1) for part in policy[1].split(";"))
    assert parts["default-src"] == "'none'"
    for name, tag in (("script-src", "script"), ("style-src", "style")):
        inline = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert inline is not None
        digest = base64.b64encode(hashlib.sha256(inline[1].encode()).digest()).decode()
        assert parts[name] == f"'sha256-{digest}'"


# -- runs --------------------------------------------------------------------------------------------------------------------


def test_the_gpu_is_the_one_asked_for_or_the_ledgers_or_the_least_that_does():
    run = training()
    asked, named = study("run", run, find_gpu("H200")), study("run", run)
    least = study("run", replace(run, info=RunInfo(versions={"torch": "2.11"})))
    assert [study.verdict and study.verdict.gpu.name for study in (asked, named, least)] == ["H200", "A100-40GB", "T4"]
    assert [study.gpu_was_named for study in (asked, named, least)] == [True, True, False]
    assert "The smallest GPU it fits on is T4" in render_page([least], "run")


def test_a_gpu_can_be_asked_about_for_a_run_on_the_host():
    run = ledger("alloc 3MiB parameter a.w")
    assert study("run", run).verdict is None
    assert study("run", run, find_gpu("T4")).verdict is not None


def test_a_torch_whose_allocator_is_unknown_is_no_reason_to_draw_nothing():
    run = study("run", replace(training(), info=RunInfo(versions={"torch": "1.9"})))
    assert run.verdict is None
    assert "No verdict: memfit knows the allocator of torch 2.6 and newer" in render_page([run], "run")


def test_what_is_reserved_in_each_step():
    run = study("run", training())
    assert run.reserved is not None
    assert run.step_reserved == sorted(run.step_reserved or [])
    assert run.verdict is not None
    assert max(run.step_reserved or []) == run.verdict.peak_reserved == run.reserved.max()


def test_several_runs_are_summed_up_by_the_worst_of_them():
    well, large = study("well", training()), study("large", training(scale=500))
    early = study("early", replace(training(), info=RunInfo(versions={"torch": "2.11"}, problem="it died")))
    sums = {
        "Both runs fit.": [well, well],
        "1 of 2 runs does not fit.": [well, large],
        "1 of 3 runs ended early.": [well, early, large],
    }
    for words, runs in sums.items():
        assert words in render_page(runs, "runs")


def test_a_ledger_without_memory_is_refused():
    with pytest.raises(ConfigError, match="run has no memory in it"):
        study("run", ledger("step"))


def test_runs_are_called_by_rank_where_they_are_ranks():
    ranks = [replace(training(), info=RunInfo(rank=rank, world_size=2)) for rank in (1, 0)]
    assert label_runs(["a", "b"], ranks) == ["rank 1", "rank 0"]
    assert label_runs(["a", "b"], [ranks[0], ranks[0]]) == ["a", "b"]
    assert label_runs(["a"], ranks[:1]) == ["a"]


# -- over milliseconds -------------------------------------------------------------------------------------------------------


def test_the_last_step_is_packed_over_its_time():
    run = timed()
    packed = unpack(render_page([study("run", run)], "run"))
    timeline, texts = packed["runs"][0]["timeline"], packed["texts"]
    clock = timeline["clock"]
    begin, end = int(run.step_starts[-1]), len(run.events) - 1
    assert timeline["events"][clock["firstMoment"]] == begin
    assert clock["times"] == [1_000_000 * (event - begin) for event in timeline["events"][clock["firstMoment"] :]]
    assert clock["end"] == 1_000_000 * max(end - begin, 33)
    assert timeline["events"][clock["peak"]] == build_report(run).devices[0].steps[-1].peak.event
    default, copies, group = clock["lanes"]
    assert [lane["name"] for lane in clock["lanes"]] == ["default stream", "stream 4", "communication (mesh_dp)"]
    assert [lane["label"] for lane in clock["lanes"]] == [
        f"{lane['name']}: {busy / max(end - begin, 33):.0%} busy" for lane, busy in zip(clock["lanes"], (18, 2, 20), strict=True)
    ]
    assert [default[name] for name in ("begins", "ends")] == [
        [1_000_000 * at for at in times] for times in ((1, 5, 20, 31), (5, 9, 30, 33))
    ]
    assert default["shares"] == [100, 50, 100, 100]
    assert texts[default["whatTexts"][1]] == "forward of layers.1.mlp"
    assert texts[default["howTexts"][1]] == "2.00 ms of 4.00 ms, 2 kernels, most of it mm"
    assert texts[default["howTexts"][2]] == "10.00 ms, 1 kernel, mm"
    assert texts[group["howTexts"][0]] == "20.00 ms, 1 kernel"
    assert [texts[number] for number in default["idleTexts"]][:4] == ["1.00 ms", "0 ns", "11.00 ms", "1.00 ms"]
    assert copies["kinds"] == ["copy"]


def test_a_run_whose_streams_nobody_saw_is_drawn_over_events_alone():
    packed = unpack(render_page([study("run", training())], "run"))
    assert packed["runs"][0]["timeline"]["clock"] is None


def test_many_runs_share_the_spans_of_a_page():
    run = timed()
    begin = int(run.work.begin_ns.min())
    count = 5_000
    columns = {name: np.repeat(column[:1], count) for name, column in run.work.columns().items()}
    columns |= {
        "begin_ns": begin + 10 * np.arange(count),
        "end_ns": begin + 10 * np.arange(count) + 5,
        "busy_ns": np.full(count, 5),
    }
    busy = replace(run, work=type(run.work)(**columns)).check()
    packed = unpack(render_page([study(str(i), busy) for i in range(8)], "runs"))
    for one in packed["runs"]:
        (lane,) = one["timeline"]["clock"]["lanes"]
        assert 1_000 < len(lane["begins"]) <= 3_750


def test_segments_are_as_wide_as_what_is_reserved_and_gaps_as_what_is_free():
    run = study("run", training(layers=6, scale=4))
    packed = unpack(render_page([run], "run"))
    found, texts = packed["runs"][0]["segments"], packed["texts"]
    assert run.replayed is not None
    segments = run.replayed.segments_at(int(np.searchsorted(run.replayed.requests.event, run.device.peak.event, side="right")))
    pieces = [found["pieces"][number] for number in found["moments"][found["peak"]]]
    reserved, free = (sum(getattr(each, name) for each in segments) for name in ("size", "inactive_bytes"))
    assert f"{len(segments)} segments, {format_bytes(reserved)} reserved" in texts[found["momentTexts"][found["peak"]]]
    drawn = sum(width for _, _, width, _, _ in pieces)
    gaps = sum(width for _, _, width, kind, _ in pieces if kind == "free")
    assert gaps / drawn == pytest.approx(free / reserved, abs=0.01)
    assert sum(kind == "begin" for *_, kind, _ in pieces) == len(segments)
