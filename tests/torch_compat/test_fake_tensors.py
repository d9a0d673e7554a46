"""Fake tensors, as memfit uses them."""

from __future__ import annotations

import logging

import pytest
import torch

from memfit.torch_compat.fake_tensors import (
    FAKE_TENSOR_MODULE,
    LOGGER_NAME,
    SUBCLASSES_MODULE,
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
    device_handlers,
    device_query,
    fake_implementations,
    forget_fake_answers,
    is_unknown_shape,
    num_recalled_by_torch,
)


def test_the_question_for_the_device_is_answered_by_a_handler(monkeypatch: pytest.MonkeyPatch):
    asked = []
    original = device_handlers[device_query]
    monkeypatch.setitem(device_handlers, device_query, lambda args: asked.append(args) or original(args))
    with FakeTensorMode():
        x = torch.ones(1)
        assert torch.ops.prim.device(x) == torch.device("cpu")
    assert asked


def test_implementations_answer_what_only_data_can_tell():
    item = torch.ops.aten._local_scalar_dense.default
    with FakeTensorMode():
        x = torch.ones(1)
        with pytest.raises(DataDependentOutputException):
            fake_implementations[item](x.fake_mode, item, x)


def test_unknown_shapes_are_told_from_other_errors():
    with FakeTensorMode(), pytest.raises(Exception) as raised:  # noqa: PT011 (which one it is depends on the release)
        torch.ones(4).nonzero()
    assert is_unknown_shape(raised.value)
    assert not is_unknown_shape(RuntimeError("the size of tensor a must match"))


def test_answers_are_remembered_and_forgotten():
    def ask() -> int:
        with FakeTensorMode() as mode:
            x = mode.from_tensor(torch.ones(3))
            before = num_recalled_by_torch()
            x + x
            return num_recalled_by_torch() - before

    forget_fake_answers()
    assert (ask(), ask()) == (0, 1)
    forget_fake_answers()
    assert ask() == 0


def test_the_places_that_the_phantom_replaces():
    assert SUBCLASSES_MODULE.FakeTensor is FakeTensor
    assert FAKE_TENSOR_MODULE.init_gpu_context(torch.device("cpu")) is None
    assert logging.getLogger(LOGGER_NAME).name == FAKE_TENSOR_MODULE.__name__
