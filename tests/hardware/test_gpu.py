import pytest

from memfit.hardware import NCCL_ONCE_BYTES, PEER_BYTES, find_gpu, gpus, known_gpus, least_gpu
from memfit.hardware.gpu import KEPT_BYTES, KEPT_SOURCE, TRAINING_BYTES
from memfit.units import GIB, MIB


@pytest.mark.parametrize("gpu", known_gpus(), ids=lambda gpu: gpu.name)
def test_every_gpu_is_plausible_and_says_where_it_is_from(gpu):
    assert 0.9 * gpu.total_bytes < gpu.usable_bytes <= gpu.total_bytes
    assert gpu.arch.startswith(("sm_", "gfx"))
    assert gpu.f64_flops <= gpu.f32_flops <= gpu.f16_flops
    assert 250 * MIB < gpu.context_bytes < GIB
    assert 100 * MIB < gpu.communicator_bytes < 2 * GIB
    assert gpu.usable_source
    assert gpu.speed_source
    assert find_gpu(gpu.name) is gpu


def test_gpus_are_in_order():
    assert [gpu.usable_bytes for gpu in known_gpus()] == sorted(gpu.usable_bytes for gpu in known_gpus())


def test_a_card_on_which_nobody_looked_leaves_less_than_its_total():
    unseen = find_gpu("RTX-A5000")
    assert unseen.usable_source == KEPT_SOURCE
    assert unseen.total_bytes - unseen.usable_bytes == KEPT_BYTES


def test_those_that_are_offered_are_some_of_those_that_are_known():
    assert set(gpus()) < set(known_gpus())
    assert len(known_gpus()) > 90


def test_what_the_allocator_can_get():
    h200 = find_gpu("H200")
    assert h200.capacity() == h200.usable_bytes - h200.context_bytes
    assert h200.capacity(2) == h200.capacity() - 2 * h200.communicator_bytes + NCCL_ONCE_BYTES
    assert h200.capacity(1, 7) == h200.capacity(1) - 7 * PEER_BYTES
    assert h200.capacity(10_000) == 0


def test_the_least_gpu_that_would_do():
    assert least_gpu(0).name == "T4"
    assert least_gpu(30 * GIB).name == "RTX-5090"
    assert least_gpu(find_gpu("A100-40GB").capacity()).name == "A100-40GB"
    assert least_gpu(find_gpu("A100-40GB").capacity(), num_process_groups=1).name == "L40S"
    assert least_gpu(1000 * GIB) is None


@pytest.mark.parametrize(
    ("name", "seen_mib"), [("RTX-4060-Ti-16GB", 107), ("RTX-3090", 256), ("RTX-6000-Ada", 426), ("RTX-PRO-6000", 555)]
)
def test_a_context_grows_with_the_threads_of_a_gpu_as_its_owners_reported(name: str, seen_mib: int):
    bare = find_gpu(name).context_bytes - TRAINING_BYTES
    assert bare == pytest.approx(seen_mib * MIB, rel=0.06)
