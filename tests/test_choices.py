"""A choice is one row: everything else follows from it."""

from __future__ import annotations

import argparse
import re

import pytest
import torch
from helpers.compare_cells import cell

from memfit import choices
from memfit.choices import AXES, Choice, Optimizer, Precision, Split, Strategy
from memfit.cli.flags import add_recipe
from memfit.compare.grid import make_grid
from memfit.compare.recommendation import Recommendation, advise, choose
from memfit.errors import ConfigError
from memfit.job import PredictOptions, Recipe, Subject
from memfit.job.axes import read_axes
from memfit.job.states import least_state_bytes
from memfit.job.training import make_optimizer
from memfit.models import find_model
from memfit.views.words.comparison import closing_words

LION = Optimizer(name="lion", torch_name="RMSprop", options={"momentum": 0.9}, state_copies=4, lighter="sgd")
GATHER_ONCE = Strategy(name="gather_once", cost=0, compared=True, split=Split.WORLD, reshards=False, engine="fsdp1")
FP8 = Precision(name="fp8-mixed", cost=-1, compared=True, weights="float32", weight_bytes=4, computes="float16", scales_loss=True)


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more row in three tables, as somebody would write it."""
    monkeypatch.setitem(choices.OPTIMIZERS, LION.name, LION)
    monkeypatch.setitem(choices.STRATEGIES, GATHER_ONCE.name, GATHER_ONCE)
    monkeypatch.setitem(choices.PRECISIONS, FP8.name, FP8)


def help_text() -> str:
    parser = argparse.ArgumentParser(prog="memfit")
    add_recipe(parser, "how a model is trained")
    return re.sub(r"\s+", " ", parser.format_help())


@pytest.mark.usefixtures("more")
def test_a_new_row_is_in_the_help():
    assert ", lion; adamw by default" in help_text()
    assert ", gather_once; full_shard by default" in help_text()
    assert ", fp8-mixed; bf16-mixed by default" in help_text()


@pytest.mark.usefixtures("more")
def test_a_new_row_is_accepted_and_settled():
    recipe = Recipe(model="gpt2", strategy="gather_once", optimizer="lion", precision="fp8-mixed").settled(8, has_bf16=True)
    assert (recipe.strategy, recipe.engine, recipe.optimizer, recipe.precision) == ("gather_once", "fsdp1", "lion", "fp8-mixed")


@pytest.mark.parametrize("word", [{"optimizer": "lion"}, {"strategy": "gather_once"}, {"precision": "fp8-mixed"}])
def test_without_the_row_the_word_is_refused(word: dict[str, str]):
    with pytest.raises(ConfigError, match=r"is not known: use one of"):
        Recipe(model="gpt2", **word)
    assert next(iter(word.values())) not in help_text()


@pytest.mark.usefixtures("more")
def test_a_new_row_is_compared_if_nobody_says_what():
    def values(axis: str, world_size: int) -> set[str]:
        cells = make_grid(Subject(model="gpt2"), read_axes({"gpu": "H200", "world_size": world_size}), PredictOptions()).cells
        return {cell.inputs[axis] for cell in cells}

    assert values("strategy", 8) == {"full_shard", "shard_grad_op", "no_shard", "gather_once"}
    assert values("precision", 1) == {"bf16-mixed", "bf16", "fp8-mixed"}


@pytest.mark.usefixtures("more")
def test_a_new_row_has_its_cost():
    cells = [cell(50, strategy=name) for name in ("hybrid_shard", "gather_once", "full_shard")]
    assert choose(cells) is cells[1]
    cells = [cell(50, precision=name) for name in ("bf16-mixed", "fp8-mixed")]
    assert choose(cells) is cells[1]
    assert "cheapest to run of the 2 that fit: weights in float32" in " ".join(closing_words(cells, ("precision",), "H100-80GB"))


@pytest.mark.usefixtures("more")
def test_a_new_optimizer_has_its_state_its_class_and_its_advice():
    asked = cell(50, model="gpt2", strategy="", world_size=1, seq=1024, optimizer="lion").configuration
    weights = 4 * find_model("gpt2").num_parameters
    assert least_state_bytes(asked) == weights * (1 + 4) + weights
    made = make_optimizer("lion", torch.nn.Linear(2, 2))
    assert (type(made), made.defaults["momentum"]) == (torch.optim.RMSprop, 0.9)
    found = advise([cell(60, {"peak_phase": "optimizer"}, optimizer="lion")], (), "H100-80GB")
    assert isinstance(found, Recommendation)
    assert found.lighter_optimizer == "sgd"


def test_every_row_can_be_chosen_and_has_a_torch_class():
    for axis, known in AXES.items():
        for name in known.choices or ():
            others = {"schedule": {"pp": 2, "microbatches": 4}, "quantize": {"lora": 8}}.get(axis, {})
            assert getattr(Recipe(model="llama3-8b", **{axis: name}, **others), axis) == name
    for name in choices.OPTIMIZERS:
        assert isinstance(make_optimizer(name, torch.nn.Linear(2, 2)), torch.optim.Optimizer)
    for row in choices.PRECISIONS.values():
        assert torch.empty(1, dtype=getattr(torch, row.weights)).element_size() == row.weight_bytes


def test_rows_stand_under_their_own_names():
    tables: list[dict[str, Choice]] = [dict(axis.choices) for axis in AXES.values() if axis.choices is not None]
    assert [name for table in tables for name, row in table.items() if row.name != name] == []
    for table in (choices.STRATEGIES, choices.PRECISIONS):
        assert len({row.cost for row in table.values()}) == len(table), "two choices of one cost: which is recommended is chance"
