"""What the host spends on issuing work: microseconds for each call, with kernels so small that the GPU waits for Python.

``CASES[name]()`` makes a case on ``device``: a function, and how many units of work it does (operators, parameters, layers).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

Case = tuple[Callable[[], Any], int]
CASES: dict[str, Callable[[str], Case]] = {}
REPEATS = 100


def case(name: str) -> Callable[[Callable[[str], Case]], Callable[[str], Case]]:
    def keep(make: Callable[[str], Case]) -> Callable[[str], Case]:
        CASES[name] = make
        return make

    return keep


def microseconds(function: Callable[[], Any], units: int, device: str, most_seconds: float = 0.25) -> float:
    """The median of several rounds, for one unit."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        function()
    wait()
    rounds, began = [], time.perf_counter()
    while len(rounds) < 5 or (time.perf_counter() - began < most_seconds and len(rounds) < 200):
        wait()
        start = time.perf_counter()
        function()
        rounds.append(time.perf_counter() - start)
    return 1e6 * sorted(rounds)[len(rounds) // 2] / units


def repeated(function: Callable[[], Any], count: int = REPEATS) -> Case:
    def work() -> None:
        for _ in range(count):
            function()

    return work, count


OPERATORS: dict[str, tuple[Callable[..., Any], str]] = {
    "mul": (lambda x, w: x * x, ""),
    "add scalar": (lambda x, w: x + 1, ""),
    "view": (lambda x, w: x.view(-1), ""),
    "transpose": (lambda x, w: x.transpose(0, 1), ""),
    "to": (lambda x, w: x.to(torch.bfloat16), ""),
    "to nothing": (lambda x, w: x.to(torch.float32), ""),
    "sum": (lambda x, w: x.sum(-1), ""),
    "mm": (lambda x, w: torch.mm(x, w), ""),
    "linear": (lambda x, w: F.linear(x, w), ""),
    "bmm": (lambda x, w: torch.bmm(x[None], w[None]), ""),
    "matmul 3d": (lambda x, w: x[None] @ w, ""),
    "layer_norm": (lambda x, w: F.layer_norm(x, (64,)), ""),
    "softmax": (lambda x, w: x.softmax(-1), ""),
    "cat": (lambda x, w: torch.cat((x, x)), ""),
    "chunk": (lambda x, w: x.chunk(2), ""),
    "silu": (lambda x, w: F.silu(x), ""),
    "dropout": (lambda x, w: F.dropout(x), ""),
    "clone": (lambda x, w: x.clone(), ""),
    "mul_ in place": (lambda x, w: w.data.mul_(1.0), ""),
    "empty": (lambda x, w: torch.empty(64, 64, device=x.device), ""),
    "attention": (lambda x, w: F.scaled_dot_product_attention(*(x.view(1, 4, 16, 64).to(torch.bfloat16),) * 3), ""),
    "cross_entropy": (lambda x, w: F.cross_entropy(x, torch.zeros(64, dtype=torch.long, device=x.device)), ""),
}


def _operator(function: Callable[..., Any], grad: bool) -> Callable[[str], Case]:
    def make(device: str) -> Case:
        x, w = (torch.randn(64, 64, device=device, requires_grad=grad) for _ in range(2))
        return repeated(lambda: function(x, w))

    return make


for _name, (_function, _) in OPERATORS.items():
    CASES[f"operator {_name}"] = _operator(_function, False)
    CASES[f"operator {_name} with grad"] = _operator(_function, True)


def _backward(function: Callable[..., Any]) -> Callable[[str], Case]:
    """A chain of one operator: what one node of backward costs."""

    def make(device: str) -> Case:
        w = torch.randn(64, 64, device=device, requires_grad=True)
        x = torch.randn(64, 64, device=device, requires_grad=True)
        y = x
        for _ in range(REPEATS):
            y = function(y, w)
        grad = torch.ones_like(y)
        return lambda: torch.autograd.grad([y], [x, w], [grad], retain_graph=True, allow_unused=True), REPEATS

    return make


CASES["backward mul scalar"] = _backward(lambda x, w: x * 1.5)
CASES["backward mul"] = _backward(lambda x, w: x * w)
CASES["backward linear"] = _backward(lambda x, w: F.linear(x, w))
CASES["backward silu"] = _backward(lambda x, w: F.silu(x))
CASES["backward view"] = _backward(lambda x, w: x.view(64, 64))
CASES["backward layer_norm"] = _backward(lambda x, w: F.layer_norm(x, (64,), w[0], w[1]))


@case("python loop of 1000")
def _loop(device: str) -> Case:
    def work() -> None:
        for _ in range(100_000):
            pass

    return work, 100


class Plain(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


def _module(prepare: Callable[[nn.Module], Any]) -> Callable[[str], Case]:
    def make(device: str) -> Case:
        module = Plain()
        prepare(module)
        x = torch.randn(8, 8, device=device, requires_grad=True)
        return repeated(lambda: module(x))

    return make


CASES["module"] = _module(lambda module: None)
CASES["module with a forward hook"] = _module(lambda module: module.register_forward_hook(lambda *a: None))
CASES["module with two hooks"] = _module(
    lambda module: (module.register_forward_pre_hook(lambda *a: None), module.register_forward_hook(lambda *a: None))
)


@case("module linear")
def _linear(device: str) -> Case:
    layer, x = nn.Linear(64, 64, bias=False, device=device), torch.randn(64, 64, device=device)
    return repeated(lambda: layer(x))


@case("module linear under autocast, casts cached")
def _linear_autocast(device: str) -> Case:
    layer, x = nn.Linear(64, 64, bias=False, device=device), torch.randn(64, 64, device=device)

    def work() -> None:
        with torch.autocast(device, torch.bfloat16):
            for _ in range(REPEATS):
                layer(x)

    return work, REPEATS


@case("module linear under autocast, casts not cached")
def _linear_autocast_new(device: str) -> Case:
    layers = [nn.Linear(64, 64, bias=False, device=device) for _ in range(REPEATS)]
    x = torch.randn(64, 64, device=device)

    def work() -> None:
        with torch.autocast(device, torch.bfloat16):
            for layer in layers:
                layer(x)

    return work, REPEATS


@case("checkpoint forward")
def _checkpoint(device: str) -> Case:
    x = torch.randn(64, 64, device=device, requires_grad=True)
    return repeated(lambda: checkpoint(lambda y: y * 2, x, use_reentrant=False))


@case("checkpoint forward and backward")
def _checkpoint_backward(device: str) -> Case:
    x = torch.randn(64, 64, device=device, requires_grad=True)
    grad = torch.ones(64, 64, device=device)
    return repeated(lambda: torch.autograd.grad(checkpoint(lambda y: y * 2, x, use_reentrant=False), x, grad), 20)


@case("one backward of one operator")
def _one_backward(device: str) -> Case:
    x, grad = torch.randn(64, 64, device=device, requires_grad=True), torch.ones(64, 64, device=device)
    return repeated(lambda: torch.autograd.grad(x * 2, x, grad), 20)


@case("leaf gradient")
def _leaves(device: str) -> Case:
    leaves = [torch.randn(64, 64, device=device, requires_grad=True) for _ in range(REPEATS)]

    def work() -> None:
        for leaf in leaves:
            leaf.grad = None
        total = leaves[0] * 2
        for leaf in leaves[1:]:
            total = total + leaf
        total.backward(torch.ones(64, 64, device=device))

    return work, REPEATS


@case("item")
def _item(device: str) -> Case:
    x = torch.ones((), device=device)
    return repeated(lambda: x.item())


@case("synchronize")
def _synchronize(device: str) -> Case:
    return repeated(torch.cuda.synchronize if device == "cuda" else lambda: None)


@case("event record")
def _event(device: str) -> Case:
    if device != "cuda":
        return repeated(lambda: None)
    event = torch.cuda.Event()
    return repeated(event.record)


@case("change of stream")
def _stream(device: str) -> Case:
    if device != "cuda":
        return repeated(lambda: None)
    side = torch.cuda.Stream()

    def work() -> None:
        with torch.cuda.stream(side):
            pass

    return repeated(work)


# -- optimizers ----------------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "adamw loop": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-4),
}


def _leaves_with_gradients(count: int, device: str) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.randn(32, 32, device=device)) for _ in range(count)]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def _optimizer(name: str, count: int) -> Callable[[str], Case]:
    def make(device: str) -> Case:
        stepper = OPTIMIZERS[name](_leaves_with_gradients(count, device))
        stepper.step()
        return stepper.step, 1

    return make


