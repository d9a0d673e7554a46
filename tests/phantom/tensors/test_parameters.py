"""Modules and parameters on the phantom GPU."""

from __future__ import annotations

import copy

import torch
from helpers.phantom_worlds import phantom
from torch import nn


def test_copies_of_models_have_memory_of_their_own():
    with phantom():
        model = nn.Linear(4, 4).cuda()
        model.weight.grad = torch.ones_like(model.weight)
        copied = copy.deepcopy(model)
        assert isinstance(copied.weight, nn.Parameter)
        assert copied.weight.untyped_storage()._cdata != model.weight.untyped_storage()._cdata
        assert copied.weight.grad.shape == (4, 4)
        tied = copy.deepcopy([model.weight, model.weight])
        assert tied[0] is tied[1]
