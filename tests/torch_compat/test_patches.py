"""One mechanism replaces parts of torch: it says who and why, and puts back in any order of leaving."""

from __future__ import annotations

import itertools
import random
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memfit.torch_compat.patches import Patch, Patches, active_patches, set_aside


class Base:
    def inherited(self) -> str:
        return "inherited"


class Owner(Base):
    def own(self) -> str:
        return "own"


def louder(original):
    def call(*args):
        return original(*args) + "!"

    return call


def test_an_attribute_is_put_back():
    before, patches = vars(Owner)["own"], Patches("a test")
    patches.replace(Owner, "own", lambda self: "replaced")
    assert Owner().own() == "replaced"
    patches.undo()
    assert vars(Owner)["own"] is before


@pytest.mark.parametrize("name", ["inherited", "absent"])
def test_what_was_inherited_or_absent_is_removed_again(name: str):
    patches = Patches("a test")
    patches.replace(Owner, name, lambda self: "replaced")
    assert getattr(Owner(), name)() == "replaced"
    patches.undo()
    assert name not in vars(Owner)
    assert Owner().inherited() == "inherited"


def test_a_wrapper_looks_like_what_it_wraps():
    patches = Patches("a test")
    patches.wrap(Owner, "inherited", louder)
    assert Owner().inherited() == "inherited!"
    assert Owner.inherited.__name__ == "inherited"
    patches.undo()


@pytest.mark.parametrize("leaving", list(itertools.permutations(range(3))))
def test_it_does_not_matter_who_leaves_first(leaving: tuple[int, ...]):
    """The middle one replaces, the others wrap what they find."""
    before = vars(Owner)["own"]
    sets = [Patches(f"number {number}") for number in range(3)]
    sets[0].wrap(Owner, "own", louder)
    sets[1].replace(Owner, "own", lambda self: "replaced")
    sets[2].wrap(Owner, "own", louder)
    assert Owner().own() == "replaced!"
    here = {0, 1, 2}
    for number in leaving:
        sets[number].undo()
        here.discard(number)
        said = "replaced" if 1 in here else "own" + "!" * (0 in here)
        assert Owner().own() == said + "!" * (2 in here)
    assert vars(Owner)["own"] is before
    assert active_patches() == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12), st.integers(0, 2**32))
def test_whoever_patches_what_and_leaves_when_everything_is_as_before(laid, seed):
    owner = SimpleNamespace(a=str, b=repr)
    before = dict(vars(owner))
    sets, order = [], list(range(len(laid)))
    random.shuffle(order)  # before anything is patched: hypothesis may end an example while it draws
    for name, wraps in laid:
        patches = Patches("a test")
        if wraps and hasattr(owner, name):
            patches.wrap(owner, name, lambda below: lambda value: below(value))
        else:
            patches.replace(owner, name, len)
        sets.append(patches)
    random.Random(seed).shuffle(sets)
    for patches in sets:
        patches.undo()
    assert vars(owner) == before


def test_who_patched_on_top_of_us_keeps_what_they_put_there():
    before, patches = vars(Owner)["own"], Patches("a test")
    patches.wrap(Owner, "own", louder)
    ours = vars(Owner)["own"]
    Owner.own = lambda self: "theirs, over " + ours(self)
    patches.undo()
    assert Owner().own() == "theirs, over own!"
    Owner.own = before


def test_items_of_dicts_and_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    import os

    monkeypatch.setenv("MEMFIT_TEST", "before")
    table, patches = {"known": 1}, Patches("a test")
    patches.replace_item(table, "known", 2)
    patches.replace_item(table, "new", 3)
    patches.replace_item(os.environ, "MEMFIT_TEST", "during")
    patches.replace_item(os.environ, "MEMFIT_TEST_NEW", "during")
    assert table == {"known": 2, "new": 3}
    patches.undo()
    assert table == {"known": 1}
    assert os.environ["MEMFIT_TEST"] == "before"
    assert "MEMFIT_TEST_NEW" not in os.environ


