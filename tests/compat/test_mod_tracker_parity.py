"""``ModTracker`` next to PyTorch's: names, parents, and when a user's hooks are called with what."""

import gc

import pytest
import torch
from helpers.tracker_readings import ModTracker, TorchModTracker
from torch import nn

KINDS = [TorchModTracker, ModTracker]


def model_of():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), nn.Linear(16, 4))


def shapes(value):
    """Nested tuples and lists with shapes in place of tensors."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return [shapes(item) for item in value] if isinstance(value, (tuple, list)) else value


def log_of(kind, model, x):
    """All calls of all hooks in a step: which, of which module, in which modules, with what."""
    tracker, log = kind(), []

    def note(name):
        def hook(module, *arguments):
            log.append((name, tracker.get_known_fqn(module), tracker.is_bw, set(tracker.parents), shapes(arguments)))

        return hook

    tracker.register_user_hooks(*(note(name) for name in ("pre_fw", "post_fw", "pre_bw", "post_bw")))
    with tracker:
        model(x).sum().backward()
    return log


@pytest.mark.parametrize("requires_grad", [False, True])
def test_hooks_are_called_in_the_same_order_with_the_same_arguments(requires_grad):
    theirs, ours = (log_of(kind, model_of(), torch.randn(5, 8, requires_grad=requires_grad)) for kind in KINDS)
    assert len(ours) == 4 * 7  # four hooks on each module
    for expected, found in zip(theirs, ours, strict=True):
        name, module, is_backward, parents, arguments = found
        assert (name, module, is_backward, arguments) == (*expected[:3], expected[4])
        assert {"Global", module} <= parents
        if not is_backward:
            assert parents == expected[3]


def test_a_module_called_twice_has_its_hooks_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(self.layer(x))

    theirs, ours = (log_of(kind, Twice(), torch.randn(5, 8)) for kind in KINDS)
    assert [entry[:3] for entry in ours] == [entry[:3] for entry in theirs]


class Probe(torch.autograd.Function):
    """Calls a function when it runs, in forward and in backward."""

    @staticmethod
    def forward(ctx, x, probe):
        ctx.probe = probe
        probe()
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.probe()
        return gradient.clone(), None


class Probed(nn.Module):
    def __init__(self, probe):
        super().__init__()
        self.layer, self.probe = nn.Linear(8, 8), probe

    def forward(self, x):
        return Probe.apply(self.layer(x), self.probe)


def seen_by(kind, make_model):
    """Whether backward runs, and the parents, at each probe in a model."""
    tracker, seen = kind(), []
    model = make_model(lambda: seen.append((tracker.is_bw, set(tracker.parents))))
    with tracker:
        model(torch.randn(5, 8)).sum().backward()
    assert tracker.parents == {"Global"}
    return seen


def test_parents_in_backward_are_those_of_forward():
    theirs, ours = (seen_by(kind, lambda probe: nn.Sequential(*(Probed(probe) for _ in range(3)))) for kind in KINDS)
    around = [{"Global", "Sequential", f"Sequential.{i}"} for i in range(3)]
    assert ours == [(False, parents) for parents in around] + [(True, parents) for parents in reversed(around)]
    assert theirs == ours


def test_parents_of_branches_whose_inputs_need_no_gradient():
    """PyTorch takes them to run until all of backward is over."""

    class Branches(nn.Module):
        def __init__(self, probe):
            super().__init__()
            self.left, self.right = Probed(probe), Probed(probe)

        def forward(self, x):
            return self.left(x) + self.right(x)

    theirs, ours = (seen_by(kind, Branches) for kind in KINDS)
    left, right = ({"Global", "Branches", f"Branches.{name}"} for name in ("left", "right"))
    assert ours == [(False, left), (False, right), (True, right), (True, left)]
    assert theirs[:3] == ours[:3]
    assert theirs[3][1] > left | right


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_known_once_a_model_was_called(kind):
    model = model_of()
    with kind() as tracker:
        assert tracker.get_known_fqn(model) is None
        model(torch.randn(5, 8))
    assert [tracker.get_known_fqn(module) for module in model.modules()] == [
        "Sequential", "Sequential.0", "Sequential.1", "Sequential.2", "Sequential.2.0", "Sequential.2.1", "Sequential.3"
    ]  # fmt: skip
    assert tracker.get_known_fqn(nn.ReLU()) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["pre_fw_hook", "post_fw_hook", "pre_bw_hook", "post_bw_hook"])
def test_one_hook_at_a_time(kind, name):
    tracker, calls = kind(), []
    tracker.register_user_hooks(**{name: lambda *args: calls.append(args)})
    with pytest.raises(AssertionError, match=f"Only one {name} can be registered at a time"):
        tracker.register_user_hooks(**{name: print})
    tracker.clear_user_hooks()
    tracker.register_user_hooks(**{name: lambda *args: calls.append(name)})
    with tracker:
        nn.Linear(8, 8)(torch.randn(2, 8)).sum().backward()
        assert calls == [name]
        tracker.clear_user_hooks()
        nn.Linear(8, 8)(torch.randn(2, 8)).sum().backward()
    assert calls == [name]


@pytest.mark.parametrize("kind", KINDS)
def test_registering_again_forgets_hooks_that_are_not_named(kind):
    tracker, calls = kind(), []
    tracker.register_user_hooks(pre_fw_hook=lambda *args: calls.append("pre_fw"))
    tracker.register_user_hooks(post_fw_hook=lambda *args: calls.append("post_fw"))
    with tracker:
        nn.ReLU()(torch.randn(2))
    assert calls == ["post_fw"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["pre_fw_hook", "post_fw_hook"])
@pytest.mark.filterwarnings("ignore:global module forward hook")  # PyTorch's
def test_an_error_in_a_hook_is_the_users_to_see(kind, name):
    def fail(*args):
        raise KeyError("mine")

    tracker, model = kind(), model_of()
    tracker.register_user_hooks(**{name: fail})
    with tracker, pytest.raises(KeyError, match="mine"):
        model(torch.randn(5, 8))
    if kind is ModTracker:  # PyTorch's still has the modules that a hook after forward failed in
        assert tracker.parents == {"Global"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_forward(kind):
    tracker, model = kind(), model_of()
    with tracker:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(torch.randn(5, 9))
        assert tracker.parents == {"Global"}
        model(torch.randn(5, 8)).sum().backward()
    assert tracker.parents == {"Global"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_that_is_gone_when_its_backward_runs(kind):
    tracker, seen = kind(), []
    tracker.register_user_hooks(pre_bw_hook=lambda module, gradients: seen.append(module))
    with tracker:
        out = nn.Linear(8, 8)(torch.randn(2, 8))
        gc.collect()
        out.sum().backward()
    assert seen == [None]


def test_a_forward_without_gradients_has_no_backward():
    """PyTorch calls its hook in the next backward, whosever that is."""

    def calls_of(kind):
        tracker, calls = kind(), []
        evaluated, trained = nn.Linear(8, 8), nn.Linear(8, 8)
        tracker.register_user_hooks(post_bw_hook=lambda module, gradients: calls.append(module is trained))
        with tracker:
            with torch.no_grad():
                evaluated(torch.randn(2, 8))
            trained(torch.randn(2, 8)).sum().backward()
        return calls

    assert calls_of(ModTracker) == [True]
    assert calls_of(TorchModTracker) == [True, False]


def test_hooks_are_silent_after_the_tracker():
    tracker, calls = ModTracker(), []
    tracker.register_user_hooks(*(lambda *args: calls.append(args) for _ in range(4)))
    model = model_of()
    with tracker:
        out = model(torch.randn(5, 8))
    calls.clear()
    out.sum().backward()
    model(torch.randn(5, 8))
    assert calls == []


@pytest.mark.parametrize("kind", KINDS)
def test_it_may_be_left_without_arguments(kind):
    """PyTorch's RuntimeEstimator does so."""
    tracker = kind()
    tracker.__enter__()
    tracker.__exit__()
    nn.ReLU()(torch.randn(2))
    assert tracker.parents == {"Global"}


