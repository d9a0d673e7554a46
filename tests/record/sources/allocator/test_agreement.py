"""Where both witnesses can look at one run, their ledgers say the same."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from helpers.simulated_history import SimulatedHistory
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from memfit.analysis import current_breakdown, find_peak, find_step_peaks
from memfit.analysis.owners import find_owners
from memfit.ledger import Category, Phase
from memfit.record.tracker import Tracker
from memfit.torch_compat.distributed import fake_store

DIM, CLASSES, BATCH = 32, 64, 256


class Block(nn.Module):
    def __init__(self, way=""):
        super().__init__()
        self.norm, self.up, self.down, self.way = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM), way

    def work(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

    def forward(self, x):
        if self.way:
            return checkpoint(self.work, x, use_reentrant=self.way == "reentrant")
        return self.work(x)


class Net(nn.Module):
    def __init__(self, way=""):
        super().__init__()
        self.embed = nn.Embedding(CLASSES, DIM)
        self.layers = nn.ModuleList(Block(way) for _ in range(3))
        self.head = nn.Linear(DIM, CLASSES, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(steps=3, way="", tie=False, accumulate=1, optimizer=torch.optim.AdamW, freeze=False, to_none=True):
    net = Net(way)
    if tie:
        net.head.weight = net.embed.weight
    if freeze:
        net.embed.requires_grad_(False)
    chosen = optimizer([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(steps):
        for _ in range(accumulate):
            tokens = torch.randint(0, CLASSES, (BATCH,))
            F.cross_entropy(net(tokens), tokens).backward()
        chosen.step()
        chosen.zero_grad(set_to_none=to_none)
    return net


WAYS = {
    "plain": {},
    "tied": {"tie": True},
    "accumulated": {"accumulate": 2},
    "checkpointed": {"way": "not reentrant"},
    "reentrant": {"way": "reentrant"},
    "sgd": {"optimizer": torch.optim.SGD},
    "frozen": {"freeze": True},
    "kept gradients": {"to_none": False},
}


def record_twice(run, has_notes=True):
    """Both witnesses' ledgers of one run: the allocator's first."""
    torch.manual_seed(0)
    with SimulatedHistory(device="cpu", has_notes=has_notes) as history:
        seen, shown = Tracker(history=history), Tracker(witness="operators")
        with seen, shown:
            run()
    return seen.ledger.check(), shown.ledger.check(), history


def held_by_module(ledger, event):
    held = {}
    for owner, size in zip(find_owners(ledger).tolist(), ledger.block_bytes_at(event).tolist(), strict=True):
        if size:
            held[ledger.module_path(owner)] = held.get(ledger.module_path(owner), 0) + size
    return held


@pytest.mark.parametrize("way", WAYS)
def test_both_see_the_same_peaks_categories_and_modules(way):
    seen, shown, _ = record_twice(lambda: train(**WAYS[way]))
    for before, after in zip(find_step_peaks(shown, 0), find_step_peaks(seen, 0), strict=True):
        assert (after.peak.size_bytes, after.end_bytes) == (before.peak.size_bytes, before.end_bytes)
        assert after.peak.breakdown == before.peak.breakdown
        assert after.peak.phase == before.peak.phase
        if after.peak.size_bytes:
            # Under the double's dispatch mode, autograd sums gradients into new blocks; the operators' witness undoes that.
            held = held_by_module(seen, after.peak.event), held_by_module(shown, before.peak.event)
            assert apart(*held) < (0.05 if way == "checkpointed" else 0.02)


def apart(one, other):
    return max(abs(one.get(name, 0) - other.get(name, 0)) for name in {*one, *other}) / sum(one.values())


def test_without_notes_the_clock_tells():
    seen, shown, _ = record_twice(train, has_notes=False)
    assert find_peak(seen, 0).breakdown == find_peak(shown, 0).breakdown


def test_backward_is_placed_in_its_modules():
    seen, _, _ = record_twice(train)
    born = {
        (Phase(phase), seen.module_path(module))
        for phase, module in zip(seen.block_phase, seen.block_module, strict=True)
        if phase >= 0
    }
    assert {(Phase.BACKWARD, name) for name in ("head", "layers.0.up", "layers.2.down", "layers.1.norm", "layers.1")} <= born


def test_recomputation_is_its_own_phase():
    seen, _, _ = record_twice(lambda: train(way="not reentrant"))
    recomputed = {seen.module_path(module) for module in seen.scopes.module[seen.scopes.phase == Phase.RECOMPUTE]}
    assert {"layers.0.up", "layers.2.down"} <= recomputed


def test_steps_and_optimizers_are_marked():
    seen, shown, _ = record_twice(train)
    assert seen.step_numbers.tolist() == [0, 1, 2]
    assert (seen.scopes.phase == Phase.OPTIMIZER).sum() == (shown.scopes.phase == Phase.OPTIMIZER).sum() == 3


def test_both_see_the_same_of_fsdp(one_of_four_ranks):
    def run():
        net, policy = Net(), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for unit in (*net.layers, net):
            fully_shard(unit, mesh=one_of_four_ranks, mp_policy=policy)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        for _ in range(3):
            tokens = torch.randint(0, CLASSES, (BATCH,))
            F.cross_entropy(net(tokens).float(), tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

    seen, shown, _ = record_twice(run)
    for before, after in zip(find_step_peaks(shown, 0), find_step_peaks(seen, 0), strict=True):
        assert after.peak.breakdown == before.peak.breakdown
    ends = [current_breakdown(ledger, 0) for ledger in (seen, shown)]
    assert ends[0] == ends[1]
    assert {Phase.PRE_FORWARD, Phase.POST_BACKWARD} <= set(map(Phase, seen.scopes.phase))
    assert Category.UNSHARDED_PARAMETER in find_peak(seen, 0).breakdown
    gradients = [int(ledger.block_peak_bytes[ledger.categories == Category.UNSHARDED_GRADIENT].sum()) for ledger in (seen, shown)]
    assert gradients[0] == gradients[1] > 0  # they are gone when FSDP has reduced them, and at none of the peaks


@pytest.fixture
def one_of_four_ranks():
    dist.init_process_group("fake", store=fake_store(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (4,))
    dist.destroy_process_group()
