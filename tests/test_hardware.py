import pytest

from memfit.errors import ConfigError
from memfit.hardware import NCCL_ONCE_BYTES, PEER_BYTES, find_gpu, gpus, least_gpu
from memfit.units import GIB, MIB


@pytest.mark.parametrize("gpu", gpus(), ids=lambda gpu: gpu.name)
def test_every_gpu_is_plausible_and_says_where_it_is_from(gpu):
    assert 0.9 * gpu.total_bytes < gpu.usable_bytes <= gpu.total_bytes
    assert 300 * MIB < gpu.context_bytes < GIB
    assert 100 * MIB < gpu.communicator_bytes < 2 * GIB
    assert gpu.usable_source
    assert gpu.speed_source
    assert find_gpu(gpu.name) is gpu


def test_gpus_are_in_order():
    assert [gpu.usable_bytes for gpu in gpus()] == sorted(gpu.usable_bytes for gpu in gpus())


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("h100", "H100-80GB"),
        ("H100 80GB", "H100-80GB"),
        ("h100-96gb", "H100-96GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("a100-40g", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("v100-16", "V100-16GB"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("rtx4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("5090", "RTX-5090"),
        ("l4", "L4"),
        ("L40S", "L40S"),
        ("a10", "A10"),
        ("H200-141GB", "H200"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_names_are_taken_as_they_are_meant(said: str, meant: str):
    assert find_gpu(said).name == meant


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("a100", "could be A100-40GB or A100-80GB"),
        ("h100-94gb", "could be H100-80GB or H100-96GB"),
        ("L40", "unknown GPU 'L40': memfit knows T4, V100-16GB"),
        ("", "unknown GPU"),
        ("gtx", "unknown GPU"),
    ],
)
def test_names_that_could_be_several_or_none_are_refused(said: str, problem: str):
    with pytest.raises(ConfigError, match=problem):
        find_gpu(said)


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
