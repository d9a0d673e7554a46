"""What is remembered of a module's attributes is given up as soon as one of them, or what it holds, is another."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from memfit.predict.run.keys import modules_of, parameters_of, state_of_modules


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(0.1)
        self.scale, self.names, self.config = 1.5, ["a"], SimpleNamespace(eps=1e-6, heads=4)
        self.table = torch.zeros(3)


def replace_weight(block: Block) -> None:
    block.linear.weight = nn.Parameter(torch.zeros(4, 4))


def lower_precision(block: Block) -> None:
    block.linear.weight.data = block.linear.weight.data.half()


def change_tensor_type(block: Block) -> None:
    block.table.data = block.table.data.half()


CHANGES = {
    "a number": lambda block: setattr(block.drop, "p", 0.2),
    "a mode": lambda block: block.drop.eval(),
    "a list that grows": lambda block: block.names.append("b"),
    "a dictionary in a list's place": lambda block: setattr(block, "names", {"a": 1, "b": 2}),
    "a configuration that is shared": lambda block: setattr(block.config, "eps", 1e-5),
    "a hook": lambda block: block.linear.register_forward_hook(lambda *_: None),
    "an attribute more": lambda block: setattr(block, "counter", 0),
    "an attribute less": lambda block: delattr(block, "scale"),
    "another parameter": replace_weight,
    "a parameter of another type": lower_precision,
    "a tensor of another type": change_tensor_type,
    "a frozen parameter's module": lambda block: setattr(block, "linear", nn.Linear(4, 4)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changed_is_read_anew(change):
    block = Block()
    before = state_of_modules(modules_of(block))
    assert state_of_modules(modules_of(block)) == before
    change(block)
    after = state_of_modules(modules_of(block))
    assert after != before
    assert state_of_modules(modules_of(block)) == after


def test_nothing_is_kept_alive():
    block = Block()
    state_of_modules(modules_of(block))
    kept = weakref.ref(block.table), weakref.ref(block)
    block.table = None
    assert kept[0]() is None
    block.itself = block.forward  # as libraries that replace a module's forward do
    state_of_modules(modules_of(block))
    del block
    gc.collect()
    assert kept[1]() is None


def test_modules_and_parameters_are_those_of_torch_in_their_order():
    shared, tied = nn.Linear(4, 4), nn.Linear(4, 4)
    tied.weight = shared.weight
    block = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), shared), nn.Sequential(shared, tied), shared, nn.Dropout()])
    block.register_module("nothing", None)
    assert modules_of(block) == list(block.modules())
    assert [id(parameter) for parameter in parameters_of(modules_of(block))] == [id(each) for each in block.parameters()]
