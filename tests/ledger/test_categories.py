"""What a block turned out to be, rule by rule."""

from __future__ import annotations

import pytest

from memfit.ledger import Category, LedgerBuilder
from memfit.ledger.categories import ROLE_ORDER
from memfit.testing import ledger


def categories(script: str) -> dict[str, Category]:
    """Category by name of each block of a script."""
    made = ledger(script)
    return {made.strings[op]: Category(category) for op, category in zip(made.blocks.op, made.categories, strict=True)}


@pytest.mark.parametrize("role", ROLE_ORDER, ids=lambda role: role.label)
def test_a_role_wins_over_when_the_block_was_born(role: Category):
    name = role.name.lower()
    for scope in ("", "enter forward a;", "enter backward;", "enter optimizer;", "enter recompute a;"):
        assert categories(f"{scope} alloc 1 {name} x") == {"x": role}


def test_of_several_roles_the_most_telling_wins():
    builder = LedgerBuilder()
    block = builder.alloc(1, builder.device("cpu"), builder.string("x"))
    for role in reversed(ROLE_ORDER):
        builder.role(block, role)
        assert builder.build().categories.tolist() == [role]


def test_a_role_that_decides_nothing_leaves_the_decision_to_the_life():
    builder = LedgerBuilder()
    builder.role(builder.alloc(1, builder.device("cpu"), builder.string("x")), Category.ACTIVATION)
    assert builder.build().categories.tolist() == [Category.OTHER]


def test_forward_blocks_are_activations_if_backward_finds_them():
    script = (
        "enter forward a; alloc 1 kept; alloc 1 gone; free gone; exit; alloc 1 between; free between;"
        "enter backward; free kept; exit"
    )
    assert categories(script) == {
        "kept": Category.ACTIVATION,
        "gone": Category.FORWARD_TEMPORARY,
        "between": Category.FORWARD_TEMPORARY,
    }


def test_the_loss_is_made_outside_all_modules_and_is_an_activation():
    script = "alloc 1 early; enter forward a; exit; alloc 1 loss; enter backward; exit; alloc 1 late; free loss"
    assert categories(script) == {"early": Category.OTHER, "loss": Category.ACTIVATION, "late": Category.OTHER}


def test_blocks_alive_in_a_forward_without_backward_are_activations():
    assert categories("enter forward a; alloc 1 x; exit") == {"x": Category.ACTIVATION}


def test_each_forward_counts_to_its_own_backward():
    script = (
        "enter forward a; alloc 1 x; exit; enter backward; free x; exit;"
        "enter forward a; alloc 1 y; free y; exit; enter backward; exit"
    )
    assert categories(script) == {"x": Category.ACTIVATION, "y": Category.FORWARD_TEMPORARY}


def test_recomputed_blocks_are_activations_if_they_outlive_the_recomputation():
    script = (
        "enter forward a; exit; enter backward; enter recompute a; enter recompute a.b; alloc 1 kept; alloc 1 inner; exit;"
        "free inner; exit; free kept; exit"
    )
    assert categories(script) == {"kept": Category.ACTIVATION, "inner": Category.FORWARD_TEMPORARY}


@pytest.mark.parametrize(
    ("phase", "category"),
    [
        ("backward", Category.BACKWARD_TEMPORARY),
        ("optimizer", Category.OPTIMIZER_TEMPORARY),
        ("pre-forward", Category.ALL_GATHER),
        ("post-forward", Category.ALL_GATHER),
        ("pre-backward", Category.ALL_GATHER),
        ("post-backward", Category.REDUCE_SCATTER),
    ],
)
def test_other_phases_decide_by_themselves(phase: str, category: Category):
    assert categories(f"enter {phase} a; alloc 1 x; exit") == {"x": category}


def test_no_blocks_no_categories():
    assert ledger("").categories.tolist() == []
