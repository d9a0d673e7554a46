"""Values that only data can tell: what is assumed, what is known, and what the user expects."""

from __future__ import annotations

import math
import resource

import pytest
import torch
import torch.distributed as dist
from helpers.phantom_worlds import phantom
from torch import nn

import memfit
from memfit.errors import ConfigError
from memfit.phantom.values.assumptions import Expected


def test_istft_finds_its_window_good():
    with phantom() as world:
        window = torch.hann_window(256, device="cuda")
        spectrum = torch.stft(torch.randn(2, 4000, device="cuda"), 256, 64, window=window, return_complex=True)
        sound = torch.istft(spectrum, 256, 64, window=window, length=4000)
        is_negative = torch.equal((window < 0).any(), torch.tensor(True, device="cuda"))
        assert (sound.shape, is_negative) == ((2, 4000), False)
    assert not [said for said in world.assumptions.sentences() if "compared as a whole" in said]


def test_checks_find_nothing_amiss():
    with phantom() as world:
        loss = torch.randn(4, device="cuda").mean()
        assert bool(torch.isfinite(loss))
        assert not torch.isnan(loss)
        assert not bool(torch.ne(loss, loss))
        assert loss < math.inf
        assert not bool(loss == math.inf)
        assert torch.isfinite(loss) & ~torch.isnan(loss)
        assert loss[torch.isnan(loss)].numel() == 0
    assert world.assumptions.sentences() == ()


def test_what_was_known_is_forgotten_when_it_changes():
    with phantom():
        total = torch.zeros((), device="cuda")
        assert total.item() == 0
        total += torch.randn((), device="cuda")
        assert total.item() == 1  # not 0: somebody may divide by it
        parts = torch.zeros(4, device="cuda")
        parts[1] = torch.randn((), device="cuda")
        assert parts[2].item() == 1
        mask = torch.zeros(8, dtype=torch.bool, device="cuda")
        mask[:4] = True
        assert torch.randn(8, device="cuda")[mask].numel() == 8


def test_numbers_can_be_printed_and_copied():
    with phantom() as world:
        loss = torch.randn(4, device="cuda").mean()
        assert (f"{loss:.2f}", f"{loss.item()}", float(loss)) == ("1.00", "1.0", 1.0)
        assert "cuda:0" in repr(loss)
        assert loss.cpu().numpy() == 1.0
        losses = torch.zeros(3)
        losses[1] = loss
        assert losses.tolist() == [0.0, 1.0, 0.0]
        assert torch.randn(2**20, device="cuda").cpu().device.type == "cpu"
    assert any("copied to the host" in sentence for sentence in world.assumptions.sentences())


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor, torch.FloatTensor])
def test_a_list_with_scalars_of_the_gpu_becomes_a_tensor(make):
    with phantom() as world:
        known, unknown = torch.zeros((), device="cuda"), torch.randn((), device="cuda")
        assert make([known, unknown, 2.0]).tolist() == [0.0, 1.0, 2.0]
    assert len(world.assumptions.sentences()) == 1


def test_a_list_with_scalars_of_the_gpu_becomes_a_tensor_there():
    with phantom():
        made = torch.tensor([torch.randn((), device="cuda")], dtype=torch.float64, device="cuda")
        assert (made.device.type, made.dtype, made.shape) == ("cuda", torch.float64, (1,))


@pytest.mark.filterwarnings("ignore:`torch.distributed.all_gather_into_tensor` is deprecated")
def test_small_tensors_of_the_host_keep_their_data():
    with phantom(world_size=4) as world:
        dist.init_process_group("nccl")
        shape = torch.tensor([3, 5], device="cuda")[None]
        assert shape.max().item() == 5
        gathered = torch.empty(4 * shape.numel(), dtype=torch.int64, device="cuda")
        dist.all_gather_into_tensor(gathered, shape)
        assert gathered.view(-1, 2).cpu().tolist() == [[3, 5]] * 4
        votes = torch.tensor(1, device="cuda")
        dist.all_reduce(votes)
        assert bool(votes == 4)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX)
        votes += 1
        assert int(votes) == 5
        assert shape[shape > 3].tolist() == [5]
        state = torch.get_rng_state()
        torch.set_rng_state(state.cuda().cpu())
        assert torch.equal(torch.get_rng_state(), state)
        assert votes.float().uniform_().item() == 1.0  # random numbers are never drawn
    assert not any("read" in sentence and "uniform" not in sentence for sentence in world.assumptions.sentences()[:-1])


