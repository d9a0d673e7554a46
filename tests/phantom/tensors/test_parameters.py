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


def test_a_state_dict_is_copied_storage_by_storage():
    """Weights that are tied are one copy, and of a view the whole is copied, as torch does it."""
    with phantom():
        model = nn.ModuleList([nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)]).cuda()
        model[1].weight = model[0].weight
        tied = copy.deepcopy(model.state_dict())
        assert len({weight.untyped_storage()._cdata for weight in tied.values()} - {model[0].weight.untyped_storage()._cdata}) == 1
        assert [tuple(weight.shape) for weight in tied.values()] == [(64, 32), (64, 32)]
        rows = copy.deepcopy(list(torch.ones(8, 32, device="cuda").split(4)))
        assert rows[0].untyped_storage()._cdata == rows[1].untyped_storage()._cdata
        assert [(row.storage_offset(), row.untyped_storage().nbytes()) for row in rows] == [(0, 1024), (128, 1024)]
        lengths = copy.deepcopy(torch.tensor([3, 4], device="cuda"))
        assert lengths.tolist() == [3, 4]
