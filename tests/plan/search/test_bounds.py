"""What no configuration can beat must never be above what is predicted: the search leaves out by it."""

from dataclasses import replace
from typing import Any

import pytest
from helpers.planned_models import asked_of, few_layers
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.choices import SCHEDULES, layers_of_stages
from memfit.job.states import state_bytes
from memfit.models.config import MODELS
from memfit.parallel.stages import blocks_of_stages
from memfit.plan.search.bounds.least_memory import least_bytes, passes_under_way
from memfit.plan.search.bounds.least_time import WITH_BUBBLE, least_seconds, pipeline_least_seconds
from memfit.predict.api import predict_build
from memfit.predict.ranks import JobPrediction
from memfit.predict.step_time import job_step_seconds, pipeline_orders
from memfit.timing.pipelines import StageTime, pipeline_seconds

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one GPU": ("llama3-8b", {"world_size": 1}),
    "full_shard": ("llama3-8b", {"checkpointing": "full"}),
    "in parts": ("llama3-8b", {"strategy": "shard_grad_op", "checkpointing": "selective", "batch": 2, "microbatches": 2}),
    "several nodes": ("llama3-8b", {"world_size": 64, "strategy": "hybrid_shard"}),
    "compiled": ("llama3-8b", {"compile": "blocks"}),
    "compiled, selective": ("llama3-8b", {"compile": "blocks", "checkpointing": "selective"}),
    "compiled as a whole": ("llama3-8b", {"compile": "model", "checkpointing": "selective"}),
    "compiled, another model": ("qwen3-8b", {"compile": "blocks", "world_size": 1, "precision": "bf16"}),
    "tp": ("llama3-8b", {"tp": 4, "checkpointing": "full"}),
    "cp": ("llama3-8b", {"cp": 2, "batch": 2}),
    "offloaded": ("llama3-8b", {"offload": "params"}),
    "no_shard": ("qwen3-0.6b", {"strategy": "no_shard"}),
    "gpt2": ("gpt2", {"world_size": 1, "precision": "bf16"}),
    "experts": ("qwen3-30b-a3b", {"ep": 4}),
    "experts, of GPUs of their own": ("qwen3-30b-a3b", {"ep": 8, "world_size": 64, "seq": 4096, "compile": "blocks"}),
    "experts, whole ones beside tp": (
        "qwen3-30b-a3b",
        {"tp": 2, "batch": 2, "world_size": 64, "seq": 4096, "compile": "blocks", "strategy": "shard_grad_op"},
    ),
    "experts, sharded as a layer": ("qwen3-30b-a3b", {"world_size": 64, "seq": 4096, "compile": "blocks", "checkpointing": "full"}),
    "experts, selective": ("qwen3-30b-a3b", {"ep": 8, "world_size": 64, "seq": 4096, "checkpointing": "selective"}),
    "experts, selective and whole": (
        "qwen3-30b-a3b",
        {"world_size": 64, "seq": 4096, "checkpointing": "selective", "strategy": "shard_grad_op"},
    ),
    "experts in a pipeline": (
        "qwen3-30b-a3b",
        {"pp": 2, "ep": 8, "world_size": 64, "batch": 4, "microbatches": 4, "schedule": "interleaved-1f1b", "compile": "blocks"},
    ),
    "experts in a pipeline, beside tp": (
        "qwen3-30b-a3b",
        {"pp": 2, "tp": 2, "world_size": 64, "strategy": "hybrid_shard", "batch": 4, "microbatches": 2, "schedule": "1f1b"},
    ),
    "dense layers before experts": ("deepseek-v2-lite", {"ep": 8, "world_size": 64, "seq": 4096, "compile": "blocks"}),
    "latent": ("deepseek-v2-lite", {"optimizer": "sgd"}),
    "pipeline": ("llama3-8b", {"pp": 2, "microbatches": 6, "batch": 6}),
    "interleaved": ("llama3-8b", {"pp": 2, "microbatches": 4, "batch": 4, "schedule": "interleaved-1f1b", "tp": 2}),
    "large": ("llama3-70b", {"world_size": 64, "seq": 4096, "checkpointing": "full"}),
    "a ring, in parts": ("llama3-70b", {"cp": 4, "world_size": 64, "seq": 8192, "batch": 2, "microbatches": 2}),
    "a ring, selective": ("llama3-70b", {"cp": 2, "world_size": 64, "seq": 4096, "checkpointing": "selective"}),
    "a ring, compiled": ("llama3-70b", {"cp": 2, "world_size": 64, "seq": 4096, "compile": "blocks", "checkpointing": "full"}),
    "tp, two sequences": ("llama3-70b", {"tp": 2, "world_size": 64, "seq": 4096, "batch": 2, "checkpointing": "full"}),
    "an older GPU": ("qwen3-8b", {"gpu": "A100-40GB", "checkpointing": "selective"}),
    "experts, whole": ("mixtral-8x7b", {"world_size": 64, "checkpointing": "full"}),
    "experts, hybrid": ("qwen3-30b-a3b", {"world_size": 64, "strategy": "hybrid_shard", "ep": 2, "tp": 2, "batch": 2}),
    "LoRA": ("llama3-8b", {"lora": 16, "world_size": 1}),
    "LoRA, sharded": ("llama3-8b", {"lora": 16, "checkpointing": "full", "seq": 2048}),
    "QLoRA": (
        "llama3-8b",
        {"lora": 16, "quantize": "nf4", "lora_modules": "all-linear", "world_size": 1, "checkpointing": "selective"},
    ),
    "8-bit states": ("llama3-8b", {"optimizer": "adamw8bit", "precision": "bf16"}),
    "pipeline of rings": ("llama3-8b", {"pp": 2, "cp": 2, "microbatches": 4, "batch": 4, "seq": 4096, "strategy": "shard_grad_op"}),
}

