"""Process groups of one process, for both trackers."""

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.fixture
def world(request):
    """A mesh of four ranks, or as many as a test asks for, of which only this one exists: collectives do nothing, at once."""
    size = getattr(request, "param", 4)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield init_device_mesh("cpu", (size,))
    finally:
        dist.destroy_process_group()


@pytest.fixture
def lone_rank():
    """A real group of one rank: what DDP needs, whose memory does not depend on how many there are."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
