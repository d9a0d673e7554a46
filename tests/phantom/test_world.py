"""In the phantom world "cuda" works; outside it torch is as it was."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn
from torch.utils.checkpoint import checkpoint

OWNERS = (
    torch,
    torch.cuda,
    torch.accelerator,
    torch.Tensor,
    torch.UntypedStorage,
    torch._subclasses.fake_tensor.FakeTensor,
    torch._C,
    torch.version,
    torch.utils,
    torch.backends.cudnn,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.nn.parallel.distributed,
    nn.Module,
    nn.Parameter,
)


def attributes() -> dict[tuple[str, str], int]:
    return {
        (repr(owner), name): id(value) for owner in OWNERS for name, value in vars(owner).items() if not name.startswith("__warn")
    }


def differences(before: dict, after: dict) -> set:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


@pytest.fixture(autouse=True, scope="module")
def _entered_once():
    """The device kind is registered for good by the first world."""
    with phantom():
        torch.nn.Linear(2, 2).cuda()


def test_leaving_restores_torch():
    before = attributes()
    with phantom():
        assert differences(before, attributes())  # the comparison can fail
        torch.set_default_device("cuda")
        torch.set_default_dtype(torch.bfloat16)
    assert differences(before, attributes()) == set()
    assert torch.empty(1).device.type == "cpu"
    assert torch.empty(1).dtype == torch.float32
    assert not torch.accelerator.is_available()


def test_leaving_after_an_error_restores_torch():
    before = attributes()
    with pytest.raises(ZeroDivisionError), phantom():
        raise ZeroDivisionError
    assert differences(before, attributes()) == set()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, device="cuda"),
        lambda: torch.zeros(2).cuda(),
        lambda: torch.zeros(2).to("cuda"),
        lambda: torch.zeros(2).to(torch.device("cuda", 0), torch.float16),
        lambda: torch.tensor([1.0], device="cuda"),
        lambda: torch.zeros_like(torch.zeros(2), device="cuda"),
        lambda: nn.Linear(2, 2, device="cuda").weight,
        lambda: nn.Linear(2, 2).cuda().bias,
        lambda: torch.randn(2, device="cuda", generator=torch.Generator("cuda")),
    ],
)
def test_tensors_say_cuda(make):
    with phantom():
        tensor = make()
        assert (tensor.device, tensor.is_cuda, tensor.get_device()) == (torch.device("cuda:0"), True, 0)
        assert tensor.to("cuda") is tensor
        assert tensor.cpu().device.type == "cpu"


def test_a_device_context_and_a_default_device():
    with phantom():
        with torch.device("cuda"):
            assert torch.empty(1).is_cuda
        torch.set_default_device("cuda")
        assert torch.empty(1).is_cuda


def test_host_tensors_hold_data_unless_they_are_large():
    with phantom():
        assert torch.arange(5).sum().item() == 10
        assert torch.zeros(2**30).untyped_storage().data_ptr() > 0  # four GiB that nobody has


def test_moving_and_casting_keeps_parameters_and_ties():
    with phantom():
        model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
        model[1].weight = model[0].weight
        weight = model[0].weight
        model.cuda().to(torch.bfloat16).half().float()
        assert model[0].weight is model[1].weight is weight
        assert (weight.device.type, weight.dtype, isinstance(weight, nn.Parameter)) == ("cuda", torch.float32, True)
        with torch.device("meta"):
            empty = nn.Linear(4, 4)
        assert empty.to_empty(device="cuda").weight.is_cuda


def test_torch_cuda_answers_as_the_gpu():
    with phantom("A100-80GB", world_size=16, rank=11):
        assert torch.cuda.is_available()
        assert (torch.cuda.device_count(), torch.cuda.current_device()) == (8, 3)
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 108
        assert torch.cuda.is_bf16_supported()
        assert torch.cuda.mem_get_info()[0] < torch.cuda.mem_get_info()[1] < 80 * 2**30
        assert torch.accelerator.current_accelerator() == torch.device("cuda")


def test_streams_have_an_identity():
    with phantom():
        side = torch.cuda.Stream()
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() is side
            event = side.record_event()
        assert event.query()
        assert torch.cuda.current_stream().stream_id == 0 != side.stream_id
        torch.empty(1, device="cuda").record_stream(side)


def test_autocast_follows_cudas_lists():
    with phantom():
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            hidden = model[0](torch.randn(2, 4, device="cuda"))
            assert hidden.dtype == torch.bfloat16
            assert model[1](hidden).dtype == torch.float32
            assert hidden.softmax(-1).dtype == torch.float32
            with torch.autocast("cuda", enabled=False):
                assert model[0](torch.randn(2, 4, device="cuda")).dtype == torch.float32
        assert model[0](torch.randn(2, 4, device="cuda")).dtype == torch.float32


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_training_step_with_everything(reentrant: bool):
    with phantom():
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        x = torch.randn(2, 4).pin_memory().cuda(non_blocking=True).requires_grad_()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = checkpoint(model, x, use_reentrant=reentrant).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.state[model[0].weight]["exp_avg"].is_cuda  # the step was not skipped


def test_values_that_only_data_can_tell_are_assumed_and_named():
    with phantom() as world:
        x = torch.randn(4, 4, device="cuda")
        assert bool(torch.isfinite(x).all())
        assert not torch.isnan(x).any()
        assert torch.zeros((), device="cuda").item() == 0.0
        assert x.sum().item() == 1.0
        assert x[x > 0].shape == (16,)
        assert torch.nonzero(x).shape == (16, 2)
        assert x.tolist() == [[1.0] * 4] * 4
        assert len(torch.unique(x)) == 16
    sentences = world.assumptions.sentences()
    assert any("test_world.py" in sentence and "read from the GPU" in sentence for sentence in sentences)
    assert any("a mask selects" in sentence for sentence in sentences)


def test_compiled_models_are_modules_of_the_gpu():
    with phantom() as world:
        model = nn.Linear(2, 2).cuda()
        model.compile()
        assert torch.compile(model)(torch.randn(1, 2, device="cuda")).is_cuda
    assert not any("compile" in sentence for sentence in world.assumptions.sentences())
