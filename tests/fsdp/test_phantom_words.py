"""What each word costs, in the phantom world: FSDP1 above all, which has no CPU to run on. Bytes by hand."""

from functools import cache

import pytest
import torch
from helpers.phantom_fsdp import BF16, BLOCK, BLOCKS, DIM, F32, PARAMETERS, gpu_bytes, predict

from memfit.fsdp import CPUOffload, MixedPrecision, ShardingStrategy
from memfit.ledger import Category

LOW = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
WORDS = {
    **{f"{engine} {each.text}": {"engine": engine, "strategy": each} for engine in ("fsdp2", "fsdp1") for each in ShardingStrategy},
    "fsdp1 post": {"engine": "fsdp1", "backward_prefetch": "backward_post"},
    "fsdp1 none": {"engine": "fsdp1", "backward_prefetch": None},
    "fsdp2 post": {"backward_prefetch": "backward_post"},
    "fsdp2 none": {"backward_prefetch": None},
    "fsdp1 checkpointed": {"engine": "fsdp1", "checkpointing": "full"},
    "fsdp1 selective": {"engine": "fsdp1", "checkpointing": "selective"},
    "fsdp1 offloaded": {"engine": "fsdp1", "cpu_offload": CPUOffload(offload_params=True)},
    "fsdp2 offloaded": {"cpu_offload": CPUOffload(offload_params=True)},
    "fsdp1 low": {"engine": "fsdp1", "mixed_precision": MixedPrecision(torch.bfloat16, torch.bfloat16)},
    "fsdp1 keep": {
        "engine": "fsdp1",
        "mixed_precision": MixedPrecision(torch.bfloat16, torch.bfloat16, keep_low_precision_grads=True),
    },
    "fsdp1 buffers": {"engine": "fsdp1", "mixed_precision": MixedPrecision(torch.bfloat16, buffer_dtype=torch.bfloat16)},
}


@cache
def run(name):
    words = dict(WORDS[name])
    if words.get("strategy", ShardingStrategy.FULL_SHARD).is_hybrid:
        words["mesh"] = (2, 4)
    seen = {}
    # Optimizers that take lists of tensors refuse gradients of another type than their parameters.
    return predict({"mixed_precision": LOW, **words}, seen=seen, sgd=name in ("fsdp1 low", "fsdp1 keep")), seen


def peak(name):
    return run(name)[0].steps[1].peak_allocated


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
@pytest.mark.parametrize(
    ("strategy", "ranks"), [("full_shard", 8), ("shard_grad_op", 8), ("hybrid_shard", 4), ("hybrid_shard_zero2", 4)]
)
def test_what_is_split_over_how_many(engine, strategy, ranks):
    prediction, _ = run(f"{engine} {strategy}")
    assert gpu_bytes(prediction, Category.SHARDED_PARAMETER) == PARAMETERS * F32 // ranks
    steps = 4096  # a counter for each parameter, on the host or on the GPU
    assert gpu_bytes(prediction, Category.OPTIMIZER_STATE) == pytest.approx(2 * PARAMETERS * F32 // ranks, abs=steps)


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
@pytest.mark.filterwarnings("ignore:The `NO_SHARD` sharding strategy is deprecated")
def test_keeping_parameters_whole_costs_them(engine):
    for split, kept in (("full_shard", "shard_grad_op"), ("hybrid_shard", "hybrid_shard_zero2")):
        assert peak(f"{engine} {kept}") - peak(f"{engine} {split}") > BLOCK * BF16 // 2
    assert peak(f"{engine} no_shard") > peak(f"{engine} hybrid_shard") > peak(f"{engine} full_shard")


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_prefetching_later_costs_less(engine):
    pre, post, none = peak(f"{engine} full_shard"), peak(f"{engine} post"), peak(f"{engine} none")
    assert pre >= post >= none
    assert pre > none
    assert engine == "fsdp1" or pre > post


def test_gradients_kept_in_low_precision():
    levels = {name: run(f"fsdp1 {name}")[1]["after_backward"] for name in ("low", "keep")}
    assert levels["low"] - levels["keep"] == PARAMETERS // 8 * (F32 - BF16)


def test_buffers_cast_for_good():
    buffers = gpu_bytes(run("fsdp1 buffers")[0], Category.BUFFER)
    assert gpu_bytes(run("fsdp1 low")[0], Category.BUFFER) == BLOCKS * DIM * F32
    assert buffers >= BLOCKS * DIM * BF16


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_offloading_leaves_nothing_on_the_gpu(engine):
    prediction, seen = run(f"{engine} offloaded")
    assert gpu_bytes(prediction, Category.OPTIMIZER_STATE) == 0
    assert peak(f"{engine} offloaded") < peak(f"{engine} full_shard")
    assert seen["after_step"] < run(f"{engine} full_shard")[1]["after_step"] - 2 * PARAMETERS * F32 // 8


def test_checkpointing_on_fsdp1():
    assert peak("fsdp1 checkpointed") < peak("fsdp1 full_shard")
    assert peak("fsdp1 checkpointed") < peak("fsdp1 selective"), "it keeps what matrix products made"
