"""Every row of the public tables is read: it says what is asked of memfit, or why it cannot be."""

from __future__ import annotations

import csv
import sys

import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.published.cases import Case
from benchmarks.published.readers import read_row

FILES = sorted((ROOT / "benchmarks" / "published" / "rows").glob("*.csv"))


def cases_of(name: str) -> list[Case]:
    with (ROOT / "benchmarks" / "published" / "rows" / f"{name}.csv").open(encoding="utf-8", newline="") as handle:
        return [read_row(name, number, row) for number, row in enumerate(csv.DictReader(handle))]


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_every_row_is_asked_or_refused_with_a_reason(name: str):
    cases = cases_of(name)
    assert [case.name for case in cases if not case.why_not and not (case.kind and case.words and case.gpu)] == []
    assert all(Case.from_json(case.to_json()) == case for case in cases)


@pytest.mark.parametrize(
    ("name", "least"),
    [("megatron_goldens", 380), ("modded_nanogpt", 500), ("peft_l40s", 36), ("llm_foundry", 100), ("timm_rtx3090_nhwc", 418)],
)
def test_most_rows_of_a_source_are_asked(name: str, least: int):
    assert sum(not case.why_not for case in cases_of(name)) >= least


def test_runs_that_are_alike_are_predicted_once():
    goldens = [case for case in cases_of("megatron_goldens") if "gpt3_mcore_tp1_pp2 " in case.name and case.gpu == "A100-80GB"]
    assert len(goldens) > 1
    assert len({case.key for case in goldens}) == 1


def test_only_memory_of_a_torch_that_is_recent_is_judged():
    assert Case(name="a", gpu="H100", torch="2.9.0.dev20250811+rocm6.4").is_recent
    assert Case(name="a", gpu="H100", torch="2.13.0+cu130").is_recent
    assert not Case(name="a", gpu="H100", torch="2.8.0+cu128").is_recent
    assert not Case(name="a", gpu="H100", torch="2.0 or older").is_recent


def test_a_row_of_a_file_that_nobody_knows_is_refused():
    assert read_row("mine", 0, {"a": "1"}).why_not == "its columns are not known here"
