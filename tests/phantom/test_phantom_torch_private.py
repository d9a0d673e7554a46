"""Each private part of torch that the phantom world leans on is where it is looked for."""

from __future__ import annotations

import pytest
import torch

from memfit.errors import UnsupportedTorchError
from memfit.phantom import torch_private


@pytest.mark.parametrize("name", torch_private.__all__)
def test_it_is_there(name: str):
    assert getattr(torch_private, name) is not None


def test_a_missing_part_is_named():
    with pytest.raises(UnsupportedTorchError, match=r"torch\._no_such_part"):
        torch_private.need(torch, "_no_such_part")


def test_the_functions_answer():
    assert torch_private.fake_store() is not None
    assert torch_private.modules_that_ask_for_tracing()
    assert torch_private.default_device_context() is None
    assert torch_private.graph_task_id() == -1
