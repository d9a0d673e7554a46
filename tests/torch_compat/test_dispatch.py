"""Dispatch modes and keys, as memfit uses them."""

from __future__ import annotations

import threading

import torch
from torch.utils import _python_dispatch

from memfit.torch_compat.dispatch import (
    DispatchKey,
    DispatchKeySet,
    HigherOrderOperator,
    TorchDispatchMode,
    below_views,
    detached,
    enter_mode,
    excluding_keys,
    leave_mode,
    modes_of_this_thread,
    tree_leaves,
    tree_map,
    tree_map_only,
    without_modes,
)


class Seeing(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_are_of_one_thread():
    mode, elsewhere = Seeing(), []
    with mode:
        assert modes_of_this_thread() == [mode]
        thread = threading.Thread(target=lambda: elsewhere.append(modes_of_this_thread()))
        thread.start()
        thread.join()
    assert elsewhere == [[]]


def test_a_mode_is_taken_out_wherever_it_is():
    outer, inner = Seeing(), Seeing()
    enter_mode(outer)
    enter_mode(inner)
    leave_mode(outer)
    assert modes_of_this_thread() == [inner]
    torch.ones(1)
    leave_mode(inner)
    assert (outer.seen, inner.seen != []) == ([], True)
    assert not vars(_python_dispatch)["_is_in_torch_dispatch_mode"]


def test_without_modes():
    with Seeing() as mode, without_modes():
        torch.ones(1)
    assert mode.seen == []


def test_keys_can_be_passed_over():
    x = torch.ones(1, requires_grad=True)
    with excluding_keys(DispatchKeySet(DispatchKey.AutogradCPU)):
        assert (x * 2).grad_fn is None
    assert (x * 2).grad_fn is not None


def test_a_detached_alias_notices_changes_in_place():
    class Keeping(TorchDispatchMode):
        kept = None

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.mul.Tensor:
                self.kept = detached(result)
            return result

    with Keeping() as mode:
        product = torch.ones(1, requires_grad=True) * 2
    before = mode.kept._version
    with torch.no_grad():
        product.add_(1)
    assert mode.kept._version == before + 1
    assert mode.kept.grad_fn is None


def test_an_alias_that_is_no_view_has_a_version_of_its_own():
    first = torch.zeros(4)
    with below_views():
        alias = torch.as_strided(first, (2, 2), (2, 1))
    alias.add_(1)
    assert (first.tolist(), first._version, alias._version) == ([1.0] * 4, 0, 1)
    torch.as_strided(first, (2, 2), (2, 1)).add_(1)
    assert first._version == 1, "a view shares it"


def test_trees_and_higher_order_operators():
    assert tree_leaves({"a": (1, [2])}) == [1, 2]
    assert tree_map(lambda value: value + 1, [1, (2,)]) == [2, (3,)]
    assert tree_map_only(str, str.upper, ["a", 1]) == ["A", 1]
    assert isinstance(torch.ops.higher_order.cond, HigherOrderOperator)