for _name in OPTIMIZERS:
    for _count in (10, 150, 300):
        CASES[f"optimizer {_name}, {_count} parameters"] = _optimizer(_name, _count)


def _clip(count: int) -> Callable[[str], Case]:
    def make(device: str) -> Case:
        made = _leaves_with_gradients(count, device)
        return lambda: nn.utils.clip_grad_norm_(made, 1.0), 1

    return make


CASES["clip_grad_norm_, 10 parameters"] = _clip(10)
CASES["clip_grad_norm_, 150 parameters"] = _clip(150)

# -- tensors on the host itself: optimizers of offloaded models -------------------------------------------------------------------

HOST_OPERATORS: dict[str, Callable[..., Any]] = {
    "mul_": lambda x, y: x.mul_(0.999),
    "lerp_": lambda x, y: x.lerp_(y, 0.1),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=0.001),
    "addcdiv_": lambda x, y: x.addcdiv_(y, y, value=0.001),
    "sqrt": lambda x, y: y.sqrt(),
    "add": lambda x, y: x + y,
    "copy_": lambda x, y: x.copy_(y),
    "sum": lambda x, y: x.sum(),
}


def _on_host(function: Callable[..., Any], count: int) -> Callable[[str], Case]:
    def make(device: str) -> Case:
        x, y = torch.rand(count), torch.rand(count)
        return lambda: function(x, y), 1

    return make


