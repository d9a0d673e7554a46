"""The words are torch's: same members, same fields, same defaults; and a bad combination is refused when it is built."""

from dataclasses import MISSING, fields

import pytest
import torch
from torch import nn
from torch.distributed import fsdp as theirs

from memfit import fsdp
from memfit.errors import ConfigError
from memfit.fsdp import (
    CPUOffload,
    Engine,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    MixedPrecision,
    ShardConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictSettings,
    StateDictType,
)

ENUMS = ["ShardingStrategy", "BackwardPrefetch", "StateDictType"]
CONFIGS = [
    "MixedPrecision",
    "CPUOffload",
    "StateDictConfig",
    "FullStateDictConfig",
    "LocalStateDictConfig",
    "ShardedStateDictConfig",
    "OptimStateDictConfig",
    "FullOptimStateDictConfig",
    "LocalOptimStateDictConfig",
    "ShardedOptimStateDictConfig",
    "StateDictSettings",
]


@pytest.mark.parametrize("name", ENUMS)
def test_members_are_torchs(name):
    ours, torchs = getattr(fsdp, name), getattr(theirs, name)
    assert [member.name for member in ours] == [member.name for member in torchs]
    for member in ours:
        assert member.to_torch() is torchs[member.name]
        assert ours.from_torch(member.to_torch()) is member


@pytest.mark.parametrize("name", CONFIGS)
def test_fields_are_torchs(name):
    ours, torchs = fields(getattr(fsdp, name)), fields(getattr(theirs, name))
    names = {field.name.lstrip("_"): field.default for field in torchs if field.name != "_use_dtensor"}
    assert [field.name for field in ours] == list(names)
    for field in ours:
        if names[field.name] is not MISSING:
            assert field.default == names[field.name]


@pytest.mark.parametrize("name", CONFIGS)
def test_there_and_back(name):
    ours = getattr(fsdp, name)()
    assert type(ours.to_torch()) is getattr(theirs, name)
    assert type(ours).from_torch(ours.to_torch()) == ours


def test_there_and_back_with_values():
    for ours in (
        MixedPrecision(torch.bfloat16, torch.float32, torch.float16, True, True, False, (nn.LayerNorm,)),
        CPUOffload(offload_params=True),
        StateDictSettings(StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True), FullOptimStateDictConfig(False, True)),
    ):
        assert type(ours).from_torch(ours.to_torch()) == ours != type(ours)()


def test_settings_fill_in_the_kind():
    settings = StateDictSettings(StateDictType.SHARDED_STATE_DICT)
    assert settings.state_dict_config == ShardedStateDictConfig()
    assert settings.optim_state_dict_config.offload_to_cpu, "torch's default for optimizers"


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: MixedPrecision(param_dtype=torch.int8), "param_dtype takes a floating-point dtype"),
        (lambda: MixedPrecision(reduce_dtype="bf16"), "reduce_dtype takes a floating-point dtype"),
        (lambda: MixedPrecision(keep_low_precision_grads=True), "no gradient would be in low precision"),
        (lambda: MixedPrecision(module_classes_to_ignore=("LayerNorm",)), "takes classes of modules"),
        (
            lambda: StateDictSettings(StateDictType.SHARDED_STATE_DICT, FullStateDictConfig()),
            "SHARDED_STATE_DICT goes with ShardedStateDictConfig, not with FullStateDictConfig",
        ),
        (
            lambda: StateDictSettings(StateDictType.FULL_STATE_DICT, None, fsdp.ShardedOptimStateDictConfig()),
            "FULL_STATE_DICT goes with FullOptimStateDictConfig",
        ),
        (lambda: StateDictSettings("full"), "takes a StateDictType"),
        (lambda: FullStateDictConfig.from_torch(theirs.ShardedStateDictConfig()), "takes torch's FullStateDictConfig"),
        (lambda: ShardConfig(checkpointing="some"), "say 'full', 'selective'"),
        (lambda: ShardConfig(checkpointing=3), "takes 'full', 'selective', None or a policy"),
    ],
)
def test_a_bad_combination_is_refused(build, reason):
    with pytest.raises(ConfigError, match=reason):
        build()


LOW = MixedPrecision(param_dtype=torch.bfloat16)
OFFLOAD = CPUOffload(offload_params=True)


@pytest.mark.parametrize(
    ("words", "can"),
    [
        ({"engine": Engine.DDP}, "FULL_SHARD needs engine='fsdp2' or 'fsdp1'"),
        ({"strategy": ShardingStrategy.NO_SHARD, "mixed_precision": LOW}, "engine='fsdp2'"),
        ({"strategy": ShardingStrategy.NO_SHARD, "cpu_offload": OFFLOAD}, "engine='fsdp2' or 'fsdp1'"),
        (
            {"strategy": ShardingStrategy.NO_SHARD, "backward_prefetch": fsdp.BackwardPrefetch.BACKWARD_POST},
            "engine='fsdp2' or 'fsdp1'",
        ),
        (
            {"mixed_precision": MixedPrecision(torch.bfloat16, torch.bfloat16, keep_low_precision_grads=True)},
            "keep_low_precision_grads needs engine='fsdp1'",
        ),
        ({"mixed_precision": MixedPrecision(buffer_dtype=torch.bfloat16)}, "buffer_dtype needs engine='fsdp1'"),
    ],
)
def test_what_an_engine_cannot_do_names_one_that_can(words, can):
    with pytest.raises(ConfigError, match=can):
        ShardConfig(**words)


def test_the_default_engine():
    assert ShardConfig().engine is Engine.FSDP2
    assert ShardConfig(strategy=ShardingStrategy.NO_SHARD).engine is Engine.DDP
