"""Recipes in four dimensions, predicted: tiny models whose bytes can be counted, or compared."""

import pytest
from helpers.tiny_models import TINY_DEEPSEEK
from torch.distributed.pipelining import PipelineStage

import memfit
from memfit.models import MODELS
from memfit.parallel import model as parallel_model

SMALL = {"model": "tiny", "seq": 64, "optimizer": "sgd-momentum"}
F32 = 4


@pytest.fixture(autouse=True)
def deepseek(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(MODELS, TINY_DEEPSEEK.name, TINY_DEEPSEEK)


def predict(world_size: int, rank: int = 0, **options):
    return memfit.predict(gpu="H200", world_size=world_size, rank=rank, steps=2, **SMALL | options)


def parameters(prediction) -> int:
    return prediction.breakdown[memfit.ledger.Category.SHARDED_PARAMETER]


def test_tensor_parallelism_shares_what_fsdp_shares():
    """Norms are whole on each rank of a layer, and what is split must be padded: nothing else differs."""
    alone, shared = predict(2), predict(4, tp=2)
    assert parameters(shared) < 0.6 * parameters(alone)


def test_one_rank_after_another_in_one_process():
    """What DTensor remembers of the groups of a rank is not taken for another's."""
    assert [predict(4, rank, tp=2).peak_allocated for rank in (0, 2)] == [predict(4, tp=2).peak_allocated] * 2


def test_stages_need_different_memory_and_the_worst_decides():
    job = memfit.predict(gpu="H200", world_size=2, steps=2, ranks="all", **SMALL, pp=2, batch=4)
    assert [kind.label for kind in job.kinds] == ["pp 0", "pp 1"]
    assert job.peak_allocated == max(kind.prediction.peak_allocated for kind in job.kinds)
    assert not any("stage" in sentence for sentence in job.assumptions), "shapes are said, not asked for"


def test_a_stage_says_how_its_tokens_lie(monkeypatch: pytest.MonkeyPatch):
    """Torch 2.11 refuses a batch that is a part of longer sequences where a stage said otherwise."""
    said = []

    def noting(part, number, *args, input_args, **options):
        said.append((number, input_args[0].stride()))
        return PipelineStage(part, number, *args, input_args=input_args, **options)

    monkeypatch.setattr(parallel_model, "PipelineStage", noting)
    predict(2, pp=2, batch=4)
    assert said == [(0, (SMALL["seq"] + 1, 1))]


def test_a_compiled_stage():
    eager, compiled = (predict(2, 1, pp=2, batch=4, compile=how) for how in ("none", "blocks"))
    assert not any("could not" in sentence or "passed over" in sentence for sentence in compiled.assumptions)
    kernels = [[op for op in each.ledger.strings if op.startswith("triton_")] for each in (eager, compiled)]
    assert [bool(found) for found in kernels] == [False, True]


def test_experts_on_other_gpus_are_not_held_here():
    routed = 3 * 64 * 32 * 8 * F32  # of the one layer with experts
    whole, shared = predict(2, model="tiny-deepseek"), predict(2, model="tiny-deepseek", ep=2)
    assert parameters(whole) == pytest.approx(parameters(shared), abs=1024), "sharded either way"
    gathered = [each.breakdown.get(memfit.ledger.Category.UNSHARDED_PARAMETER, 0) for each in (whole, shared)]
    assert gathered[0] - gathered[1] <= routed
    assert any("an even share" in sentence for sentence in shared.assumptions)


def test_float8_without_torchao_says_what_to_install():
    with pytest.raises(memfit.errors.StepFailedError, match="pip install torchao") as failed:
        predict(2, float8="tensorwise")
    assert isinstance(failed.value.error, memfit.errors.ConfigError)
