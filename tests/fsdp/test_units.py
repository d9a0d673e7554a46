"""Which modules become units, and over which ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from memfit.errors import ConfigError
from memfit.fsdp import ShardingStrategy, shard
from memfit.fsdp.sharding import make_mesh
from memfit.fsdp.units import find_units, replace_modules

FULL, HYBRID = ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD


class Block(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)


class Pair(nn.Module):
    """An encoder and a decoder, with a small list beside them."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList(Block(8) for _ in range(2))
        self.decoder = nn.ModuleList(Block(8) for _ in range(3))
        self.small = nn.ModuleList(nn.Linear(2, 2) for _ in range(9))
        self.head = nn.Linear(8, 8)


def names(model, units):
    found = set(find_units(model, units))
    return [name for name, module in model.named_modules() if module in found]


def test_the_repeated_blocks():
    assert names(Pair(), None) == ["encoder.0", "encoder.1", "decoder.0", "decoder.1", "decoder.2"]


def test_the_blocks_of_a_sequential():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    assert names(model, None) == ["0.0", "0.2"]


def test_nothing_is_repeated():
    assert names(nn.Linear(2, 2), None) == []


@pytest.mark.parametrize("units", [Block, "Block", (Block,), ["Block"]])
def test_by_class(units):
    assert names(Pair(), units) == names(Pair(), None)


def test_by_size():
    block = sum(parameter.numel() for parameter in Block(8).parameters())
    model = Pair()
    assert names(model, block) == names(model, None)
    assert names(model, block + 1) == [], "lists are never called, so they are no units"
    assert "encoder.0.up" in names(model, 8 * 16)


def test_by_policy():
    assert names(Pair(), lambda module: isinstance(module, nn.Linear) and module.out_features == 8)[-1] == "head"


@pytest.mark.parametrize("units", [nn.Conv2d, "Blok", (Block, "Blok")])
def test_a_class_that_is_not_there(units):
    with pytest.raises(ConfigError, match="does not have; it has Block, Linear, ModuleList"):
        find_units(Pair(), units)


@pytest.mark.parametrize("units", [0, -1, True, 1.5])
def test_no_units_at_all(units):
    with pytest.raises(ConfigError, match="unit"):
        find_units(Pair(), units)


def test_a_module_in_two_places_is_replaced_in_both():
    block, model = Block(2), nn.Module()
    model.here, model.there = block, block
    replace_modules(model, {block: nn.Identity()})
    assert model.here is model.there
    assert isinstance(model.here, nn.Identity)


# -- meshes --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def world_of_16():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=16)
    yield
    dist.destroy_process_group()


MODEL = nn.Linear(2, 2)


def test_meshes_from_the_world(world_of_16, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert make_mesh(MODEL, FULL, None).shape == (16,)
    assert make_mesh(MODEL, HYBRID, None).shape == (2, 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert make_mesh(MODEL, HYBRID, None).shape == (4, 4)
    assert make_mesh(MODEL, HYBRID, (8, 2)).mesh_dim_names == ("replicate", "shard")
    assert make_mesh(MODEL, FULL, 16).device_type == "cpu"


def test_a_mesh_that_was_given(world_of_16):
    mesh = init_device_mesh("cpu", (2, 8), mesh_dim_names=("pp", "dp"))
    assert make_mesh(MODEL, FULL, mesh["dp"]) is not None
    assert make_mesh(MODEL, HYBRID, mesh) is mesh


@pytest.mark.parametrize(
    ("strategy", "mesh", "reason"),
    [
        (FULL, (2, 8), "takes a mesh of one axis.*HYBRID_SHARD takes two"),
        (ShardingStrategy.SHARD_GRAD_OP, (2, 8), "_HYBRID_SHARD_ZERO2 takes two"),
        (HYBRID, 16, "takes a mesh of two axes"),
        (HYBRID, (2, 4), "has 8 ranks, but the world has 16"),
    ],
)
def test_a_mesh_that_does_not_suit(world_of_16, strategy, mesh, reason):
    with pytest.raises(ConfigError, match=reason):
        make_mesh(MODEL, strategy, mesh)


def test_nodes_of_no_one_size(world_of_16, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "6")
    with pytest.raises(ConfigError, match="no multiple of 6"):
        make_mesh(MODEL, HYBRID, None)


def test_without_a_world():
    with pytest.raises(ConfigError, match="init_process_group"):
        shard(nn.Linear(2, 2))


def test_engines_that_need_another_device(world_of_16):
    with pytest.raises(ConfigError, match="FSDP1 needs an accelerator"):
        shard(Block(2), engine="fsdp1")
    with torch.device("meta"):
        model = Block(2)
    with pytest.raises(ConfigError, match="move the model to cpu"):
        shard(model, "no_shard")


def test_a_part_of_the_world_is_not_replicated_by_fsdp2(world_of_16):
    mesh = init_device_mesh("cpu", (2, 8), mesh_dim_names=("pp", "dp"))
    with pytest.raises(ConfigError, match="engine='ddp' or 'fsdp1'"):
        shard(Block(2), "no_shard", engine="fsdp2", mesh=mesh["dp"])


@pytest.mark.parametrize(("word", "value"), [("strategy", "zero3"), ("engine", "deepspeed"), ("backward_prefetch", "early")])
def test_words_that_are_none(word, value):
    with pytest.raises(ConfigError, match=f"'{value}' is not a .*: use one of"):
        shard(nn.Linear(2, 2), **{word: value})
