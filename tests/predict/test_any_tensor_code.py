"""Tensor code of every kind: predicted without workspaces, it takes what the same code takes on the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap

import memfit
from memfit.errors import StepFailedError
from memfit.ledger import Category, EventKind, Ledger


def peak_of_tensors(ledger: Ledger, device: str) -> int:
    """The most bytes in use by anything but workspaces."""
    number = [known.name for known in ledger.devices].index(device)
    is_workspace = set(ledger.roles.block[ledger.roles.role == Category.WORKSPACE].tolist())
    sizes: dict[int, int] = {}
    peak = 0
    events = ledger.events
    for kind, block, size in zip(events.kind.tolist(), events.subject.tolist(), events.size.tolist(), strict=True):
        is_memory = kind in (EventKind.ALLOC, EventKind.RESIZE, EventKind.FREE)
        if is_memory and ledger.blocks.device[block] == number and block not in is_workspace:
            sizes[block] = size
            peak = max(peak, sum(sizes.values()))
    return peak


def per_sample_gradients(device: str) -> Callable[[], object]:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10)).to(device)
    parameters = dict(model.named_parameters())
    x, y = torch.ones(32, 3, 16, 16, device=device), torch.zeros(32, dtype=torch.int64, device=device)

    def loss(given, sample, target):
        return F.cross_entropy(functional_call(model, given, (sample.unsqueeze(0),)), target.unsqueeze(0))

    return lambda: vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)


def in_chunks(device: str) -> Callable[[], object]:
    model, x = nn.Linear(64, 64).to(device), torch.ones(32, 64, device=device)
    loss = grad(lambda given, sample: functional_call(model, given, (sample,)).sum())
    return lambda: vmap(loss, in_dims=(None, 0), chunk_size=8)(dict(model.named_parameters()), x)


def second_derivatives(device: str) -> Callable[[], object]:
    weight, x = torch.ones(64, 64, device=device), torch.ones(64, device=device)
    return lambda: (jacrev(lambda v: torch.tanh(weight @ v))(x), hessian(lambda v: torch.tanh(weight @ v).sum())(x))


def forward_mode(device: str) -> Callable[[], object]:
    model, x = nn.Linear(64, 64).to(device), torch.ones(64, 64, device=device)
    given = dict(model.named_parameters())
    tangents = {name: torch.ones_like(value) for name, value in given.items()}
    return lambda: jvp(lambda parameters: functional_call(model, parameters, (x,)), (given,), (tangents,))


def ensemble(device: str) -> Callable[[], object]:
    models, x = [nn.Linear(64, 64).to(device) for _ in range(4)], torch.ones(8, 64, device=device)
    stacked = stack_module_state(models)
    return lambda: vmap(lambda given, x: functional_call(models[0], given, (x,)), in_dims=(0, None))(stacked, x)


def double_backward(device: str) -> Callable[[], object]:
    weight, x = torch.ones(64, 64, device=device, requires_grad=True), torch.ones(64, 64, device=device)

    def step():
        (first,) = torch.autograd.grad((torch.tanh(x @ weight) ** 2).sum(), weight, create_graph=True)
        first.pow(2).sum().backward()
        weight.grad = None

    return step


def sparse_gradient(optimizer: type[torch.optim.Optimizer], bag: bool) -> Callable[[str], Callable[[], object]]:
    def make(device: str) -> Callable[[], object]:
        table = (nn.EmbeddingBag if bag else nn.Embedding)(1000, 16, sparse=True, device=device)
        stepper = optimizer(table.parameters(), lr=0.1)  # type: ignore[call-arg]
        tokens = torch.arange(64, device=device).view(8, 8)

        def step():
            table(tokens).sum().backward()
            stepper.step()
            stepper.zero_grad()

        return step

    return make


def sparse_product(device: str) -> Callable[[], object]:
    indices, values = torch.tensor([[0, 1, 2], [2, 0, 1]], device=device), torch.ones(3, device=device, requires_grad=True)
    dense = torch.ones(3, 64, device=device, requires_grad=True)

    def step():
        torch.sparse.mm(torch.sparse_coo_tensor(indices, values, (3, 3), check_invariants=False), dense).sum().backward()

    return step


def jagged(device: str) -> Callable[[], object]:
    layer = nn.Linear(32, 32, device=device)
    parts = [torch.ones(3, 32, device=device), torch.ones(5, 32, device=device)]

    def step():
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
        F.relu(layer(nested)).values().sum().backward()
        layer.zero_grad()

    return step


def complex_numbers(device: str) -> Callable[[], object]:
    x = torch.ones(2, 8, 4, 16, device=device, requires_grad=True)
    turns = torch.polar(torch.ones(8, 8, device=device), torch.ones(8, 8, device=device))

    def step():
        turned = torch.view_as_complex(x.reshape(2, 8, 4, 8, 2)) * turns.view(1, 8, 1, 8)
        (torch.view_as_real(turned).sum() + torch.fft.irfft(torch.fft.rfft(x)).sum() + torch.fft.fftn(x).abs().sum()).backward()

    return step


def own_function(device: str) -> Callable[[], object]:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = x.exp()
            return ctx.kept * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.kept

    x = torch.ones(64, 64, device=device, requires_grad=True)
    return lambda: Twice.apply(x).sum().backward()


def freed_in_a_hook(device: str) -> Callable[[], object]:
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to(device), torch.ones(64, 64, device=device)

    def update(parameter: torch.Tensor) -> None:
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return lambda: model(x).sum().backward()


def fake_quantisation(device: str) -> Callable[[], object]:
    x = torch.ones(64, 64, device=device, requires_grad=True)
    return lambda: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127).sum().backward()


CASES = {
    "per_sample_gradients": per_sample_gradients,
    "in_chunks": in_chunks,
    "second_derivatives": second_derivatives,
    "forward_mode": forward_mode,
    "ensemble": ensemble,
    "double_backward": double_backward,
    "sparse_adam": sparse_gradient(torch.optim.SparseAdam, bag=False),
    "sparse_sgd": sparse_gradient(torch.optim.SGD, bag=False),
    "sparse_bag": sparse_gradient(torch.optim.SGD, bag=True),
    "sparse_product": sparse_product,
    "jagged": jagged,
    "complex_numbers": complex_numbers,
    "own_function": own_function,
    "freed_in_a_hook": freed_in_a_hook,
    "fake_quantisation": fake_quantisation,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is (deprecated|not supported)")  # torch's own, for forward mode
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")  # torch 2.11, also if said
@pytest.mark.parametrize("name", CASES)
def test_the_prediction_is_what_the_host_records(name: str):
    with memfit.track() as tracker:
        CASES[name]("cpu")()
    recorded = tracker.ledger.check()
    predicted = memfit.predict(lambda: CASES[name]("cuda"), steps=1).ledger.check()
    assert recorded.info.complete
    assert predicted.info.complete
    assert peak_of_tensors(predicted, "cuda:0") == peak_of_tensors(recorded, "cpu")


def test_the_branch_that_is_taken_is_seen():
    def build():
        x = torch.ones(1024, device="cuda")
        yes = torch.tensor(True, device="cuda")
        kept = []

        def step():
            kept.append(torch.cond(yes, lambda x: x.exp().sin(), lambda x: x, (x,)))

        return step

    ledger = memfit.predict(build, steps=1).ledger
    assert {"aten.exp.default", "aten.sin.default"} <= {ledger.strings[op] for op in ledger.blocks.op}


def test_what_nobody_knows_is_refused_by_name():
    library = torch.library.Library("memfit_tests", "FRAGMENT")
    library.define("nobody_knows(Tensor x) -> Tensor")

    def build():
        x = torch.ones(64, device="cuda")
        return lambda: torch.ops.memfit_tests.nobody_knows(x)

    with pytest.raises(StepFailedError, match="the operator memfit_tests::nobody_knows needs a real GPU"):
        memfit.predict(build, steps=1)
