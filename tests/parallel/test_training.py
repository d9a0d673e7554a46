"""Two real ranks on gloo under torchrun: every way to split a model trains what the whole model trains."""

import os
import subprocess
import sys

import pytest
import torch
from helpers import HELPERS
from helpers.hanging import HANGS_AFTER
from helpers.parallel_training import HAS_V, TRAINED


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HELPERS.parent), *sys.path])}
    script = HELPERS / "parallel_training.py"
    done = subprocess.run([*command, script, folder], capture_output=True, text=True, timeout=HANGS_AFTER, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
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
