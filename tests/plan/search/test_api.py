"""Searches that are predicted for real, and what they say."""

import io
from pathlib import Path
from typing import Any

import pytest
from helpers.planned_models import TRAIN
from rich.console import Console

import memfit
from memfit.cli import main
from memfit.errors import ConfigError, InfeasibleError
from memfit.job import PredictOptions, Subject
from memfit.plan import Plan
from memfit.plan.search.api import _bounded, usual_predictions
from memfit.plan.search.candidate import Candidate
from memfit.plan.search.space import Space
from memfit.units import GIB
from memfit.views.words.plan import first_answer

SMALL: dict[str, Any] = {
    "model": "gpt2",
    "gpu": "T4",
    "seq": 128,
    "checkpointing": ["none", "full"],
    "compile": "none",
    "microbatches": 1,
}


@pytest.fixture
def train(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(TRAIN)
    return f"{tmp_path}/train.py:build"


def shown(found: memfit.PlanSearch) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(found)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_model_is_planned_and_again_from_the_cache(tmp_path: Path):
    told = []
    found = memfit.plan(**SMALL, global_batch=4, cache=tmp_path, progress=lambda done, most, best: told.append((done, most)))
    assert found.best is not None
    assert found.best.inputs["checkpointing"] == "none", "it fits, and computes nothing again"
    assert found.best_tried is not None
    assert found.best_tried.is_final
    assert [done for done, _ in told] == [*range(1, len(told) + 1)]
    assert all(done <= most for done, most in told)
    assert [point.seconds for point in found.frontier] == sorted((point.seconds for point in found.frontier), reverse=True)
    assert found.plan is not None
    found.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").recipe["model"] == "gpt2"
    words = shown(found)
    assert "Run " in words
    assert "memfit predict --model gpt2 --gpu T4" in words
    assert "a step of all GPUs has 4 sequences" in words
    again = memfit.plan(**SMALL, global_batch=4, cache=tmp_path, refine=True)
    assert all(each.cell.cached for each in again.tried)
    assert again.best.inputs == found.best.inputs
    assert again.to_json()["best"]["step_seconds"] == found.to_json()["best"]["step_seconds"]
    assert "Nothing was decided operator by operator: what it could be decided for fits as it is" in shown(again)


def test_a_model_that_fits_nowhere_says_what_would(tmp_path: Path):
    found = memfit.plan(**SMALL | {"checkpointing": "full"}, budget="1GiB", cache=tmp_path, predictions=1)
    assert found.best is None
    assert found.plan is None
    assert found.infeasible is not None
    assert found.infeasible.closest.smallest_fit > GIB
    words = shown(found)
    assert "Nothing fits in" in words
    assert "The least is" in words
    assert f"{found.infeasible.world_size} GPUs would do" in words or found.infeasible.world_size == 0


def test_a_function_is_planned_to_a_budget(train: str):
    found = memfit.plan(train, gpu="T4", budget="1GiB", torch_version="2.9")
    assert found.plan is not None
    assert found.plan.checkpointing is None, "it fits as it is"
    assert "Run it as it is" in shown(found)
    assert "no operator was timed on T4" in found.plan.assumptions[-1], "a time says what it is from"
    assert "(--report FILE writes them out)" in shown(found), "what the prediction assumed is told, too"
    assert any("kernels and allocator are those of" in each for each in found.to_json()["assumptions"])
    assert repr(found).startswith("PlanSearch(")
    assert "\n" not in repr(found)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"seq": 128}, "takes no argument 'seq'"),
        ({"allow": ("batch",)}, "allow has no effect on a function"),
        ({"global_batch": 8}, "global_batch has no effect on a function"),
    ],
)
def test_nothing_that_is_asked_of_a_function_is_passed_over(train: str, asked: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        memfit.plan(train, gpu="T4", **asked)


def test_a_function_that_cannot_fit_says_the_least(train: str):
    with pytest.raises(InfeasibleError, match="the least that fits needs"):
        memfit.plan(train, gpu="T4", budget="1MiB")


def test_the_page_has_a_picture_and_needs_nothing_else(train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flags = ["plan", train, "--gpu", "T4", "--axis", "width=64,512", "--no-cache", "--executor", "processes:1"]
    assert main([*flags, "--report", str(tmp_path / "plan.html"), "--out", str(tmp_path / "plan.json")]) == 0
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<circle") == 2
    assert "default-src 'none'" in page
    assert " src=" not in page.partition("<main>")[2].partition("</main>")[0]
    assert "width 64" in capsys.readouterr().out
    assert (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "llama9"], "unknown model"),
        (["--model", "gpt2", "--world-size", "0"], "world_size takes a whole number"),
        (["--model", "gpt2", "--tp", "3", "--world-size", "8"], "no way to train gpt2 on 8 GPUs"),
        (["--model", "gpt2", "--executor", "pigeons"], "unknown executor"),
        (["--model", "gpt2", "--budget", "40 parsecs"], "40 parsecs"),
        (["--model", "gpt2", "--budget", "0GiB"], "leaves nothing to the allocator"),
        (["--model", "gpt2", "--budget", "200GiB"], "more than the allocator can get of a H200, 1"),
        (["--model", "gpt2", "--margin", "2"], "margin is the share"),
        (["--model", "gpt2", "--allow", "weather"], "cannot allow 'weather'"),
        (["--model", "gpt2", "--seq", "128,256"], "seq takes one number"),
        (["--model", "gpt2", "--batch", "4", "--global-batch", "8"], "batch and global_batch both say"),
        (["--model", "gpt2", "--interconnect", "string"], "cannot read 'string' as an interconnect"),
        ([], "say what is trained"),
    ],
)
def test_mistakes_are_told_in_a_line(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", *flags]) == 2
    assert said in capsys.readouterr().err


def test_larger_models_get_fewer_predictions():
    counts = [usual_predictions(Subject(model=name), 1000) for name in ("gpt2", "llama3-8b", "llama3-70b", "llama3-405b")]
    assert counts == [40, 40, 18, 11]


def test_a_plan_asks_for_sense():
    with pytest.raises(ConfigError, match="predictions takes a whole number"):
        memfit.plan(model="gpt2", predictions=-1)


def test_the_first_answer_needs_no_prediction():
    """It is told with the plain configurations, and again where a mesh is better; each may fit, and is named in full."""
    space = Space(subject=Subject(model="llama3-70b"), options=PredictOptions(gpu="H100-80GB", world_size=16), global_batch=16)
    told: list[Candidate] = []
    found = _bounded(space, space.options.capacity, told.append)
    best = told[-1]
    may_fit = [each for each in found if each.least_bytes <= space.options.capacity]
    assert best.least_seconds * best.usual_ratio == min(each.least_seconds * each.usual_ratio for each in may_fit)
    said = first_answer(best)
    assert said.startswith("by bounds alone")
    assert f" a step and {best.least_bytes / GIB:.2f} GiB" in said