for _name, _function in HOST_OPERATORS.items():
    for _exponent in (10, 16, 20, 24):
        CASES[f"on the host: {_name} of 2**{_exponent}"] = _on_host(_function, 2**_exponent)

# -- one rank of eight, whose collectives do nothing ------------------------------------------------------------------------------


def begin_world(size: int = 8) -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)


def _distributed(device: str, count: int) -> list[nn.Parameter]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    begin_world()
    mesh = init_device_mesh(device, (8,))
    made = []
    for _ in range(count):
        parameter = nn.Parameter(distribute_tensor(torch.randn(64, 32, device=device), mesh, [Shard(0)]))
        parameter.grad = torch.randn_like(parameter)
        made.append(parameter)
    return made


@case("distributed tensor: mul")
def _distributed_mul(device: str) -> Case:
    (x,) = _distributed(device, 1)
    x = x.detach()
    return repeated(lambda: x * 2)


@case("distributed tensor: mul with grad")
def _distributed_mul_grad(device: str) -> Case:
    (x,) = _distributed(device, 1)
    return repeated(lambda: x * 2)


for _name in OPTIMIZERS:
    for _count in (10, 150):

        def _sharded(device: str, name: str = _name, count: int = _count) -> Case:
            stepper = OPTIMIZERS[name](_distributed(device, count))
            stepper.step()
            return stepper.step, 1

        CASES[f"distributed tensors: optimizer {_name}, {_count} parameters"] = _sharded


def _clip_distributed(count: int) -> Callable[[str], Case]:
    def make(device: str) -> Case:
        made = _distributed(device, count)
        return lambda: nn.utils.clip_grad_norm_(made, 1.0), 1

    return make


CASES["distributed tensors: clip_grad_norm_, 10 parameters"] = _clip_distributed(10)
CASES["distributed tensors: clip_grad_norm_, 150 parameters"] = _clip_distributed(150)


class Layer(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(64, 64)) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x * weight
        return x


def _layers(kind: str, num_layers: int, num_parameters: int) -> Callable[[str], Case]:
    def make(device: str) -> Case:
        begin_world()
        layers: list[Any] = [Layer(num_parameters).to(device) for _ in range(num_layers)]
        model: Any = nn.Sequential(*layers)
        if kind == "fsdp2":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(device, (8,))
            for layer in layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        elif kind == "fsdp1":
            from torch.distributed.fsdp import FullyShardedDataParallel
            from torch.distributed.fsdp.wrap import ModuleWrapPolicy

            model = FullyShardedDataParallel(
                model, auto_wrap_policy=ModuleWrapPolicy({Layer}), use_orig_params=True, device_id=torch.device(device, 0)
            )
        x = torch.randn(64, 64, device=device)

        def work() -> None:
            model(x).sum().backward()
            model.zero_grad()

        return work, 1

    return make


for _kind in ("plain", "fsdp2", "fsdp1"):
    for _sizes in ((4, 1), (12, 1), (4, 9), (12, 9)):
        CASES[f"{_kind}: forward and backward of {_sizes[0]} layers with {_sizes[1]} parameters"] = _layers(_kind, *_sizes)


@case("collective of a group that does nothing")
def _collective(device: str) -> Case:
    import torch.distributed as dist

    begin_world()
    x = torch.randn(64, 64, device=device)
    return repeated(lambda: dist.all_reduce(x))
