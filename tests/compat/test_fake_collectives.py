"""Collective operators: the same sets as PyTorch's tools have, and the same answers about real calls."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed._tools import fake_collectives as theirs
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.compat import fake_collectives as ours

SETS = sorted(name for name in vars(theirs.CollectiveOp) if name.isupper())
GLOBAL_SETS = ["functional_collectives", "non_functional_collectives", "sync_ops", "collective_ops"]


@pytest.mark.parametrize("name", SETS)
def test_sets_of_operators_are_pytorchs(name):
    assert getattr(ours.CollectiveOp, name) == getattr(theirs.CollectiveOp, name)


@pytest.mark.parametrize("name", GLOBAL_SETS)
def test_all_operators_are_pytorchs(name):
    assert getattr(ours, name) == getattr(theirs, name)


def test_the_sets_are_found():
    assert len(SETS) in (12, 13)  # torch 2.11 has one less


def answer(question, *args):
    """What a question gives, or the kind of error that it raises."""
    try:
        return question(*args)
    except Exception as error:
        return type(error)


class Asking(TorchDispatchMode):
    """Asks both about every collective that runs."""

    def __init__(self):
        super().__init__()
        self.asked = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in theirs.collective_ops:
            self.asked.add(func)
            for name, questions in (("get_process_group", (func, args)), ("get_comm_tensor_size", (func, result, args, kwargs))):
                expected, found = (answer(getattr(module.CollectiveOp, name), *questions) for module in (theirs, ours))
                assert found == expected, (func, name)
            expected, found = (answer(module.CollectiveOp.get_work, func, result) for module in (theirs, ours))
            assert type(found) is type(expected), func
        return result


@pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning")
def test_answers_are_pytorchs(world):
    one, four, pieces = torch.zeros(4), torch.zeros(16), [torch.zeros(4) for _ in range(4)]
    group = dist.group.WORLD
    with Asking() as asking:
        dist.broadcast(one, src=0)
        dist.all_reduce(one)
        dist.reduce(one, dst=0)
        dist.send(one, dst=1)
        dist.recv(one, src=1)
        dist.all_gather(pieces, one)
        dist.reduce_scatter(one, pieces)
        dist.reduce_scatter_tensor(one, four)
        dist.scatter(one, scatter_list=pieces, src=0)
        dist.gather(one, gather_list=pieces, dst=0)
        dist.all_gather_into_tensor(four, one)
        dist.all_to_all(pieces, pieces)
        dist.all_to_all_single(four, four)
        dist.barrier()
        functional.broadcast(one, 0, group)
        functional.all_reduce(one, "sum", group)
        functional.wait_tensor(functional.all_gather_tensor(one, 0, group))
        functional.reduce_scatter_tensor(four, "sum", 0, group)
        functional.all_to_all_single(four, None, None, group)
        functional.all_reduce_coalesced(pieces, "sum", group)
        functional.all_gather_into_tensor_coalesced(pieces, group)
        functional.reduce_scatter_tensor_coalesced(pieces, "sum", [0] * 4, group)
    assert len(asking.asked) >= 22


def test_an_operator_that_is_no_collective_is_refused():
    add = torch.ops.aten.add.Tensor
    for question in (
        lambda: ours.CollectiveOp.get_process_group(add, ()),
        lambda: ours.CollectiveOp.get_comm_tensor_size(add, None, (), None),
        lambda: ours.CollectiveOp.get_work(add, None),
    ):
        with pytest.raises(TypeError, match=r"aten\.add\.Tensor is no collective operator"):
            question()
    with pytest.raises(TypeError, match="no process group"):
        ours.CollectiveOp.get_process_group(torch.ops._c10d_functional.wait_tensor.default, ())


def test_sums_of_tensors():
    value = {"a": [torch.zeros(4), (torch.zeros(2, dtype=torch.int64),)], "b": 3}
    assert ours.CollectiveOp.sum_tensors(value) == theirs.CollectiveOp.sum_tensors(value) == 32
