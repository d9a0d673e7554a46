"""The modules of a run as a tree, and what operators made."""

from __future__ import annotations

import pytest
from helpers.arbitrary_ledgers import ledgers
from hypothesis import given

from memfit.analysis import Family, ModuleNode, OpShare, bytes_by_op, family_of, find_peak, gather_module_stats, grow_tree
from memfit.ledger import Category, Ledger
from memfit.testing import ledger
from memfit.units import MIB

RUN = ledger("""
    alloc 8MiB parameter layers.0.a.w; alloc 8MiB parameter layers.1.a.w; alloc 1MiB parameter head.w
    alloc 3MiB loose
    enter forward head; alloc 2MiB x; exit
    enter backward; alloc 8MiB gradient layers.1.a.g; free x; free loose; alloc 8MiB gradient layers.0.a.g; exit
""")
"""At the peak, the last gradient: 17 MiB of parameters and 16 MiB of gradients."""


def tree(run: Ledger, device: int = 0, *, merged: bool) -> list[ModuleNode]:
    return grow_tree(run, device, tuple(gather_module_stats(run, device)), merged=merged)


def figures(node: ModuleNode) -> tuple[str, int, float, dict[str, float]]:
    highest = {family.value: size / MIB for family, size in node.highest.items() if size}
    return node.path, node.num_modules, node.bytes_at_peak / MIB, highest


def test_each_module_by_itself():
    nodes = tree(RUN, merged=False)
    assert [node.path for node in nodes] == [
        *("cpu", "(Module)"),
        *("layers", "layers.0", "layers.0.a", "layers.1", "layers.1.a", "head"),
        "outside all modules",
    ]
    assert [node.parent for node in nodes] == [-1, 0, 1, 2, 3, 2, 5, 1, 0]
    assert figures(nodes[0]) == ("cpu", 0, 33, {"parameters": 17, "gradients": 16, "activations": 2, "the rest": 3})
    assert figures(nodes[4]) == ("layers.0.a", 1, 16, {"parameters": 8, "gradients": 8})
    assert figures(nodes[7]) == ("head", 1, 1, {"parameters": 1, "activations": 2})
    assert figures(nodes[8]) == ("outside all modules", 0, 0, {"the rest": 3})


def test_layers_as_one():
    nodes = tree(RUN, merged=True)
    assert [node.path for node in nodes] == ["cpu", "(Module)", "layers", "layers.*", "layers.*.a", "head", "outside all modules"]
    assert figures(nodes[4]) == ("layers.*.a", 2, 32, {"parameters": 16, "gradients": 16})
    assert (nodes[5].calls, nodes[5].peak_forward_bytes, nodes[5].kind) == (1, 22 * MIB, "Module")


@pytest.mark.parametrize("merged", [True, False])
@given(run=ledgers)
def test_parts_never_exceed_the_whole(merged: bool, run: Ledger):
    for device in range(len(run.devices)):
        nodes = tree(run, device, merged=merged)
        assert nodes[0].bytes_at_peak == find_peak(run, device).size_bytes
        for number, node in enumerate(nodes):
            assert sum(node.at_peak.values()) == node.bytes_at_peak
            parts = [part for part in nodes if part.parent == number]
            assert sum(part.bytes_at_peak for part in parts) <= node.bytes_at_peak
            assert all(sum(part.highest[family] for part in parts) <= node.highest[family] for family in Family)


def test_every_category_has_a_family():
    assert {family_of(category) for category in Category} == set(Family)
    assert family_of(Category.UNSHARDED_GRADIENT) is Family.GRADIENTS
    assert family_of(Category.WORKSPACE) is Family.THE_REST


def test_what_operators_made():
    run = ledger("alloc 2MiB mul; alloc 5MiB mm; alloc 1MiB x on cuda:0; free mul; alloc 3MiB mul")
    assert bytes_by_op(run, 4, 0) == [
        OpShare(op="mm", num_blocks=1, size_bytes=5 * MIB),
        OpShare(op="mul", num_blocks=1, size_bytes=3 * MIB),
    ]
    assert [share.op for share in bytes_by_op(run, 3, 0)] == ["mm"]
