"""The words are torch's: same members, same fields, same defaults; and a bad combination is refused when it is built."""

from dataclasses import MISSING, fields, replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp as theirs
from torch.testing._internal.distributed.fake_pg import FakeStore

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
        assert ours(member.to_torch()) is ours(member.value) is ours(member.text) is member
        assert member.value == member.to_torch().value
        assert member == member.to_torch() == member, "in either order"
        assert {member: 1}[member.to_torch()] == {member.to_torch(): 1}[member] == 1
        assert member != next(other for other in torchs if other.name != member.name)
        assert member != member.value


@pytest.mark.parametrize("name", CONFIGS)
def test_fields_are_torchs(name):
    ours, torchs = fields(getattr(fsdp, name)), fields(getattr(theirs, name))
    names = {
        "module_classes_to_ignore" if field.name == "_module_classes_to_ignore" else field.name: field.default for field in torchs
    }
    assert [field.name for field in ours] == list(names)
    for field in ours:
        if names[field.name] is not MISSING:
            assert field.default == names[field.name]


@pytest.mark.parametrize("name", CONFIGS)
def test_there_and_back(name):
    ours = getattr(fsdp, name)()
    assert type(ours.to_torch()) is getattr(theirs, name)
    assert type(ours).from_torch(ours.to_torch()) == ours
    assert ours == ours.to_torch() == ours, "in either order"
    assert hash(ours) == hash(type(ours)())


def test_there_and_back_with_values():
    for ours in (
        MixedPrecision(torch.bfloat16, torch.float32, torch.float16, True, True, False, (nn.LayerNorm,)),
        CPUOffload(offload_params=True),
        StateDictSettings(StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True), FullOptimStateDictConfig(False, True)),
        ShardedStateDictConfig(True, _use_dtensor=True),
    ):
        assert type(ours).from_torch(ours.to_torch()) == ours != type(ours)()
        assert ours == ours.to_torch()
        assert type(ours)().to_torch() != ours


def test_a_word_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="17 is not a valid ShardingStrategy"):
        ShardingStrategy(17)
    with pytest.raises(ConfigError, match="is not a ShardingStrategy: use one of 'full_shard', 'shard_grad_op'"):
        ShardConfig(strategy="some_shard")


def test_mixed_precision_takes_torchs_spelling_too():
    ours = MixedPrecision(_module_classes_to_ignore=[nn.LayerNorm])
    assert ours == MixedPrecision(module_classes_to_ignore=(nn.LayerNorm,))
    assert ours._module_classes_to_ignore == ours.module_classes_to_ignore == (nn.LayerNorm,)
    changed = replace(ours, param_dtype=torch.bfloat16)
    assert (changed.param_dtype, changed.module_classes_to_ignore) == (torch.bfloat16, (nn.LayerNorm,))
    assert "module_classes_to_ignore=(<class" in repr(ours)


# -- torch's words where ours are asked for ------------------------------------------------------------------------------------


def test_shard_takes_torchs_own_words():
    config = ShardConfig(
        strategy=theirs.ShardingStrategy.SHARD_GRAD_OP,
        backward_prefetch=theirs.BackwardPrefetch.BACKWARD_POST,
        mixed_precision=theirs.MixedPrecision(param_dtype=torch.bfloat16),
        cpu_offload=theirs.CPUOffload(offload_params=True),
    )
    assert config.strategy is ShardingStrategy.SHARD_GRAD_OP
    assert config.backward_prefetch is fsdp.BackwardPrefetch.BACKWARD_POST
    assert config.mixed_precision == MixedPrecision(param_dtype=torch.bfloat16)
    assert config.cpu_offload == CPUOffload(offload_params=True)
    assert ShardConfig(cpu_offload=theirs.CPUOffloadPolicy()).cpu_offload.offload_params
    assert not ShardConfig(cpu_offload=theirs.OffloadPolicy()).cpu_offload.offload_params


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"mixed_precision": torch.bfloat16}, "mixed_precision takes a MixedPrecision, memfit's or torch's"),
        ({"cpu_offload": True}, "cpu_offload takes a CPUOffload, memfit's or torch's"),
        (
            {"engine": "fsdp1", "mixed_precision": theirs.MixedPrecisionPolicy(output_dtype=torch.float32)},
            "output_dtype needs engine='fsdp2'",
        ),
        (
            {"strategy": "no_shard", "mixed_precision": theirs.MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
            "DDP has no mixed precision",
        ),
    ],
)
def test_what_cannot_be_taken_is_refused_with_a_reason(words, reason):
    with pytest.raises(ConfigError, match=reason):
        ShardConfig(**words)


