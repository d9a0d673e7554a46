"""What is done once gives what doing it for every parameter gives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from helpers.phantom_worlds import phantom
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from memfit.phantom.distributed import rank_shortcuts

NUM_BLOCKS = 5


def train_sharded() -> None:
    with phantom(world_size=4):
        dist.init_process_group("nccl")
        net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 8)) for _ in range(NUM_BLOCKS))).cuda()
        for block in net:
            fully_shard(block)
        fully_shard(net)
        optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
        net(torch.randn(2, 8, device="cuda")).sum().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def described(strategy) -> list:
    return [[(str(spec), cost) for spec, cost in zip(each.strategies, costs_of(each), strict=True)] for each in strategy.children]


def costs_of(strategy) -> list:
    return [spec.redistribute_cost for spec in strategy.strategies]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The operators with lists whose strategies were compared with those that torch finds for every tensor."""
    found_for_one = getattr(DTensor._op_dispatcher.sharding_propagator, "op_single_dim_strategy_funcs", {})
    if torch.ops.aten._foreach_addcdiv_.ScalarList not in found_for_one:
        pytest.skip("the installed torch, older than 2.13, finds strategies of lists in another way")
    found: list[tuple[str, int]] = []
    one_of_each = rank_shortcuts._one_of_each

    def checked(expand, list_kind):
        shorter = one_of_each(expand, list_kind)

        def both(mesh, schema, info, metas):
            ours, theirs = shorter(mesh, schema, info, metas), expand(mesh, schema, info, metas)

            def compare(*args):
                answer = ours(*args)
                if isinstance(answer, list_kind):
                    assert described(answer) == described(theirs(*args)), schema.op
                    found.append((schema.op.name(), len(answer.children)))
                return answer

            return compare

        return both

    monkeypatch.setattr(rank_shortcuts, "_one_of_each", checked)
    return found


def test_tensors_of_one_kind_are_sharded_alike(compared: list[tuple[str, int]]):
    train_sharded()
    num_parameters = 6 * NUM_BLOCKS
    assert ("aten::_foreach_addcdiv_.ScalarList", num_parameters) in compared
    assert len({name for name, _ in compared}) > 4


def test_the_comparison_can_fail(compared: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_shortcuts, "_kinds_of", lambda strategies, meta: ("all of one kind",))
    with pytest.raises(RuntimeError, match="assert"):  # DTensor raises it so
        train_sharded()