CLOSE = {
    *("experts, of GPUs of their own", "experts, whole ones beside tp", "experts, sharded as a layer"),
    *("large", "a ring, in parts", "a ring, selective", "a ring, compiled", "tp, two sequences", "pipeline of rings"),
}
"""What computes for long enough that the bound of its time has to be near: that is what a search is quick by."""


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("case", CASES)
def test_no_prediction_is_below_its_bounds(case: str):
    model, chosen = CASES[case]
    with few_layers(model, 6 if "pp" in chosen else 2) as name:
        asked = asked_of(name, **chosen, steps=2)
        recipe = asked.recipe
        found = predict_build(asked.builder(), replace(asked.options, ranks="all" if recipe.pp > 1 else None))
        bounds = least_seconds(asked), least_bytes(asked)
    if isinstance(found, JobPrediction):
        seconds = job_step_seconds(found, recipe.schedule, recipe.pp, recipe.microbatches)
        needed = max(kind.prediction.peak_allocated for kind in found.kinds)
    else:
        seconds, needed = found.step_seconds, found.peak_allocated
    assert bounds[0] <= seconds
    assert bounds[1] <= needed
    if case != "offloaded":  # whose optimizer steps on the host
        assert bounds[0] > 0.1 * seconds, "a bound that says nothing leaves nothing out"
        assert bounds[1] > 0.1 * needed
    if case in CLOSE:
        assert bounds[0] > 0.75 * seconds


STAGES = st.tuples(st.floats(0.1, 10), st.floats(0.1, 10))


@given(
    name=st.sampled_from(["1f1b", "gpipe"]),
    stages=st.lists(STAGES, min_size=1, max_size=5),
    num_microbatches=st.integers(1, 9),
)
def test_a_pipeline_takes_at_least_its_slowest_rank_and_filling(name: str, stages: list[Any], num_microbatches: int):
    times = {stage: StageTime(forward=forward, backward=backward) for stage, (forward, backward) in enumerate(stages)}
    pp, sums = len(stages), [sum(stage) for stage in stages]
    found = pipeline_seconds(pipeline_orders(SCHEDULES[name], pp, num_microbatches), times)
    assert found >= (1 - 1e-9) * num_microbatches * max(sums)
    fastest = StageTime(forward=min(forward for forward, _ in stages), backward=min(backward for _, backward in stages))
    rounds = num_microbatches + pp - 1
    assert found >= (1 - 1e-9) * rounds * (fastest.forward + fastest.backward)
    assert found >= (1 - 1e-9) * pipeline_least_seconds(sums, num_microbatches, 1, has_bubble=True)
    assert found <= (1 + 1e-9) * (num_microbatches + pp) * sum(sums), "and it ends"


