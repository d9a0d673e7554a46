"""How many GPUs share what: read forgivingly, and refused with a way out where it cannot be."""

from contextlib import nullcontext

import pytest

from memfit.cli.flags import read_values
from memfit.compare.grid import make_grid
from memfit.errors import ConfigError
from memfit.job import PredictOptions, Recipe, Subject
from memfit.job.axes import read_axes


def settled(world_size: int, **options):
    return Recipe(**{"model": "llama3-8b"} | options).settled(world_size, has_bf16=True)


@pytest.mark.parametrize(
    ("model", "precision", "has_bf16", "is_refused"),
    [
        ("llama3-8b", "", False, True),
        ("llama3-8b", "fp32", True, True),
        ("llama3-8b", "fp16-mixed", True, False),
        ("llama3-8b", "", True, False),
        ("llama2-7b", "", False, False),
        ("llama2-7b", "fp32", True, False),
    ],
)
def test_context_parallelism_needs_fused_attention(model: str, precision: str, has_bf16: bool, is_refused: bool):
    """Of heads that share keys and values, memory-efficient attention does not take any."""
    with pytest.raises(ConfigError, match="needs fused attention") if is_refused else nullcontext():
        Recipe(model=model, cp=2, precision=precision).settled(4, has_bf16=has_bf16)


def test_a_mesh_says_the_same_as_flags():
    by_mesh = settled(64, mesh="dp=2,tp=8,pp=4", batch=8)
    assert by_mesh == settled(64, tp=8, pp=4, batch=8)
    assert (by_mesh.schedule, by_mesh.microbatches, by_mesh.strategy) == ("1f1b", 8, "shard_grad_op")


def test_microbatches_are_one_sequence_each_unless_told():
    assert (settled(8, pp=4).microbatches, settled(8, pp=4).batch) == (4, 4)
    assert settled(8, pp=4, microbatches=16).batch == 16
    assert settled(8, pp=4, batch=32).microbatches == 32
    assert settled(8, pp=4, schedule="interleaved-1f1b").microbatches == 8


@pytest.mark.parametrize(
    ("world_size", "options", "problem"),
    [
        (64, {"mesh": "dp=4,tp=8,pp=4"}, r"has 128 GPUs, but the world has 64: say --world-size 128"),
        (12, {"tp": 8}, "takes a multiple of 8 GPUs, but the world has 12"),
        (16, {"mesh": "tp=8", "tp": 4}, "say two things"),
        (16, {"mesh": "tp=8,tp=4"}, "cannot read 'tp=8,tp=4' as a mesh"),
        (16, {"tp": 16}, "has 8 heads of keys and values, which tp=16 does not divide"),
        (8, {"tp": 0}, "tp takes a whole number of at least 1, not 0"),
        (32, {"pp": 32}, "has 32 layers, too few for 32 stages"),
        (8, {"pp": 2, "batch": 3, "microbatches": 2}, "cannot be cut into 2 microbatches"),
        (8, {"schedule": "gpipe"}, "a schedule is a pipeline's"),
        (8, {"pp": 2, "precision": "fp16-mixed"}, "use bf16-mixed"),
        (8, {"pp": 2, "compile": "model"}, "say --compile blocks"),
        (8, {"pp": 2, "schedule": "zbv-zero-bubble", "microbatches": 4}, "zbv-zero-bubble loses gradients"),
        (8, {"tp": 2, "engine": "fsdp1"}, "leave --engine out"),
        (8, {"tp": 2, "strategy": "no_shard"}, "leave --strategy out"),
        (8, {"cp": 2, "offload": "params"}, "offloading goes together with data parallelism alone"),
        (8, {"cp": 2, "seq": 1002}, "cuts a sequence into 4 equal parts"),
        (8, {"ep": 2}, "llama3-8b has no experts: leave out ep"),
        (8, {"model": "qwen3-30b-a3b", "ep": 3}, "has 128 experts, which ep=3 does not divide"),
        (8, {"model": "qwen3-30b-a3b", "ep": 16}, "ep=16 must divide the 8 GPUs"),
        (16, {"model": "qwen3-30b-a3b", "ep": 2, "tp": 4}, "ep=2 is no multiple of tp=4"),
        (8, {"model": "deepseek-v3", "cp": 2}, "values of another size than its keys"),
        (8, {"model": "llama3.2-1b", "pp": 2}, "is its embedding"),
        (8, {"model": "gpt2", "tp": 2}, "is its embedding"),
        (8, {"mesh": (3, 2), "tp": 2}, "must share out the 4 GPUs"),
    ],
)
def test_what_cannot_be_is_refused(world_size: int, options, problem: str):
    with pytest.raises(ConfigError, match=problem):
        settled(world_size, **options)


def test_zero_bubbles_are_for_stages_that_nobody_shares():
    assert settled(2, pp=2, schedule="zbv-zero-bubble", microbatches=4, precision="bf16").num_stages == 4


def test_replicas_are_an_axis_of_the_mesh():
    assert settled(16, mesh="replicate=2,dp=4,tp=2", strategy="hybrid_shard").mesh == (2, 4)


def test_a_name_that_comes_again_begins_the_next_mesh():
    assert read_values("mesh", "dp=8,tp=8,dp=64") == ["dp=8,tp=8", "dp=64"]
    assert read_values("mesh", "8x8,4x16") == ["8x8", "4x16"]


def test_degrees_are_axes_of_a_comparison():
    axes = read_axes({"gpu": "H200", "world_size": 64, "tp": [1, 8], "mesh": ["dp=8,pp=8"], "checkpointing": "full"})
    grid = make_grid(Subject(model="llama3-70b"), axes | {"mesh": ("pp=8",)}, PredictOptions())
    assert [(cell.recipe.tp, cell.recipe.pp) for cell in grid.cells] == [(1, 8), (8, 8)]
    assert grid.varying == ("tp",)
