"""Results draw themselves, and know no view."""

from __future__ import annotations

import io
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from helpers.compare_cells import cell, configuration, figures
from rich.console import Console

from memfit.compare import Comparison
from memfit.drawing import Drawn, drawing_of
from memfit.job import Cell, Subject
from memfit.testing import ledger

RUN = ledger("alloc 4MiB parameter w on cuda:0; step; enter forward; alloc 2MiB x on cuda:0; exit")
COMPARISON = Comparison(
    subjects=(Subject(model="llama3-8b"),),
    cells=(cell(50), cell(30, checkpointing="full"), cell(None, checkpointing="selective")),
    varying=("checkpointing",),
    gpus=("H100-80GB",),
)


def printed(result: object) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(result)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_ledger_on_a_terminal_is_its_report():
    assert "cuda:0  peak 6.00 MiB  in step 0, forward" in printed(RUN)


def test_a_comparison_in_a_notebook_says_what_it_says_on_a_terminal():
    shown = " ".join(ElementTree.fromstring(COMPARISON._repr_html_()).itertext())
    assert str(COMPARISON).splitlines() == [line.rstrip() for line in printed(COMPARISON).splitlines()]
    for words in ("30.00 GiB", "50.00 GiB", "fits, 30.00 GiB left", "Run it with no checkpointing on H100-80GB", "it broke"):
        assert words in shown
        assert words in str(COMPARISON)


def test_names_in_a_notebook_are_only_text():
    asked = configuration(function="a.py:b", gpu="H100-80GB", world_size=1, layers="<script>")
    cells = (Cell(configuration=asked, figures=figures(50)),)
    hostile = Comparison(subjects=(Subject(function="a.py:b"),), cells=cells, varying=("layers",), gpus=("H100-80GB",))
    assert "<script>" not in hostile._repr_html_()


def test_a_subclass_is_drawn_as_what_it_is():
    class MyComparison(Comparison):
        pass

    mine = MyComparison(subjects=COMPARISON.subjects, cells=COMPARISON.cells, varying=COMPARISON.varying, gpus=COMPARISON.gpus)
    assert mine._repr_html_() == COMPARISON._repr_html_()


def test_what_nobody_registered_is_said():
    class Unknown(Drawn):
        pass

    with pytest.raises(LookupError, match="it is not registered how a Unknown is drawn"):
        drawing_of(Unknown())


def test_importing_results_loads_no_view():
    code = "import sys, memfit.ledger, memfit.compare; sys.exit(any(name.startswith('memfit.views') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