@settings(max_examples=40)
@given(
    name=st.sampled_from(["1f1b", "gpipe", "interleaved-1f1b", "looped-bfs", "dualpipe-v", "interleaved-zero-bubble"]),
    ranks=st.lists(STAGES, min_size=2, max_size=4),
    rounds=st.integers(2, 4),
)
def test_a_pipeline_takes_at_least_what_its_ranks_need(name: str, ranks: list[Any], rounds: int):
    """Whatever the schedule, as long as all stages of a rank take as long: so they are predicted."""
    row, pp = SCHEDULES[name], len(ranks)
    times = {
        stage: StageTime(forward=forward / row.stages_a_rank, backward=backward / row.stages_a_rank)
        for rank, (forward, backward) in enumerate(ranks)
        for stage in row.stages_of(rank, pp)
    }
    found = pipeline_seconds(pipeline_orders(row, pp, rounds * pp), times)
    bound = pipeline_least_seconds([*map(sum, ranks)], rounds * pp, row.stages_a_rank, has_bubble=name in WITH_BUBBLE)
    assert bound <= (1 + 1e-9) * found


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (4, 8), (4, 16), (8, 16)])
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved-1f1b", "looped-bfs"])
def test_equal_stages_wait_as_long_as_the_closed_form_says(name: str, pp: int, microbatches: int):
    row = SCHEDULES[name]
    stages = {stage: StageTime(forward=1.0, backward=2.0) for stage in range(pp * row.stages_a_rank)}
    found = pipeline_seconds(pipeline_orders(row, pp, microbatches), stages)
    assert found == pytest.approx(3 * row.stages_a_rank * (microbatches + (pp - 1) / row.stages_a_rank))


@pytest.mark.parametrize("name", ["zbv-zero-bubble", "dualpipe-v", "interleaved-zero-bubble"])
def test_schedules_that_split_backward_wait_less(name: str):
    row = SCHEDULES[name]
    stages = {stage: StageTime(forward=1.0, backward=2.0) for stage in range(4 * row.stages_a_rank)}
    found = pipeline_seconds(pipeline_orders(row, 4, 16), stages)
    assert 3 * 2 * 16 <= found < 3 * 2 * 16 + 3 * 3


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 2), (2, 8), (4, 4), (4, 16), (8, 16), (8, 4)])
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved-1f1b"])
def test_passes_under_way_are_those_of_the_schedule(name: str, pp: int, microbatches: int):
    live = most = 0
    for task in pipeline_orders(SCHEDULES[name], pp, microbatches)[0]:
        live += 1 if task.work == "F" else -1
        most = max(most, live)
    assert passes_under_way(SCHEDULES[name], pp, microbatches) == most


@given(layers=st.integers(4, 130), stages=st.integers(1, 32))
def test_layers_are_shared_out_as_they_are_split(layers: int, stages: int):
    if layers + 2 < 2 * stages:
        return
    assert layers_of_stages(layers, stages) == [len(blocks) for blocks in blocks_of_stages(layers, stages)]


@settings(max_examples=60)
@given(
    model=st.sampled_from(sorted(MODELS)),
    strategy=st.sampled_from(["full_shard", "shard_grad_op", "hybrid_shard", "no_shard"]),
    checkpointing=st.sampled_from(["none", "selective", "full"]),
    compiled=st.sampled_from(["none", "blocks"]),
    world_size=st.sampled_from([8, 16, 64]),
)
def test_bounds_order_as_they_must(model: str, strategy: str, checkpointing: str, compiled: str, world_size: int):
    chosen = {"strategy": strategy, "checkpointing": checkpointing, "compile": compiled, "world_size": world_size}
    once = asked_of(model, **chosen)
    twice = asked_of(model, **chosen | {"batch": 2})
    assert 0 < least_seconds(once) <= least_seconds(twice)
    assert 0 < state_bytes(once) < least_bytes(once) <= least_bytes(twice)
