"""Each private part of torch that memfit.fsdp leans on, by name: a new release of torch breaks a test with its name in it."""

import types

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from memfit.engines.fsdp1 import wrapping
from memfit.errors import UnsupportedTorchError
from memfit.torch_compat import fsdp
from memfit.torch_compat.patches import Patches
from memfit.torch_compat.versions import need


def test_checkpoint_wrapper_keeps_names():
    wrapped = fsdp.checkpoint_wrapper(nn.Linear(2, 2))
    assert [name for name, _ in wrapped.named_parameters()] == ["weight", "bias"]
    assert list(wrapped.state_dict()) == ["weight", "bias"]


def test_state_dicts_are_gathered_and_offloaded():
    state = {"a": torch.ones(2), "b": {"c": 1}}
    assert fsdp.gather_state_dict(state, cpu_offload=True)["b"] == {"c": 1}
    assert fsdp.offload_state_dict(state)["a"].tolist() == [1, 1]


@pytest.fixture
def fake_world():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


def test_parameter_groups(fake_world):
    model = fully_shard(nn.Linear(2, 2))
    (group,) = fsdp.parameter_groups(model)
    assert len(group.fsdp_params) == 2
    fsdp.prefetch_after_backward(model)
    model(torch.ones(1, 2)).sum().backward()
    assert group._post_forward_indices == group.comm_ctx.post_forward_order == []
    assert not fsdp.has_mesh(model)


def test_a_part_that_is_gone_is_named():
    with pytest.raises(UnsupportedTorchError, match=r"somewhere\.gone"):
        need(types.SimpleNamespace(__name__="somewhere"), "gone")


def test_fsdp1_in_the_phantom_world_is_put_back():
    patches = Patches("a test")
    before = fsdp.optimizer_states()._map_param_key_to_optim_keys
    wrapping.install(patches)
    assert fsdp.optimizer_states()._map_param_key_to_optim_keys is not before
    patches.undo()
    assert fsdp.optimizer_states()._map_param_key_to_optim_keys is before