@pytest.mark.parametrize(
    ("expected", "sizes"),
    [
        ({}, (64, 64, 64)),
        ({"mask": 0.25}, (16, 64, 64)),
        ({"mask": 5, "nonzero": 0.5, "unique": 7}, (5, 32, 7)),
        ({"mask": 10**9}, (64, 64, 64)),
    ],
)
def test_sizes_can_be_expected(expected: dict, sizes: tuple):
    with phantom(expected=expected):
        x = torch.randn(64, device="cuda")
        assert (len(x[x > 0]), len(x.nonzero()), len(x.unique())) == sizes


def test_a_place_goes_before_a_kind_and_what_never_came_up_is_said():
    def build():
        x = torch.randn(1024, device="cuda")
        kept = []
        return lambda: kept.append(x[x > 0])

    place = f"test_answers.py:{build.__code__.co_firstlineno + 3}"
    prediction = memfit.predict(build, steps=1, expected={place: 256, "mask": 1.0, "unique": 3})
    assert prediction.steps[0].end_allocated == 4096 + 1024
    assert f"{place}: what a mask selects was taken to be 256 of 1,024 elements, as expected" in prediction.assumptions
    assert any("nothing was asked of unique" in sentence for sentence in prediction.assumptions)


def test_numbers_can_be_expected():
    with phantom(expected={"number": 2.5}):
        assert torch.randn((), device="cuda").item() == 2.5
        assert torch.ones(3, dtype=torch.int64, device="cuda").float().exp().sum().item() == 2.5


@pytest.mark.parametrize("mistake", [{"masks": 1}, {"mask": -1}, {"mask": "half"}, {"mask": True}, {"/a/train.py:x": 1}])
def test_what_cannot_be_expected(mistake: dict):
    with pytest.raises(ConfigError):
        Expected(mistake)


def test_expectations_are_read_from_text():
    assert Expected.parse(["mask=0.25", "train.py:31=128"]).by_name == {"mask": 0.25, "train.py:31": 128}
    for text in ("mask", "mask=", "mask=half", "=3"):
        with pytest.raises(ConfigError):
            Expected.parse([text])


def test_a_sync_batch_norm_and_a_ctc_loss_have_shapes():
    with phantom(world_size=2):
        dist.init_process_group("nccl")
        norm = nn.SyncBatchNorm(4).cuda()
        norm(torch.randn(2, 4, 8, device="cuda", requires_grad=True)).sum().backward()
        assert norm.weight.grad.shape == (4,)
        probabilities = torch.randn(10, 2, 5, device="cuda", requires_grad=True).log_softmax(-1)
        lengths = torch.tensor([10, 10]), torch.tensor([3, 3])
        nn.CTCLoss()(probabilities, torch.randint(1, 5, (2, 3), device="cuda"), *lengths).backward()


def test_what_is_asserted_of_data_holds():
    with phantom() as world:
        labels = torch.randint(0, 9, (8,), device="cuda")
        assert labels.max() < 9
        assert (
            labels  # over several lines
            >= 0
        ).any()
        assert not (labels < 0).any()
        if labels.max() < 9:
            raise RuntimeError("nothing is known of what is not asserted")
    assert any("asserted" in sentence for sentence in world.assumptions.sentences())


def test_large_data_on_the_host_take_no_memory_until_they_are_written_to():
    with phantom() as world:
        logits = torch.empty(96, 400, 32000, device="cuda")  # 4.6 GiB, as a Trainer hands them to compute_metrics
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        array = logits.cpu().numpy()
        array[0, 0, 0] = 5
        assert (array.shape, array[0, 0, :2].tolist()) == ((96, 400, 32000), [5, 0])
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
    assert any("copied to the host was taken to be zeros" in sentence for sentence in world.assumptions.sentences())
