"""Two real ranks on gloo: every way to split a model trains what the whole model trains."""

import pytest
import torch
from helpers import HELPERS
from helpers.parallel_training import HAS_V, TRAINED
from helpers.prepared_process import run_ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(HELPERS / "parallel_training.py", str(folder))
    return [torch.load(folder / f"results-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", list(TRAINED))
def test_the_loss_is_that_of_the_whole_model(ranks, name):
    config, _ = TRAINED[name]
    told = [results["split"][name][0] for results in ranks]
    seen = [losses for losses in told if None not in losses]
    assert seen, "some rank has the last stage"
    for losses in seen:
        assert losses == pytest.approx(ranks[0]["plain"][config.name], rel=1e-3)


def test_training_moves_the_loss(ranks):
    assert all(len(set(losses)) == 3 for losses in ranks[0]["plain"].values()), "else equal losses would prove nothing"


def test_stages_keep_the_names_of_the_whole_model(ranks):
    first, last = (results["split"]["1f1b"][1] for results in ranks)
    roots = [{".".join(name.split(".")[:2]) for name in names} for names in (first, last)]
    assert roots == [{"embedding.weight", "blocks.0", "blocks.1"}, {"blocks.2", "norm.weight", "head.weight"}]


@pytest.mark.skipif(not HAS_V, reason="torch 2.11 cannot run it on gloo")
def test_a_v_gives_the_first_and_the_last_stage_to_one_rank(ranks):
    assert [None in results["split"]["zbv"][0] for results in ranks] == [False, True]
