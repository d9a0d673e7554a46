"""What a search may choose from trains the same, unless the user allows more."""

from dataclasses import replace
from typing import Any

import pytest

from memfit.errors import ConfigError
from memfit.job import PredictOptions, Subject
from memfit.plan.search.api import larger_batches
from memfit.plan.search.candidate import Candidate
from memfit.plan.search.space import LARGER_FACTORS, Space, sequences_of


def space(model: str = "llama3-8b", **options: Any) -> Space:
    on_what = PredictOptions(gpu=options.pop("gpu", "H100-80GB"), world_size=options.pop("world_size", 16))
    return Space(subject=Subject(model=model), options=on_what, **{"seq": 1024} | options)


def test_all_candidates_train_the_same():
    found = list(space(global_batch=32).candidates())
    assert len(found) > 100
    assert {sequences_of(asked) for asked in found} == {32}
    for axis in ("precision", "optimizer", "float8", "seq", "model", "offload"):
        assert len({asked.inputs[axis] for asked in found}) == 1, axis
    for axis in ("strategy", "tp", "pp", "cp", "schedule", "microbatches", "checkpointing", "compile"):
        assert len({asked.inputs[axis] for asked in found}) > 1, axis
    assert len({str(asked.inputs) for asked in found}) == len(found)


@pytest.mark.parametrize(("allowed", "axis"), [("precision", "precision"), ("optimizer", "optimizer"), ("batch", "batch")])
def test_what_changes_the_training_varies_where_it_is_allowed(allowed: str, axis: str):
    fixed = {"tp": 1, "pp": 1, "cp": 1, "strategy": "full_shard", "checkpointing": "none", "compile": "none"}
    assert len({asked.inputs[axis] for asked in space(given=fixed, allowed=(allowed,)).candidates()}) > 1


def test_larger_batches_are_looked_at_until_none_fits():
    fixed = {"checkpointing": "none", "compile": "none"}
    asked = space("gpt2", gpu="T4", world_size=1, global_batch=4, seq=256, given=fixed, allowed=("batch",))
    room = asked.options.capacity
    found = larger_batches(asked, room)
    batches = [each.asked.recipe.batch for each in found]
    assert batches[:3] == [12, 24, 32]
    assert {each.asked.recipe.microbatches for each in found} == {0}, "smaller parts are those of smaller batches"
    assert found[-1].least_bytes <= room
    following = LARGER_FACTORS[len(found)]
    assert all(Candidate.of(each).least_bytes > room for each in asked.candidates(factor=following))
    assert larger_batches(replace(asked, allowed=()), room) == []


def test_what_is_given_is_fixed():
    found = list(space(given={"tp": 2, "strategy": ["full_shard", "shard_grad_op"], "checkpointing": "full"}).candidates())
    assert {asked.inputs["tp"] for asked in found} == {2}
    assert {asked.inputs["strategy"] for asked in found} == {"full_shard", "shard_grad_op"}
    assert {asked.inputs["checkpointing"] for asked in found} == {"full"}


def test_experts_are_spread_where_there_are_some():
    assert {asked.inputs["ep"] for asked in space("qwen3-30b-a3b", given={"pp": 1, "cp": 1}).candidates()} > {1, 2, 4, 8}
    assert {asked.inputs["ep"] for asked in space(given={"pp": 1, "cp": 1}).candidates()} == {1}


def test_without_a_global_batch_each_gpu_has_a_sequence_and_that_is_said():
    assert {sequences_of(asked) for asked in space(given={"pp": 1}).candidates()} == {16}
    assert "one for each GPU" in space().assumptions[0]


def test_a_given_batch_is_no_assumption():
    assert space(given={"batch": 4}, seq=512).assumptions == ("a sequence has 512 tokens",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "llama9-1b"}, "unknown model"),
        ({"gpu": "H1000"}, "H1000"),
        ({"world_size": 0}, "world_size takes a whole number of at least 1"),
        ({"global_batch": 7, "given": {"tp": 1, "pp": 1, "cp": 1}}, "7 sequences in a step cannot be shared out"),
        ({"given": {"tp": 3}}, "no way to train llama3-8b on 16 GPUs"),
        ({"given": {"colour": "red"}}, "a plan has no axis 'colour'"),
        ({"allowed": ("weather",)}, "cannot allow 'weather'"),
        ({"given": {"batch": 4}, "allowed": ("batch",)}, "batch is fixed.* or give the batch to start from as --global-batch"),
        ({"given": {"precision": "fp32"}, "allowed": ("precision",)}, "precision is fixed, so allowing it to vary has no effect"),
        ({"seq": 10**6}, "sequences of up to 8192"),
        ({"global_batch": 10**18}, "more than 100,000,000,000 tokens"),
        ({"given": {"batch": 10**18}}, "more than 100,000,000,000 tokens"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        list(space(**options).candidates())
