"""Which storages hold a tensor's bytes, as PyTorch's tools say it."""

import pytest
import torch
from torch.distributed._tools.common_utils import get_untyped_storages as theirs
from torch.distributed.tensor import DTensor, Replicate

from memfit.compat import get_untyped_storages


def test_plain_tensors_and_views():
    x = torch.ones(3, 4)
    assert get_untyped_storages(x) == get_untyped_storages(x.t()[1:]) == theirs(x) == {x.untyped_storage()}


def test_subclasses_have_those_of_their_parts(world):
    local = torch.ones(4)
    x = DTensor.from_local(local, world, [Replicate()])
    assert get_untyped_storages(x) == theirs(x)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert get_untyped_storages(nested) == theirs(nested)
    assert len(theirs(nested)) >= 2


def test_sparse_tensors_have_several():
    """PyTorch's raises."""
    x = torch.eye(3).to_sparse()
    assert get_untyped_storages(x) == {x._indices().untyped_storage(), x._values().untyped_storage()}


def test_what_is_no_tensor_has_none():
    with pytest.warns(UserWarning, match="takes a tensor"):
        assert get_untyped_storages(3) == set()
