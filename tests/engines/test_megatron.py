"""Megatron-core's buffers and main parameters, with a double of the little that the engine looks at."""

from __future__ import annotations

import functools
import sys
import textwrap
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import memfit
from memfit.ledger import Category
from memfit.units import MIB

BUFFERS = """
    import torch

    from megatron.core.optimizer import distrib_optimizer  # imports this module in turn


    class _ParamAndGradBuffer:
        def __init__(self, parameters):
            size = sum(parameter.numel() for parameter in parameters)
            self.param_data = torch.zeros(size, dtype=torch.bfloat16, device="cuda")
            self.grad_data = torch.zeros(size, device="cuda")
            for parameter in parameters:
                parameter.data = self.param_data[: parameter.numel()].view(parameter.shape)


    class _ParamAndGradBucketGroup:
        def start_grad_sync(self):
            return torch.zeros(2**18, device="cuda")
"""
OPTIMIZER = """
    import megatron.core.distributed.param_and_grad_buffer
    import torch


    class DistributedOptimizer:
        def __init__(self, parameters):
            self.shard_fp32_from_float16_groups = [[parameter.detach().clone().float() for parameter in parameters]]
            self.optimizer = torch.optim.AdamW(self.shard_fp32_from_float16_groups[0])
"""


@pytest.fixture
def megatron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in (("distributed/param_and_grad_buffer", BUFFERS), ("optimizer/distrib_optimizer", OPTIMIZER)):
        path = tmp_path / "megatron" / "core" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        del sys.modules[name]


@pytest.mark.usefixtures("megatron")
def test_buffers_and_main_parameters_are_known_by_what_they_hold():
    def build():
        from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup, _ParamAndGradBuffer
        from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

        model = torch.nn.Linear(1024, 1024, bias=False, dtype=torch.bfloat16, device="cuda")
        buffer = _ParamAndGradBuffer(list(model.parameters()))
        optimizer = DistributedOptimizer(list(model.parameters()))
        main = optimizer.shard_fp32_from_float16_groups[0][0]

        def step() -> None:
            model(torch.ones(1, 1024, dtype=torch.bfloat16, device="cuda")).sum().backward()
            reduced = _ParamAndGradBucketGroup().start_grad_sync()
            main.grad = buffer.grad_data.view(main.shape)
            optimizer.optimizer.step()
            model.weight.grad = None
            del reduced

        return step

    found = memfit.predict(build, gpu="H200", steps=2)
    assert found.breakdown[Category.PARAMETER] == 2 * MIB
    assert found.breakdown[Category.GRADIENT] == 4 * MIB + 2 * MIB  # the buffer, and what autograd has made
    assert found.breakdown[Category.OPTIMIZER_STATE] == 12 * MIB  # main parameters, and two averages
    assert found.breakdown[Category.REDUCE_SCATTER] == MIB


def test_ranks_are_arranged_as_megatrons_groups_say(monkeypatch: pytest.MonkeyPatch):
    def build():
        dist.init_process_group("nccl")
        groups = {"pipeline_model": [0, 4], "tensor_model": [0, 1], "data": [0, 2], "context": [0]}
        state = types.ModuleType("megatron.core.parallel_state")
        state.model_parallel_is_initialized = lambda: True
        for name, ranks in groups.items():
            setattr(state, f"get_{name}_parallel_group", functools.partial(lambda group: group, dist.new_group(ranks)))
        monkeypatch.setitem(sys.modules, state.__name__, state)
        layer = torch.nn.Linear(8, 8, device="cuda")
        return lambda: layer(torch.ones(1, 8, device="cuda")).sum().backward()

    job = memfit.predict(build, gpu="H200", world_size=8, ranks="all", steps=1)
    assert job.axes == (("pp", 2), ("dp", 2), ("tp", 2))
    assert [(kind.rank, kind.label) for kind in job.kinds] == [
        (0, "pp 0, dp 0, tp 0"),
        (4, "pp 1, dp 0, tp 0"),
        (7, "pp 1, dp 1, tp 1"),
    ]
