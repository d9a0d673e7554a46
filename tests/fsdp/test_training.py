"""Two real ranks on gloo: every word trains what the unsharded model trains, and state dicts come back."""

import pytest
import torch
from helpers import HELPERS
from helpers.fsdp_training import SAVED, SETTINGS, TRAINED
from helpers.prepared_process import run_ranks

from memfit.analysis import find_peak, trace_phases
from memfit.ledger import Category, Ledger, Phase

SCRIPT = HELPERS / "fsdp_training.py"
PARAMETERS = 16 * 16 + 16 + 3 * (2 * 16 + 16 * 64 + 64 + 64 * 16 + 16) + 2 * 16 + 16 * 4 + 4
F32 = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(SCRIPT, str(folder))
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [torch.load(folder / f"results-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", list(TRAINED))
def test_the_loss_is_that_of_the_unsharded_model(ranks, name):
    for results in ranks:
        assert results["trained"][name] == pytest.approx(results["plain"], rel=1e-5)


def test_a_plan_changes_no_bit_of_the_loss(ranks):
    for results in ranks:
        assert results["trained"]["planned"] == results["trained"]["full_shard"] == results["planned_after"]
        assert results["trained"]["planned_no_shard"] == results["trained"]["no_shard"]


def test_training_moves_the_loss(ranks):
    assert len(set(ranks[0]["plain"])) == 3, "else equal losses would prove nothing"


GATHER, REDUCE = "gather", "reduce_scatter"


@pytest.mark.parametrize(
    ("name", "order"),
    [
        # Three blocks, last first; the model itself stays whole and reduces at the end.
        ("full_shard", [GATHER, GATHER, REDUCE, GATHER, REDUCE, REDUCE, REDUCE]),
        ("prefetch_post", [GATHER, GATHER, REDUCE, GATHER, REDUCE, REDUCE, REDUCE]),
        ("prefetch_none", [GATHER, REDUCE, GATHER, REDUCE, GATHER, REDUCE, REDUCE]),
    ],
)
def test_what_backward_asks_for_and_when(ranks, name, order):
    assert ranks[0]["order", name] == order


CASES = [(name, kind) for name, (_, kinds) in SAVED.items() for kind in kinds]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_state_dict_comes_back(ranks, name, kind):
    for results in ranks:
        found = results["saved"][name, kind]
        assert found["goes_on"] == found["fresh_goes_on"] != results["plain"]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_a_state_dict_holds(ranks, name, kind):
    config = SETTINGS[kind].state_dict_config
    for rank, results in enumerate(ranks):
        found = results["saved"][name, kind]
        empty = getattr(config, "rank0_only", False) and rank == 1
        assert found["optimizer"] is not empty
        assert len(found["model"]) == (0 if empty else 24)
        if not empty:
            shape, is_sharded = found["model"]["layers.1.up.weight"]
            assert shape == (64, 16), "named as in the unsharded model, and of its shape"
            assert is_sharded == (kind.startswith("sharded") and name != "no_shard")


def test_saving_is_a_phase_of_the_ledger(folder):
    ledger = Ledger.load(folder / "save-0.memfit").check()
    saving = [span for span in trace_phases(ledger, 0) if span.phase is Phase.CHECKPOINT]
    assert len(saving) == 1
    made = int(ledger.block_peak_bytes[ledger.categories == Category.CHECKPOINT].sum())
    assert made >= 3 * PARAMETERS * F32, "the model and two moments, whole"
    assert find_peak(ledger, 0).phase is Phase.CHECKPOINT
