"""The autograd engine, as memfit uses it."""

import functools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from memfit.errors import UnsupportedTorchError
from memfit.torch_compat import autograd, versions


def test_graph_task_id_and_current_node():
    seen = []
    x = torch.ones(1, requires_grad=True)
    y = x.sin()
    y.register_hook(lambda g: seen.append((autograd.graph_task_id(), autograd.current_node())))
    y.backward()
    assert autograd.graph_task_id() == -1
    assert seen[0][0] >= 0
    assert type(seen[0][1]).__name__ == "SinBackward0"


def test_sequence_numbers_bracket_the_nodes_made_between():
    x = torch.ones(1, requires_grad=True)
    before = autograd.next_sequence_nr()
    y = x.sin()
    after = autograd.next_sequence_nr()
    assert before <= y.grad_fn._sequence_nr() < after
    assert y.grad_fn.next_functions[0][0]._sequence_nr() == autograd.LEAF_SEQUENCE_NR


def test_custom_functions_have_sequence_numbers():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append(autograd.current_node()._sequence_nr())
            return gradient * 2

    seen = []
    before = autograd.next_sequence_nr()
    Double.apply(torch.ones(1, requires_grad=True)).backward()
    assert before <= seen[0] < autograd.next_sequence_nr()


def test_a_call_after_backward_comes_after_those_that_others_asked_for():
    calls, task = [], []
    queue = torch.autograd.Variable._execution_engine.queue_callback

    def ask(gradient):
        autograd.call_after_backward(lambda: calls.append("ours"))
        queue(lambda: calls.append("theirs"))
        task.append(autograd.graph_task_id())

    x = torch.ones(1, requires_grad=True)
    y = x.sin()
    y.register_hook(ask)
    y.backward()
    assert calls == ["theirs", "ours"]
    assert task != [-1]


class Adds(TorchDispatchMode):
    """Collects, for each sum of gradients, who issued it and whether the engine alone holds the first."""

    def __init__(self):
        super().__init__()
        self.seen = []

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.add.Tensor and autograd.graph_task_id() != -1:
            self.look(args)
        return func(*args, **(kwargs or {}))

    def look(self, args):
        self.seen.append(
            (autograd.called_by_the_engine(self.__torch_dispatch__.__func__.__code__), autograd.held_by_the_engine_alone(args[0]))
        )


def test_sums_of_gradients_by_the_engine():
    autograd.calibrate()
    x = torch.ones(4, requires_grad=True)
    with Adds() as adds:
        (x.relu() + x.sigmoid()).sum().backward()
    assert adds.seen == [(True, True)]


def test_a_gradient_handed_out_twice_is_not_the_engines_alone():
    x = torch.ones(4, requires_grad=True)
    h = x.sin()
    with Adds() as adds:
        (h + h).sin().sum().backward()
    assert adds.seen == [(True, False)]


def test_a_pass_that_makes_a_graph_of_itself_adds_up_in_new_tensors():
    x = torch.ones(4, requires_grad=True)
    with Adds() as adds:
        torch.autograd.grad((x.relu() + x.sigmoid()).sum(), x, create_graph=True)
    assert adds.seen == [(True, False)]


def test_sums_in_a_python_backward_are_not_the_engines():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient + gradient

    with Adds() as adds:
        Twice.apply(torch.ones(4, requires_grad=True)).sum().backward()
    assert [by_engine for by_engine, _ in adds.seen] == [False]


def test_a_missing_part_is_named():
    with pytest.raises(UnsupportedTorchError, match=r"torch\._C\._no_such_thing") as caught:
        versions.need(torch._C, "_no_such_thing")
    assert torch.__version__ in str(caught.value)


def test_a_backward_pass_is_run_by_the_engine_that_is_replaced(monkeypatch):
    calls = []

    def run(*args, **kwargs):
        calls.append(1)
        return autograd.run_engine(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", run)
    torch.ones(1, requires_grad=True).sum().backward()
    assert calls


def test_what_is_not_kept_may_run_otherwise_when_it_runs_again():
    kept = torch.ops.aten.mm.default
    ran = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ran.append(func)
            return func(*args, **(kwargs or {}))

    def forward(x, weight):
        if autograd.graph_task_id() != -1:  # as FSDP2's hooks do, around experts
            with torch.profiler.record_function("gathered"):
                x = x + torch.zeros(())
        return torch.sin(torch.mm(x, weight)).exp()

    def gradient(contexts):
        x, weight = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
        options = {} if contexts is None else {"context_fn": contexts}
        checkpoint(forward, x, weight, use_reentrant=False, **options).sum().backward()
        return weight.grad

    expected = gradient(None)
    with Counting():
        found = gradient(lambda: autograd.contexts_that_keep(frozenset({kept})))
    assert torch.equal(found, expected)
    assert ran.count(kept) == 2, "in forward and for the gradient: its output was kept"
    assert ran.count(torch.ops.aten.sin.default) == 2, "it was computed again"


def test_a_kept_operator_that_forward_did_not_run_is_refused():
    def forward(x):
        if autograd.graph_task_id() != -1:
            torch.mm(x.detach(), x.detach())
        return torch.mm(x, x).sin()

    contexts = functools.partial(autograd.contexts_that_keep, frozenset({torch.ops.aten.mm.default}))
    x = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"not found in storage|backward an extra time"):  # the latter up to torch 2.11
        checkpoint(forward, x, use_reentrant=False, context_fn=contexts).sum().backward()
