"""State dicts in the phantom world: what they hold, what making and loading them costs, and which phase that is."""

import itertools
from functools import cache

import pytest
import torch
import torch.distributed as dist
from helpers.phantom_fsdp import BLOCKS, DIM, F32, PARAMETERS, Model, gpu_bytes, peak_phase, predict

import memfit
from memfit.errors import ConfigError
from memfit.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictSettings,
    StateDictType,
    load_state_dict,
    shard,
    state_dict,
)
from memfit.ledger import Category, Phase
from memfit.testing import ledger

NO_MESH = {"engine": "fsdp1", "engine_options": {"device_mesh": None}}
WORDS = {"fsdp2": {}, "fsdp1": {"engine": "fsdp1"}, "fsdp1_no_mesh": NO_MESH}
SHARD = PARAMETERS * F32 // 8
STILL_THERE = {"fsdp2": 0, "fsdp1": SHARD, "fsdp1_no_mesh": SHARD}
"""Gradients that zero_grad() let go of and FSDP1 did not: it does when a state dict is made, or at the next forward."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:Please use DTensor instead"),
    pytest.mark.filterwarnings("ignore:`_get_pg_default_device` will be deprecated"),
    pytest.mark.filterwarnings("ignore:offload_to_cpu=True and rank0_only=False"),
]
FULL, LOCAL, SHARDED = StateDictType.FULL_STATE_DICT, StateDictType.LOCAL_STATE_DICT, StateDictType.SHARDED_STATE_DICT


def settings_of(kind, offload, rank0=False):
    if kind is FULL:
        return StateDictSettings(kind, FullStateDictConfig(offload, rank0), FullOptimStateDictConfig(offload, rank0))
    if kind is LOCAL:
        return StateDictSettings(kind, LocalStateDictConfig(offload), LocalOptimStateDictConfig(offload))
    return StateDictSettings(kind, ShardedStateDictConfig(offload), ShardedOptimStateDictConfig(offload))


@cache
def run(words, kind, offload, rank0=False, loads=False):
    seen = {}
    return predict(WORDS[words], settings_of(kind, offload, rank0), loads, seen), seen


@pytest.mark.parametrize("words", ["fsdp2", "fsdp1"])
def test_whole_tensors_on_the_gpu(words):
    prediction, seen = run(words, FULL, offload=False)
    whole = 3 * PARAMETERS * F32
    assert seen["held"] - seen["after_step"] + STILL_THERE[words] == pytest.approx(whole, rel=0.01), "the model and two moments"
    assert gpu_bytes(prediction, Category.CHECKPOINT) >= whole
    assert peak_phase(prediction) in (Phase.CHECKPOINT, Phase.PRE_FORWARD)
    assert prediction.steps[2].peak_allocated == prediction.peak_allocated > prediction.steps[1].peak_allocated
    assert seen["state"]["layers.3.up.weight"] == ((4 * DIM, DIM), "cuda")
    assert len(seen["state"]) == 2 + 3 * BLOCKS


@pytest.mark.parametrize("words", ["fsdp2", "fsdp1"])
def test_whole_tensors_on_the_host(words):
    prediction, seen = run(words, FULL, offload=True)
    assert seen["held"] == pytest.approx(seen["after_step"] - STILL_THERE[words], abs=4096)
    assert prediction.steps[2].peak_allocated < run(words, FULL, offload=False)[0].steps[2].peak_allocated // 2
    assert seen["state"]["layers.3.up.weight"] == ((4 * DIM, DIM), "cpu")


@pytest.mark.parametrize("words", ["fsdp2", "fsdp1"])
@pytest.mark.parametrize("offload", [False, True])
def test_rank_0_alone_is_rank_0_as_ever(words, offload):
    alone, together = (run(words, FULL, offload, rank0)[0].steps[2].peak_allocated for rank0 in (True, False))
    assert alone == together


@pytest.mark.parametrize("offload", [False, True])
def test_shards_of_fsdp2_are_there_already(offload):
    prediction, seen = run("fsdp2", SHARDED, offload)
    assert seen["held"] == seen["after_step"]
    assert prediction.steps[2].peak_allocated == seen["after_step"]
    assert seen["state"]["layers.3.up.weight"] == ((4 * DIM, DIM), "cpu" if offload else "cuda")


@pytest.mark.parametrize("words", ["fsdp1", "fsdp1_no_mesh"])
def test_shards_of_fsdp1_are_cut_from_whole_units(words):
    prediction, seen = run(words, SHARDED, offload=False)
    assert seen["held"] - seen["after_step"] + STILL_THERE[words] == pytest.approx(3 * SHARD, rel=0.02)
    assert prediction.steps[2].peak_allocated > seen["held"]


def test_flat_shards_of_fsdp1_cost_nothing():
    _, seen = run("fsdp1_no_mesh", LOCAL, offload=False)
    assert seen["held"] == seen["after_step"] - SHARD
    assert any(name.endswith("_flat_param") for name in seen["state"])


LOADED = [
    *itertools.product(["fsdp2"], [FULL], [False, True], [False, True]),
    *itertools.product(["fsdp2", "fsdp1", "fsdp1_no_mesh"], [SHARDED], [False, True], [False]),
    *itertools.product(["fsdp1"], [FULL], [False, True], [False]),
    *itertools.product(["fsdp1_no_mesh"], [LOCAL], [False, True], [False]),
]


@pytest.mark.parametrize(("words", "kind", "offload", "rank0"), LOADED)
def test_what_was_saved_is_loaded(words, kind, offload, rank0):
    prediction, seen = run(words, kind, offload, rank0, True)
    assert prediction.steps[2].peak_allocated >= seen["held"]


# -- refusals ------------------------------------------------------------------------------------------------------------------


def in_phantom(work, **words):
    """What ``work`` raises on a sharded model."""

    def build():
        dist.init_process_group("nccl")
        with torch.device("cuda"):
            model = shard(Model(), **words)
        with pytest.raises(ConfigError) as caught:
            work(model)
        raised.append(caught)
        return lambda: torch.ones(1, device="cuda")

    raised = []
    memfit.predict(build, gpu="H200", world_size=8, steps=1)
    return str(raised[0].value)


def test_local_needs_fsdp1():
    assert "needs engine='fsdp1'" in in_phantom(lambda model: state_dict(model, settings=StateDictSettings(LOCAL)))


def test_local_needs_fsdp1_without_a_mesh():
    problem = in_phantom(lambda model: state_dict(model, settings=StateDictSettings(LOCAL)), engine="fsdp1")
    assert "shard with engine_options={'device_mesh': None}" in problem


def test_fsdp1_is_not_sent_a_state_dict():
    settings = settings_of(FULL, offload=True, rank0=True)
    assert "every rank" in in_phantom(lambda model: load_state_dict(model, {"model": {}}, settings=settings), engine="fsdp1")


# -- the ledger ----------------------------------------------------------------------------------------------------------------


def test_what_is_born_while_saving_is_a_checkpoint():
    made = ledger(
        "alloc 4MiB parameter w; step; enter checkpoint; alloc 4MiB whole; alloc 1MiB optimizer_state moment; exit; free whole"
    )
    by_category = dict(zip(made.categories.tolist(), made.block_peak_bytes.tolist(), strict=True))
    assert by_category[Category.CHECKPOINT] == 4 * 2**20
    assert by_category[Category.OPTIMIZER_STATE] == 2**20, "roles win"