@pytest.mark.parametrize("kind", KINDS)
def test_parents_are_one_set_that_callers_may_change(kind):
    seen, tracker = [], kind()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ReLU()

        def forward(self, x):
            parents = tracker.parents
            parents.add("mine")
            x = self.inner(x)
            seen.append((parents is tracker.parents, set(tracker.parents)))
            return x

    def inside(module, inputs):
        seen.append(set(tracker.parents))

    tracker.register_user_hooks(pre_fw_hook=inside)
    x = torch.randn(2, requires_grad=True)
    with tracker:
        loss = Outer()(x).sum()
        assert tracker.parents == {"Global", "mine"}
        tracker.parents = {"Global", "yours"}
        assert tracker.parents == {"Global", "yours"}
        x.register_hook(lambda gradient: seen.append("yours" in tracker.parents))
        loss.backward()
        assert tracker.parents == {"Global"}  # the end of backward takes away what others added
    assert seen == [
        {"Global", "Outer"},
        {"Global", "Outer", "Outer.inner", "mine"},
        (True, {"Global", "Outer", "mine"}),
        True,
    ]


def test_it_has_no_public_names_that_pytorchs_has_not():
    def public(kind):
        return {name for name in dir(kind()) if not name.startswith("_")}

    assert public(ModTracker) == public(TorchModTracker)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo asks every tensor for it
@pytest.mark.filterwarnings("ignore:Using `torch.compile")  # of PyTorch's, which has global hooks
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_modules_are_passed_over(kind):
    """What a compiled module calls is traced once, and not called again: neither can say which of its modules runs."""
    entered, tracker = [], kind()
    tracker.register_user_hooks(pre_fw_hook=lambda module, inputs: entered.append(type(module).__name__))
    plain, compiled = nn.Sequential(nn.Linear(4, 4)), torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
    with tracker:
        for _ in range(2):
            compiled(plain(torch.randn(2, 4))).sum().backward()
            assert tracker.parents == {"Global"}
    assert entered == 2 * ["Sequential", "Linear"]
