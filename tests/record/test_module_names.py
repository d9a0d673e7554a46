"""Where the classes of a run's modules are written."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from torch import nn

from memfit.ledger import LedgerBuilder
from memfit.record.module_names import ModuleNames, written_at


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(2, 2)

    def forward(self, x):
        return self.up(x)


class Wrapped(Block):
    @functools.wraps(Block.forward)
    def forward(self, *args):
        return super().forward(*args)


LINE = Block.forward.__code__.co_firstlineno


def test_a_class_below_the_working_folder_is_known_by_its_path_and_others_by_their_module(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(__file__).parent)
    assert written_at(Block) == f"test_module_names.py:{LINE}"
    assert written_at(Wrapped) == f"test_module_names.py:{LINE}", "what decorators hide"
    monkeypatch.chdir(Path(__file__).parent / "sources")
    assert written_at(Block) == f"{__name__}:{LINE}"


def test_torchs_own_classes_and_those_without_a_forward_in_python_are_left_out():
    assert written_at(nn.Linear) == ""
    assert written_at(nn.Module) == ""
    assert written_at(type("NoForward", (nn.Module,), {"forward": print})) == ""


def test_a_ledger_names_each_class_once():
    builder = LedgerBuilder()
    ModuleNames(builder).name_tree(nn.Sequential(Block(), Block()))
    assert [*builder.build().info.sources] == ["Block"]
