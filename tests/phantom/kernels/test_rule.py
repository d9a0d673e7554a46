"""One rule for each operator: what a rule must say, what the registry refuses, and that the docs show every rule."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from helpers import ROOT

from memfit.errors import ConfigError
from memfit.phantom.kernels import RULES, Registry, Rule
from memfit.phantom.kernels.rule import find_operator, operator_name
from memfit.phantom.tensors.mode import PhantomMode
from memfit.phantom.values.answers import Values
from memfit.phantom.values.assumptions import Assumptions, Expected

aten = torch.ops.aten


def nothing(*args):
    return ()


def rule(*operators: str, source: str = "somewhere.cpp", **facts) -> Rule:
    return Rule(operators=operators, source=source, **(facts or {"takes": nothing}))


# -- a rule --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: rule("mm", source=" "), "mm has no source"),
        (lambda: Rule(operators=("mm",), source="somewhere.cpp"), "mm says nothing"),
        (lambda: rule(), "at least one"),
        (lambda: rule("mm", "mm"), "each of its operators once"),
        (lambda: rule("mm.default"), "write `mm`"),
        (lambda: rule("aten::mm"), "write `mm`"),
        (lambda: rule("mm", returns=nothing, by_output=True), "are about `takes`"),
        (lambda: rule("mm", returns=nothing, assumption="perhaps"), "are about `takes`"),
        (lambda: rule("mm", returns=nothing, tries=nothing), "are about `takes`"),
    ],
)
def test_a_bad_rule_is_refused_when_it_is_made(build, complaint):
    with pytest.raises(ConfigError, match=complaint):
        build()


@pytest.mark.parametrize("fact", ["runs", "returns", "copies", "takes", "keeps"])
def test_one_fact_is_enough(fact):
    assert getattr(rule("mm", **{fact: nothing}), fact) is nothing


# -- the registry --------------------------------------------------------------------------------------------------------------


def test_a_rule_is_found_by_its_operator():
    registry, found = Registry(), rule("sum.dim_IntList", "mm")
    registry.register("matmul", [found])
    assert registry.get(aten.mm.default) is registry.get(aten.sum.dim_IntList) is found
    assert registry.get(aten.sum.default) is None


def test_a_second_rule_for_an_operator_is_refused_with_both_places():
    registry = Registry()
    registry.register("matmul", [rule("mm", "bmm", source="Blas.cpp")])
    with pytest.raises(ConfigError, match=r"operator bmm: one in matmul \(Blas.cpp\), one in loss \(LossCTC.cu\)"):
        registry.register("loss", [rule("bmm", source="LossCTC.cu", returns=nothing)])


def test_a_second_rule_is_refused_within_a_family_too():
    with pytest.raises(ConfigError, match="operator mm"):
        Registry().register("matmul", [rule("mm"), rule("mm", keeps=nothing)])


def test_operators_that_this_torch_does_not_have_are_skipped():
    registry = Registry()
    registry.register("matmul", [rule("mm", "no_such_operator", "mm.no_such_overload")])
    assert registry.missing == ["no_such_operator", "mm.no_such_overload"]
    assert [operator for operator, _ in registry.items()] == [aten.mm.default]
    with pytest.raises(ConfigError, match="no_such_operator"):
        registry.register("loss", [rule("no_such_operator")])


@pytest.mark.parametrize("name", ["mm", "sum.dim_IntList"])
def test_names_and_operators(name):
    assert operator_name(find_operator(name)) == name


# -- the rules -----------------------------------------------------------------------------------------------------------------

MISSING: dict[str, list[str]] = {}
"""Operators that a supported torch does not have, by its version: ``{"2.11": ["_new_operator"]}``."""


def test_only_known_operators_are_missing():
    """A name that is spelled wrong would be skipped without a word."""
    assert RULES.missing == MISSING.get(".".join(torch.__version__.split(".")[:2]), [])


def test_a_value_and_a_rule_cannot_both_say_what_an_operator_returns(monkeypatch):
    class TwiceAnswered(Values):
        def answers(self):
            return {**super().answers(), aten._ctc_loss.default: nothing}

    PhantomMode(Values(Assumptions(), Expected()))  # there is no clash today
    with pytest.raises(ConfigError, match="_ctc_loss"):
        PhantomMode(TwiceAnswered(Assumptions(), Expected()))


def load_generator():
    spec = importlib.util.spec_from_file_location("generate_kernel_table", ROOT / "docs" / "generate_kernel_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_docs_show_every_rule():
    generator = load_generator()
    is_fresh = generator.PAGE.read_text() == generator.page()
    assert is_fresh, "docs/kernels.md is stale: write it anew with `python docs/generate_kernel_table.py`"


def test_what_a_rule_says_is_shown_from_the_docstrings():
    generator = load_generator()

    def takes(target, args, result):
        """All | of
        it.

        More.
        """

    assert (
        generator.cell(rule("mm", takes=takes, assumption="perhaps"), "takes") == "All \\| of it. An estimate: predictions say so."
    )
    assert generator.cell(rule("mm", takes=takes), "keeps") == ""
    with pytest.raises(ValueError, match="no docstring"):
        generator.cell(rule("mm", takes=nothing), "takes")
