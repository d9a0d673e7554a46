"""Ways of compiling beside the plain one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from helpers.compiled_training import Model, training

import memfit
from memfit.torch_compat.versions import installed_torch


def peaks(prediction) -> list[int]:
    return [step.peak_allocated for step in prediction.steps]


def test_max_autotune_plans_as_usual_and_says_so():
    plain = memfit.predict(training(torch.compile), steps=2)
    tuned = memfit.predict(training(partial(torch.compile, mode="max-autotune-no-cudagraphs")), steps=2)
    off_by = 0.05 if installed_torch() < (2, 13) else 0  # 2.11 was 4 % off, for a reason that is not found
    assert peaks(tuned) == pytest.approx(peaks(plain), rel=off_by, abs=0)
    assert [sentence for sentence in tuned.assumptions if sentence.startswith("max-autotune")]
    assert not [sentence for sentence in plain.assumptions if sentence.startswith("max-autotune")]


def test_a_graph_that_is_one_operator_for_other_modes_runs_as_it_was_compiled():
    plain = memfit.predict(training(torch.compile), steps=2)
    wrapped = memfit.predict(training(partial(torch.compile, options={"wrap_inductor_compiled_regions": True})), steps=2)
    assert peaks(wrapped) == peaks(plain)
    assert wrapped.peak_reserved == plain.peak_reserved


def test_the_backend_of_cuda_graphs_replays():
    first, second, third, fourth = peaks(memfit.predict(training(partial(torch.compile, backend="cudagraphs")), steps=4))
    assert third == fourth < min(first, second)


def test_a_stance_that_forces_eager_code():
    def build():
        step = training(torch.compile)()

        def eagerly() -> None:
            with torch.compiler.set_stance("force_eager"):
                step()

        return eagerly

    assert peaks(memfit.predict(build, steps=2)) == peaks(memfit.predict(training(lambda model: None), steps=2))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's own, which it means to silence
def test_backward_that_is_compiled_when_it_runs():
    def build():
        from torch._dynamo import compiled_autograd

        step = training(torch.compile)()

        def compiled() -> None:
            with compiled_autograd._enable(torch.compile):
                step()

        return compiled

    prediction = memfit.predict(build, steps=2)
    assert peaks(prediction)[1] <= peaks(memfit.predict(training(torch.compile), steps=2))[1]
    assert not [sentence for sentence in prediction.assumptions if "could not" in sentence]


@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
def test_flex_attention_with_a_mask_of_documents(mode: str | None):
    shape = (2, 4, 512, 64)
    size = 4 * 2 * 4 * 512 * 64

    def build():
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        q, k, v = (torch.randn(shape, device="cuda", requires_grad=True) for _ in range(3))
        document = torch.arange(512, device="cuda") // 100
        mask = create_block_mask(lambda b, h, i, j: (i >= j) & (document[i] == document[j]), None, None, 512, 512, device="cuda")
        attend = torch.compile(flex_attention, mode=mode)

        def step() -> None:
            attend(q, k, v, block_mask=mask).sum().backward()
            q.grad = k.grad = v.grad = None

        return step

    prediction = memfit.predict(build, steps=2)
    _, second = peaks(prediction)
    # Inputs, their gradients, the result and its gradient; scores of every pair would be eight times as large as a tensor.
    assert 7 * size < second < 10 * size
    assert not [sentence for sentence in prediction.assumptions if "could not" in sentence]


def test_fsdp1_whose_model_is_compiled():
    def build():
        from torch.distributed.fsdp import FullyShardedDataParallel

        dist.init_process_group("nccl")
        model = FullyShardedDataParallel(Model().cuda(), use_orig_params=True, device_id=0)
        compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(4096, 64, device="cuda")

        def step() -> None:
            compiled(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    prediction = memfit.predict(build, steps=2, world_size=4)
    assert peaks(prediction)[1] < peaks(memfit.predict(training(lambda model: None), steps=2))[1]
    assert not [sentence for sentence in prediction.assumptions if "could not" in sentence]
