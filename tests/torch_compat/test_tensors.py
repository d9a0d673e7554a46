"""Making tensors and exchanging their insides, as memfit does it."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

from memfit.torch_compat.tensors import (
    GeneratorBase,
    TensorBase,
    below_transforms,
    empty_strided,
    forbid_writing_by_pointer,
    is_traceable_wrapper_subclass,
    make_tensor_subclass,
    make_wrapper_subclass,
    swap_insides,
)


class Named(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


def test_tensors_are_made():
    assert empty_strided((2, 3), (3, 1)).shape == (2, 3)
    assert type(make_tensor_subclass(Named, torch.ones(2))) is Named
    wrapper = make_wrapper_subclass(Named, (2,), dtype=torch.float32, device="cpu")
    assert (type(wrapper), wrapper.shape) == (Named, (2,))


def test_insides_are_exchanged():
    one, two = torch.zeros(1), torch.ones(2)
    swap_insides(one, two)
    assert (one.tolist(), two.tolist()) == ([1, 1], [0])


def test_writing_by_pointer_is_forbidden():
    tensor = torch.ones(1)
    forbid_writing_by_pointer(tensor)
    with pytest.raises(RuntimeError):
        tensor.data_ptr()


def test_the_base_answers_as_torch_made_it():
    assert TensorBase.device.__get__(torch.ones(1)) == torch.device("cpu")
    assert TensorBase.get_device(torch.ones(1)) == -1
    assert isinstance(torch.Generator(), GeneratorBase)


def test_plain_tensors_are_not_made_of_others():
    assert not is_traceable_wrapper_subclass(torch.ones(1))


def test_what_a_transform_is_at_work_on():
    seen = []

    def f(x):
        seen.append(below_transforms(x).shape)
        return (x * x).sum()

    vmap(grad(f))(torch.ones(4, 3))
    assert seen == [(4, 3)]
    plain = torch.ones(2)
    assert below_transforms(plain) is plain
