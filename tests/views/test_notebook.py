"""Ledgers and predictions that draw themselves in a notebook."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from helpers.arbitrary_ledgers import ledgers
from hypothesis import given, settings

import memfit
from memfit.ledger import Category, Ledger
from memfit.testing import ledger
from memfit.units import format_bytes
from memfit.views.notebook import BOTTOM, COLOURS, HEIGHT, TOP, notebook_html

RUN = """
    alloc 4MiB parameter w on cuda:0
    step; enter forward layer; alloc 2MiB x on cuda:0; exit; enter backward; alloc 6MiB t on cuda:0; free t; free x; exit
    step; enter forward layer; alloc 2MiB y on cuda:0; exit; enter backward; free y; exit
"""


def parsed(html: str) -> ElementTree.Element:
    """What a browser would make of it; not well-formed is not drawn well."""
    return ElementTree.fromstring(html)


def shapes(html: str) -> dict[str, list[tuple[float, float]]]:
    found = {}
    for polygon in parsed(html).iter("polygon"):
        points = [tuple(map(float, point.split(","))) for point in polygon.attrib["points"].split()]
        found[polygon[0].text] = points
    return found


def words(html: str) -> str:
    return " ".join(parsed(html).itertext())


def test_the_peak_is_said_and_drawn():
    html = ledger(RUN)._repr_html_()
    assert "peak 12.00 MiB on cuda:0, in step 0, backward" in words(html)
    circle = next(parsed(html).iter("circle"))
    assert float(circle.attrib["cy"]) == TOP
    labels = [text.text for text in parsed(html).iter("text")]
    assert labels == ["0 B", "6.00 MiB", "12.00 MiB", "step 0", "step 1"]


def test_areas_are_stacked_to_scale():
    found, height = shapes(ledger(RUN)._repr_html_()), HEIGHT - TOP - BOTTOM
    top = {name: HEIGHT - BOTTOM - min(y for _, y in points) for name, points in found.items()}
    assert list(found) == ["parameter", "activation", "backward temporary"]
    assert top == pytest.approx({"parameter": height / 3, "activation": height / 2, "backward temporary": height}, abs=0.1)


def test_the_table_is_the_peak_by_category():
    rows = [list(row.itertext()) for row in parsed(ledger(RUN)._repr_html_()).iter("tr")]
    assert rows == [
        ["backward temporary", "6.00 MiB", "50.0%"],
        ["parameter", "4.00 MiB", "33.3%"],
        ["activation", "2.00 MiB", "16.7%"],
    ]


def test_names_are_shown_as_text():
    html = ledger("step; enter forward <script>alert(1)</script>; alloc 1MiB x on cuda:0")._repr_html_()
    assert "<script" not in html
    assert "forward of <script>alert(1)</script>" in words(html)
    run = ledger("alloc 1MiB w on cuda:0")
    run = replace(run, info=replace(run.info, problem="<b>&\x1b[2J", versions={"<i>": '"><svg onload=x>'}))
    assert "<b>" not in run._repr_html_()
    assert "incomplete: <b>&\\x1b[2J" in words(run._repr_html_())


def test_nothing_is_fetched_or_executed():
    html = ledger(RUN)._repr_html_()
    assert not re.search(r"<script|<link|<img|href=|src=|url\(|@import|https?:|\son\w+=", html)


def test_text_has_the_notebooks_own_colour():
    html = ledger(RUN)._repr_html_()
    assert 'fill="currentColor"' in html
    assert "background:#" not in re.sub(r"<span[^>]*>", "", html)


def test_the_colours_are_those_of_the_report_page():
    css = (ROOT / "web" / "src" / "page.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--c-(\w+): (#\w+);", css.partition("prefers-color-scheme: dark")[0]))
    assert {category.name.lower(): colour for category, colour in COLOURS.items()} == light
    assert set(COLOURS) == set(Category)


@pytest.mark.parametrize("script", ["", "alloc 0B w", "alloc 1B w; free w", "step; step; step"])
def test_runs_with_next_to_nothing(script: str):
    assert re.search(r"peak|nothing was recorded", words(ledger(script)._repr_html_()))


def test_a_large_run_stays_small():
    steps = "; ".join(f"step; alloc 1MiB a{i} on cuda:0; alloc 1MiB parameter b{i} on cuda:0; free a{i}" for i in range(2000))
    html = ledger(steps)._repr_html_()
    assert len(html) < 100_000
    assert len(re.findall(r">step \d", html)) <= 12


@given(run=ledgers)
@settings(max_examples=50)
def test_every_ledger_can_be_drawn(run: Ledger):
    shown, peak = words(notebook_html(run)), run.device_peak_bytes[run.main_device] if run.main_device is not None else 0
    assert f"peak {format_bytes(peak)} on" in shown if run.devices else "nothing was recorded" in shown


def test_a_prediction_says_whether_it_fits():
    def build():
        model = torch.nn.Linear(64, 64).cuda()
        return lambda: model(torch.ones(8, 64, device="cuda")).sum().backward()

    html = memfit.predict(build, gpu="T4", steps=1)._repr_html_()
    assert "It fits on T4" in words(html)
    assert "A step takes" in words(html)
    assert "predicted, 1 step" in words(html)


def test_no_torch_is_needed(tmp_path: Path):
    ledger(RUN).save(tmp_path / "run.memfit")
    code = "import sys; sys.modules['torch'] = None; import memfit; print(memfit.Ledger.load(sys.argv[1])._repr_html_()[:4])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run.memfit")], capture_output=True, text=True)
    assert done.stdout == "<div\n", done.stderr
