"""``cuda:0`` on a rank that is not the first of its node is the rank's own GPU, by whatever way it is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import memfit


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2**20, device="cuda:0"),
        lambda: torch.empty(2**20, device=torch.device("cuda", 0)),
        lambda: torch.empty(2**20).to("cuda:0"),
        lambda: torch.empty(2**20).cuda(0),
        lambda: torch.empty(2**20, device=0),
        lambda: nn.Linear(1024, 1024, bias=False).to("cuda:0").weight,
        lambda: (torch.cuda.set_device(0), torch.empty(2**20, device="cuda"))[1],
        lambda: torch.empty(2**20, device="cuda:3"),
    ],
    ids=["string", "device", "to", "cuda", "number", "module", "set_device", "by its number"],
)
def test_it_is_the_ranks_own(make: Callable[[], torch.Tensor]):
    def build() -> Callable[[], None]:
        kept = make()

        def step() -> None:
            assert kept.is_cuda
            torch.ones(1, device="cuda") + kept.flatten()[:1]
            assert torch.cuda.memory_allocated(0) == torch.cuda.memory_allocated() >= 2**22

        return step

    found = memfit.predict(build, world_size=4, rank=3, steps=1)
    assert [device.name for device in found.ledger.devices if device.name.startswith("cuda")] == ["cuda:3"]
    assert found.init.end_allocated >= 2**22


def test_other_gpus_stay_others():
    def build() -> Callable[[], None]:
        kept = [torch.empty(2**20, device=f"cuda:{number}") for number in (1, 3)]
        return lambda: kept[0].sum().item()

    names = {device.name for device in memfit.predict(build, world_size=4, rank=3, steps=1).ledger.devices}
    assert {"cuda:1", "cuda:3"} <= names
