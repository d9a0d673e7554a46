"""``memfit.testing.ledger``: what a script means, and how a bad one is told."""

from __future__ import annotations

import pytest

from memfit.errors import ConfigError
from memfit.ledger import Category, EventKind, Phase
from memfit.testing import NS_PER_EVENT, ledger


def test_the_script_of_the_docstring_means_what_it_says():
    made = ledger(
        """
        alloc 4MiB parameter layers.0.w; step
        enter forward layers.0 taking 1KiB; alloc 1MiB x on cuda:1 stream 7; exit giving 2KiB
        resize x 2MiB; free x
        """
    )
    assert made.events.kind.tolist() == [
        EventKind.ALLOC,
        EventKind.STEP,
        EventKind.ENTER,
        EventKind.ALLOC,
        EventKind.EXIT,
        EventKind.RESIZE,
        EventKind.FREE,
    ]
    assert made.events.size.tolist() == [4 * 2**20, 0, 2**10, 2**20, 2 * 2**10, 2 * 2**20, 0]
    assert made.events.time_ns.tolist() == [NS_PER_EVENT * i for i in range(7)]
    assert [device.name for device in made.devices] == ["cpu", "cuda:1"]
    assert made.blocks.stream.tolist() == [0, 7]
    assert made.blocks.scope.tolist() == [-1, 0]
    assert [made.strings[op] for op in made.blocks.op] == ["layers.0.w", "x"]


def test_modules_come_with_those_above_them():
    made = ledger("enter forward a.b; enter forward a.b.c; exit; exit; enter backward; enter forward .")
    assert [made.strings[path] for path in made.modules.path] == ["", "a", "a.b", "a.b.c"]
    assert made.modules.parent.tolist() == [-1, 0, 1, 2]
    assert made.scopes.module.tolist() == [2, 3, -1, 0]
    assert made.scopes.parent.tolist() == [-1, 0, -1, 2]
    assert made.scopes.phase.tolist() == [Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD]


def test_roles_belong_to_the_module_in_the_name():
    made = ledger("alloc 1 optimizer-state a.b.momentum; alloc 1 optimizer_state free_floating")
    assert made.roles.role.tolist() == [Category.OPTIMIZER_STATE] * 2
    assert [made.module_path(module) for module in made.roles.module] == ["a.b", ""]
    assert [made.strings[name] for name in made.roles.name] == ["a.b.momentum", "free_floating"]


def test_a_name_can_be_used_again_after_its_block_is_freed():
    assert len(ledger("alloc 1 x; free x; alloc 2 x").blocks) == 2


def test_nothing_is_an_empty_ledger():
    assert len(ledger(" ;\n; ").events) == 0


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("allocate 1 x", "there is no 'allocate'"),
        ("alloc 1", "write it as: alloc SIZE"),
        ("alloc 1 x y z", "write it as: alloc SIZE"),
        ("alloc much x", "cannot read 'much'"),
        ("alloc 4 MiB x", "'MiB' is none of sharded-parameter"),
        ("alloc 1 activation x", "'activation' is none of sharded-parameter"),
        ("alloc 1 x stream two", "write it as: alloc SIZE"),
        ("alloc 1 x; alloc 1 x", "x is still there"),
        ("free", "write it as: free NAME"),
        ("free x", "there is no block x"),
        ("alloc 1 x; free x; free x", "there is no block x"),
        ("resize x 1", "there is no block x"),
        ("enter", "write it as: enter PHASE"),
        ("enter sideways", "'sideways' is none of forward"),
        ("enter forward a..b", "'a..b' is not a module path"),
        ("enter forward a taking lots", "cannot read 'lots'"),
        ("exit", "no scope is open"),
        ("enter forward; exit; exit", "no scope is open"),
        ("step 3", "write it as: step"),
    ],
)
def test_a_bad_script_points_at_the_statement(script: str, problem: str):
    statements = script.split("; ")
    with pytest.raises(ConfigError, match=problem) as caught:
        ledger(script)
    assert str(caught.value).startswith(f"statement {len(statements)}, {statements[-1]!r}: ")
