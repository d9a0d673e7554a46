import pytest

from memfit.phantom.kernels.attention import _preference
from memfit.phantom.kernels.matmul import cublas_workspace
from memfit.phantom.target import DEFAULT_TORCH, Target
from memfit.units import MIB


@pytest.mark.parametrize(
    ("gpu", "capability", "workspace", "first"),
    [
        ("V100-16GB", (7, 0), 8.125 * MIB, "flash"),
        ("A100-40GB", (8, 0), 8.125 * MIB, "flash"),
        ("RTX-4090", (8, 9), 8.125 * MIB, "flash"),
        ("H100-80GB", (9, 0), 32 * MIB, "cudnn"),
        ("B200", (10, 0), 8.125 * MIB, "cudnn"),
        ("B300", (10, 3), 8.125 * MIB, "cudnn"),
        ("RTX-5090", (12, 0), 8.125 * MIB, "flash"),
        ("MI250X", (9, 0), 32 * MIB, "flash"),
        ("MI300X", (9, 4), 128 * MIB, "flash"),
        ("MI355X", (9, 5), 32 * MIB, "flash"),
        ("RX-7900-XTX", (11, 0), 32 * MIB, "flash"),
    ],
)
def test_an_architecture_decides_which_kernels_run_and_what_they_keep(gpu, capability, workspace, first):
    """ATen/cuda/CublasHandlePool.cpp and ATen/native/transformers/cuda/sdp_utils.cpp; cuDNN does not exist on AMD's."""
    target = Target.parse(gpu, DEFAULT_TORCH)
    assert target.capability == capability
    assert cublas_workspace(target) == workspace
    assert _preference(target)[0] == first


def test_a_measured_card_keeps_what_was_measured(tmp_path):
    from memfit.hardware import find_gpu

    table = {"cublas_workspace_bytes": 5 * MIB}
    from dataclasses import replace

    target = Target(gpu=replace(find_gpu("A100-40GB"), **table), torch=(2, 11))
    assert cublas_workspace(target) == 5 * MIB
