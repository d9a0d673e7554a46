"""Plans are read as they were written, and what is no plan is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import ConfigError, PlanFormatError
from memfit.plan import Action, CheckpointingPolicy, OperatorChoice, Plan, PlanCost, UnitPolicy

FIGURES = PlanCost(peak_allocated_bytes=10, peak_reserved_bytes=30, smallest_fit_bytes=20, step_seconds=0.5, recompute_seconds=0.1)
POLICY = CheckpointingPolicy(
    groups=(
        UnitPolicy(
            units=("layers.0", "layers.1"),
            choices=(
                OperatorChoice(operator="aten.bmm.default", call=0, action=Action.OFFLOAD),
                OperatorChoice(operator="aten.mm.default", call=0),
                OperatorChoice(operator="aten.mm.default", call=2),
            ),
        ),
        UnitPolicy(units=("layers.2",)),
    ),
    untouched=("layers.3",),
)
PLAN = Plan(
    gpu="H200",
    budget_bytes=2**30,
    world_size=8,
    recipe={"strategy": "full_shard", "batch": 4},
    checkpointing=POLICY,
    figures=FIGURES,
    assumptions=("routing is even",),
)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path):
    PLAN.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == PLAN


names = st.text(min_size=1, max_size=8).filter(str.isprintable)
choices = st.builds(OperatorChoice, operator=names, call=st.integers(0, 9), action=st.sampled_from(Action))
groups = st.lists(
    st.lists(choices, max_size=5, unique_by=lambda choice: (choice.operator, choice.call)).map(sorted).map(tuple), max_size=3
)


@given(st.lists(names, unique=True, min_size=6, max_size=6), groups)
def test_any_policy_survives_json(units: list[str], choices: list[Any]):
    made = [UnitPolicy(units=(unit,), choices=chosen) for unit, chosen in zip(units, choices, strict=False)]
    policy = CheckpointingPolicy(groups=tuple(sorted(made, key=lambda group: group.units)), untouched=tuple(units[4:]))
    read = CheckpointingPolicy.from_json(json.loads(json.dumps(policy.to_json())))
    assert read.untouched == policy.untouched
    assert [set(group.choices) for group in read.groups] == [set(group.choices) for group in policy.groups]


def without(part: str) -> dict[str, Any]:
    return {name: value for name, value in PLAN.to_json().items() if name != part}


def with_(**changes: Any) -> dict[str, Any]:
    return PLAN.to_json() | changes


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (with_(version=2), "has version 2, this memfit knows versions up to 1. Upgrade memfit"),
        (with_(version="1"), "its version is '1'"),
        (with_(format="a recipe"), "is no plan of memfit"),
        ([], "is no plan of memfit"),
        (without("asked"), "is damaged: a part with gpu, budget_bytes, world_size is missing"),
        (with_(asked={"gpu": "H200", "budget_bytes": -1}), "budget_bytes is a whole number of at least 1, not -1"),
        (with_(figures={"peak_allocated_bytes": 1}), "is damaged: "),
        (with_(figures={**PLAN.to_json()["figures"], "step_seconds": "soon"}), "step_seconds cannot be 'soon'"),
        (with_(checkpointing=[1]), "its checkpointing is no mapping"),
        (with_(checkpointing={"groups": [{"units": ["a"], "keep": {"mm": [-1]}}]}), "counted from 0"),
        (with_(checkpointing={"groups": [{"units": []}]}), "one unit at least"),
        (with_(checkpointing={"groups": [{"units": ["a"]}], "untouched": ["a"]}), "a unit has one policy; a has more"),
        (with_(recipe="fast"), "its recipe is no mapping of words"),
        (with_(assumptions=[1]), "no list of sentences"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, found: Any, said: str):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(found))
    with pytest.raises(PlanFormatError) as raised:
        Plan.load(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("content", [b"\x80\x04cposix\nsystem\n", b"", b"[" * 100_000, b'{"format": "memfit plan"'])
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(PlanFormatError, match="is no plan: it is not JSON"):
        Plan.load(tmp_path / "plan.json")


def test_a_missing_file_is_told(tmp_path: Path):
    with pytest.raises(PlanFormatError, match="cannot be read"):
        Plan.load(tmp_path / "plan.json")


def test_a_policy_says_one_thing_of_a_call():
    with pytest.raises(ConfigError, match=r"chooses twice for aten.mm.default call 0"):
        UnitPolicy(units=("a",), choices=tuple(OperatorChoice(operator="aten.mm.default", call=0, action=a) for a in Action))


@pytest.mark.parametrize("name", ["aten.mm\n.default", "\x1b[31maten.mm.default"])
def test_names_that_do_not_print_in_a_line_are_refused(name: str):
    with pytest.raises(ConfigError, match="an operator is named"):
        OperatorChoice(operator=name, call=0)
    with pytest.raises(ConfigError, match="a unit is named"):
        UnitPolicy(units=(name,))
