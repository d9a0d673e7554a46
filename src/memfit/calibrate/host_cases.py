"""What the host spends on issuing work: microseconds of a call, with tensors so small that the card waits for Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

REPEATS: Final = 100
LONGEST: Final = 0.15
"""Seconds that a case may take, but for its first rounds."""

_OPERATORS: Final[dict[str, Callable[..., Any]]] = {
    "mul": lambda x, w: x * x,
    "view": lambda x, w: x.view(-1),
    "to": lambda x, w: x.to(torch.float16),
    "sum": lambda x, w: x.sum(-1),
    "mm": torch.mm,
    "layer_norm": lambda x, w: F.layer_norm(x, (64,)),
    "softmax": lambda x, w: x.softmax(-1),
    "cat": lambda x, w: torch.cat((x, x)),
    "silu": lambda x, w: F.silu(x),
    "dropout": lambda x, w: F.dropout(x),
    "clone": lambda x, w: x.clone(),
    "empty": lambda x, w: torch.empty(64, 64, device=x.device),
}


def measure_host(device: str) -> dict[str, float]:
    """Microseconds by case."""
    found = {}
    for name, function in _OPERATORS.items():
        for needs_grad in (False, True):
            x, w = (torch.randn(64, 64, device=device, requires_grad=needs_grad) for _ in range(2))
            found[f"operator {name}{' with grad' * needs_grad}"] = _microseconds(_loop(function, x, w), REPEATS, device)
    found["backward view"] = _microseconds(_backward(lambda x: x.view(64, 64), device), REPEATS, device)
    found["backward mul scalar"] = _microseconds(_backward(lambda x: x * 1.5, device), REPEATS, device)
    one = torch.ones((), device=device)
    found["item"] = _microseconds(lambda: [one.item() for _ in range(REPEATS)], REPEATS, device)
    for case, is_fused in {"optimizer adamw": False, "optimizer adamw fused": True}.items():
        for count in (10, 150):
            made = [nn.Parameter(torch.randn(32, 32, device=device)) for _ in range(count)]
            for parameter in made:
                parameter.grad = torch.randn_like(parameter)
            stepper = torch.optim.AdamW(made, lr=1e-4, fused=is_fused, foreach=not is_fused)
            found[f"{case}, {count} parameters"] = _microseconds(stepper.step, 1, device)
    return found


def _loop(function: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> Callable[[], Any]:
    def work() -> None:
        for _ in range(REPEATS):
            function(x, w)

    return work


def _backward(function: Callable[..., Any], device: str) -> Callable[[], Any]:
    """A chain of one operator: what a node of backward costs."""
    x = torch.randn(64, 64, device=device, requires_grad=True)
    y = x
    for _ in range(REPEATS):
        y = function(y)
    gradient = torch.ones_like(y)
    return lambda: torch.autograd.grad([y], [x], [gradient], retain_graph=True)


def _microseconds(function: Callable[[], Any], units: int, device: str) -> float:
    """The median of several rounds, for one unit."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        function()
    rounds: list[float] = []
    began = time.perf_counter()
    while len(rounds) < 5 or (time.perf_counter() - began < LONGEST and len(rounds) < 100):
        wait()
        start = time.perf_counter()
        function()
        rounds.append(time.perf_counter() - start)
    wait()
    return round(1e6 * sorted(rounds)[len(rounds) // 2] / units, 3)
