"""Workers of a data loader, and other forked children of a prediction."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import memfit
from memfit.errors import StepFailedError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no forks")


class Images(Dataset):
    """Makes real tensors in the worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        assert type(nn.Parameter(torch.ones(3)).data) is torch.Tensor
        assert type(torch.randn(2**19)) is torch.Tensor
        return torch.full((2**18,), float(index))


class Synthetic(Dataset):
    """Holds a tensor that is too large to have data in a prediction."""

    def __init__(self) -> None:
        self.data = torch.randn(8, 2**18)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data[index]


class OnGpu(Synthetic):
    def __init__(self) -> None:
        self.data = torch.ones(8, 4, device="cuda")


class SentAsItIs(OnGpu):
    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data


def loading(dataset: type[Dataset], **options: object):
    def build():
        model, given = nn.Linear(4, 4, device="cuda"), dataset()

        def step():
            loader = DataLoader(given, num_workers=1, multiprocessing_context="fork", **options)  # type: ignore[arg-type]
            sizes = [batch.cuda().numel() for batch in loader]
            assert sizes == [4 * 2**18] * 2
            model(torch.ones(2, 4, device="cuda")).sum().backward()

        return step

    return build


@pytest.mark.parametrize("dataset", [Images, Synthetic])
@pytest.mark.parametrize("pin_memory", [False, True])
def test_a_worker_may_collate_more_than_a_mebibyte(dataset: type[Dataset], pin_memory: bool):
    prediction = memfit.predict(loading(dataset, batch_size=4, pin_memory=pin_memory), steps=1)
    assert prediction.peak_allocated >= 4 * 2**18 * 4
    assert prediction.ledger.check().info.complete


@pytest.mark.parametrize(("dataset", "batch_size"), [(OnGpu, 4), (SentAsItIs, None)])
def test_what_a_worker_cannot_do_fails_at_once_with_the_reason(dataset: type[Dataset], batch_size: int | None):
    with pytest.raises(StepFailedError, match="cannot work on the GPU"):
        memfit.predict(loading(dataset, batch_size=batch_size), steps=1)


def test_a_child_is_out_of_the_world_and_the_parent_still_in_it():
    def build():
        def step():
            child = os.fork()
            if child == 0:
                os._exit(0 if type(torch.randn(2**20)) is torch.Tensor else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert type(torch.randn(2**20)) is not torch.Tensor
            torch.ones(4, device="cuda")

        return step

    assert memfit.predict(build, steps=1).peak_allocated == 512