def test_they_are_listed_with_who_and_why():
    patches = Patches("a test").because("it wants to see")
    patches.replace(Owner, "own", lambda self: "")
    patches.because("it adds").replace(Owner, "absent", 1)
    patches.because("kernels").implement("AutogradPrivateUse1", "one_hot", lambda *args: None)
    owner = f"{__name__}.Owner"
    assert active_patches() == sorted(
        [
            Patch(f"{owner}.own", "a test", "it wants to see"),
            Patch(f"{owner}.absent", "a test", "it adds", was_there=False),
            Patch("aten::one_hot for AutogradPrivateUse1", "a test", "kernels"),
        ],
        key=lambda patch: patch.place,
    )
    patches.undo()
    assert active_patches() == []


def test_undoing_never_stops_half_way():
    patches, done = Patches("a test"), []
    patches.finally_call(lambda: done.append("first"))
    patches.finally_call(lambda: 1 / 0)
    patches.replace(Owner, "own", None)
    with pytest.raises(ZeroDivisionError):
        patches.undo()
    assert done == ["first"]
    assert Owner().own() == "own"


def test_a_module_that_is_imported_later(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "memfit_late_module.py").write_text("def answer():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    patches = Patches("a test").because("it comes late")

    def take_over(module: ModuleType) -> None:
        patches.replace(module, "answer", lambda: 2)

    patches.when_imported("memfit_late_module", take_over)
    patches.because("something else")
    import memfit_late_module

    assert memfit_late_module.answer() == 2
    assert [patch.why for patch in active_patches()] == ["it comes late"]
    patches.undo()
    assert memfit_late_module.answer() == 1
    del sys.modules["memfit_late_module"]


def test_tracking_and_predicting_patch_the_same_places_and_leave_nothing():
    import memfit

    def build():
        with memfit.track(torch.nn.Linear(2, 2)):
            torch.ones(1, device="cuda")
        return lambda: torch.ones(1, device="cuda")

    empty_cache = torch.cuda.empty_cache
    memfit.predict(build, steps=1)
    assert torch.cuda.empty_cache is empty_cache
    assert active_patches() == []


class _Owner:
    def greet(self) -> str:
        return "hello"


def test_patches_can_be_set_aside_and_come_back_the_same():
    patches = Patches("a test")
    patches.wrap(_Owner, "greet", lambda greet: lambda self: greet(self) + "!")
    patches.replace(_Owner, "added", 1)
    shown = _Owner.greet
    with set_aside(lambda owner, name: owner is _Owner) as aside:
        assert _Owner().greet() == "hello"
        assert not hasattr(_Owner, "added")
        with aside.interrupted():
            assert _Owner().greet() == "hello!"
        with set_aside(lambda owner, name: owner is _Owner):
            assert _Owner().greet() == "hello"
        assert _Owner().greet() == "hello"
    assert _Owner.greet is shown
    assert _Owner.added == 1
    patches.undo()
    assert _Owner().greet() == "hello"


def test_what_is_patched_or_undone_meanwhile_counts_afterwards():
    first, second = Patches("one"), Patches("two")
    first.wrap(_Owner, "greet", lambda greet: lambda self: greet(self) + "1")
    with set_aside(lambda owner, name: owner is _Owner):
        second.wrap(_Owner, "greet", lambda greet: lambda self: greet(self) + "2")
        first.undo()
        assert _Owner().greet() == "hello"
    assert _Owner().greet() == "hello2"
    second.undo()
    assert _Owner().greet() == "hello"


def test_imports_happen_inside_of_a_context(tmp_path, monkeypatch):
    (tmp_path / "watched_by_a_test.py").write_text("import sys\nwas_inside = sys.modules['helpers'].is_inside\n")
    monkeypatch.syspath_prepend(tmp_path)
    import helpers

    @contextmanager
    def inside():
        helpers.is_inside = True
        yield
        helpers.is_inside = False

    patches = Patches("a test")
    patches.around_imports(("watched_by_",), inside)
    import watched_by_a_test

    patches.undo()
    assert watched_by_a_test.was_inside
    assert not helpers.is_inside
