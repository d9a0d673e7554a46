"""Two real ranks on gloo: each has its own ledger, computes what it computes untracked, and talks no more."""

from functools import cache

import pytest
import torch
from helpers import HELPERS
from helpers.prepared_process import run_ranks
from helpers.two_ranks import KINDS

from memfit.analysis import current_breakdown, find_peak
from memfit.ledger import Category, Ledger, Phase

SCRIPT = HELPERS / "two_ranks.py"
PARAMETERS = 2 * (2 * 16 + 16 * 64 + 64 + 64 * 16 + 16) + 2 * 16 + 16 * 4 + 4
F32 = 4


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both ranks saw in each way of training, and their ledgers."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(SCRIPT, str(folder))

    @cache
    def of(kind):
        outcomes = [torch.load(folder / f"{kind}-{rank}.pt", weights_only=False) for rank in range(2)]
        return outcomes, [Ledger.load(folder / f"{kind}-{rank}.memfit").check() for rank in range(2)]

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_the_run_is_what_it_is_without_us(results, kind):
    outcomes, _ = results(kind)
    for outcome in outcomes:
        assert outcome["bare"]["losses"] == outcome["tracked"]["losses"]
        assert outcome["bare"]["collectives"] == outcome["tracked"]["collectives"] != {}
        pairs = zip(outcome["bare"]["gradients"], outcome["tracked"]["gradients"], strict=True)
        assert all(torch.equal(bare, tracked) for bare, tracked in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_has_a_ledger_of_its_own(results, kind):
    _, ledgers = results(kind)
    for rank, ledger in enumerate(ledgers):
        assert ledger.info.complete
        assert (ledger.info.rank, ledger.info.world_size) == (rank, 2)
        assert len(ledger.step_starts) == 3
        assert [device.name for device in ledger.devices] == ["cpu"]


def roles_bytes(ledger, category):
    return int(ledger.block_peak_bytes[ledger.categories == category].sum())


@pytest.mark.parametrize("kind", ["fsdp2", "fsdp2_mixed", "fsdp2_keep", "fsdp2_offload"])
def test_fsdp2_categories(results, kind):
    _, (ledger, _) = results(kind)
    gathered = 8 if kind == "fsdp2_mixed" else F32
    assert roles_bytes(ledger, Category.SHARDED_PARAMETER) == PARAMETERS * F32 // 2
    assert roles_bytes(ledger, Category.UNSHARDED_PARAMETER) == PARAMETERS * gathered
    assert roles_bytes(ledger, Category.OPTIMIZER_STATE) == PARAMETERS * F32 + 16 * F32
    assert roles_bytes(ledger, Category.PARAMETER) == roles_bytes(ledger, Category.GRADIENT) == 0
    for category in (Category.ALL_GATHER, Category.REDUCE_SCATTER, Category.SHARDED_GRADIENT, Category.UNSHARDED_GRADIENT):
        assert roles_bytes(ledger, category) > 0
    held = current_breakdown(ledger, 0)
    assert held[Category.SHARDED_PARAMETER] == PARAMETERS * F32 // 2
    assert Category.UNSHARDED_PARAMETER not in held
    names = [
        ledger.module_path(ledger.scopes.module[i])
        for i in range(len(ledger.scopes))
        if ledger.scopes.phase[i] == Phase.POST_BACKWARD
    ]
    assert set(names) == {"layers.0", "layers.1", "norm"}


def test_ddp_counts_a_bucket_once(results):
    for kind in ("ddp", "ddp_view"):
        _, (ledger, _) = results(kind)
        assert roles_bytes(ledger, Category.PARAMETER) == PARAMETERS * F32
        peak = find_peak(ledger, 0)
        held = peak.breakdown
        copies = held.get(Category.GRADIENT, 0) + held.get(Category.ALL_REDUCE, 0)
        assert PARAMETERS * F32 <= copies <= 2 * PARAMETERS * F32
    assert current_breakdown(ledger, 0)[Category.GRADIENT] == PARAMETERS * F32  # ddp_view: the bucket stays, as gradient


def test_tensor_parallel_counts_local_shards_only(results):
    _, (ledger, _) = results("tp")
    split = 2 * (16 * 64 + 64 + 64 * 16)
    assert roles_bytes(ledger, Category.PARAMETER) == (PARAMETERS - split // 2) * F32
    paths = {ledger.module_path(module) for module in ledger.scopes.module.tolist()}
    assert "layers.1.down" in paths