def test_a_policy_for_fsdp2_is_handed_on_as_it_is(world):
    policy = theirs.MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float16, True)
    model = fsdp.shard(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), units=[nn.Linear], mixed_precision=policy)
    states = [fsdp_state(module) for module in model.modules() if isinstance(module, theirs.FSDPModule)]
    assert [state._mp_policy for state in states] == [policy, policy], "the model and the unit, and none for the norm"
    assert model[0](torch.randn(4, 8)).dtype is torch.float16


def fsdp_state(module):
    return module._get_fsdp_state()


# -- ours where torch's are asked for ------------------------------------------------------------------------------------------


@pytest.fixture
def world():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        dist.destroy_process_group()


def fsdp1_handles(words):
    """FSDP1 as it is on a GPU, told that its device is the CPU, after a step."""
    options = words | {"device_id": torch.device("cpu"), "use_orig_params": True}
    layers = [theirs.FullyShardedDataParallel(nn.Linear(16, 16), **options) for _ in range(2)]
    model = theirs.FullyShardedDataParallel(nn.Sequential(*layers), **options)
    model(torch.randn(4, 16)).float().sum().backward()
    return model


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
@pytest.mark.filterwarnings("ignore:The `NO_SHARD` sharding strategy")
def test_torchs_fsdp_takes_our_words_and_does_what_they_say(strategy, world):
    def described(module, precision):
        words = {
            "sharding_strategy": module.ShardingStrategy[strategy],
            "backward_prefetch": module.BackwardPrefetch.BACKWARD_POST,
            "mixed_precision": precision,
            "cpu_offload": module.CPUOffload(offload_params=False),
        }
        model = fsdp1_handles(words)
        handles = [handle for handle in (part._handle for part in model.modules() if hasattr(part, "_handle")) if handle]
        assert all(part.backward_prefetch == theirs.BackwardPrefetch.BACKWARD_POST for part in (model, *model.module))
        return [
            (handle._sharding_strategy.name, handle._fwd_bwd_param_dtype, handle._reduce_dtype, handle.uses_sharded_strategy)
            for handle in handles
        ], [(tuple(p.shape), p.dtype, p.grad is not None) for p in model.parameters()]

    ours = described(fsdp, MixedPrecision(torch.bfloat16, torch.float32))
    assert ours == described(theirs, theirs.MixedPrecision(torch.bfloat16, torch.float32))
    assert ours[0][0][1] is torch.bfloat16


@pytest.mark.filterwarnings("ignore:FSDP.state_dict_type:FutureWarning")
def test_torchs_fsdp_takes_our_kind_of_state_dict(world):
    model = fsdp1_handles({"sharding_strategy": ShardingStrategy.FULL_SHARD})
    with theirs.FullyShardedDataParallel.state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True).to_torch()
    ):
        settings = theirs.FullyShardedDataParallel.get_state_dict_type(model)
    assert settings.state_dict_type == StateDictType.FULL_STATE_DICT
    assert settings.state_dict_config == FullStateDictConfig(offload_to_cpu=True)


def test_torchs_ddp_takes_our_mixed_precision():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8), mixed_precision=MixedPrecision(torch.bfloat16, torch.float32))
        assert model.module.weight._mp_param.dtype is torch.bfloat16  # a forward pass needs a GPU
    finally:
        dist.destroy_process_group()


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
        (lambda: ShardConfig(checkpointing=3), "takes 'full', 'selective', None, a policy or a plan"),
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
