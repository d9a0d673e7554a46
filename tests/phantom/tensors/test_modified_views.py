"""Views that are changed in place: going back takes the memory that it takes with data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class MadeElements(TorchDispatchMode):
    """How many elements each operator makes, where it makes memory."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {arg.untyped_storage()._cdata for arg in args if isinstance(arg, torch.Tensor)}
        made = [each for each in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(each, torch.Tensor)]
        self.found += [each.numel() for each in made if each.untyped_storage()._cdata not in given]
        return result


def normed(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.leaky_relu(nn.functional.instance_norm(x), inplace=True)


def reshaped(x: torch.Tensor) -> torch.Tensor:
    return (2 * x).view(4, -1).tanh_()


def turned_and_added(x: torch.Tensor) -> torch.Tensor:
    y = (2 * x).transpose(0, 1)
    y += 1
    return y


def part(x: torch.Tensor) -> torch.Tensor:
    return (2 * x)[:, :2].relu_()


def base(x: torch.Tensor) -> torch.Tensor:
    y = 2 * x
    y.view(-1).relu_()
    return y


def made_going_back(change: Callable[[torch.Tensor], torch.Tensor], device: str) -> list[int]:
    x = torch.randn(2, 4, 6, 6, device=device, requires_grad=True)
    changed = change(x)
    loss = (changed * changed).sum()
    with MadeElements() as made:
        loss.backward()
    return made.found


@pytest.mark.parametrize("change", [normed, reshaped, turned_and_added, part, base])
def test_going_back_makes_what_it_makes_with_data(change: Callable[[torch.Tensor], torch.Tensor]):
    expected = made_going_back(change, "cpu")
    with phantom():
        assert made_going_back(change, "cuda") == expected
