import pytest

from memfit.errors import ConfigError
from memfit.hardware import find_gpu


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
        ("NVIDIA A10G", "A10G"),
        ("L40", "L40"),
        ("a6000", "RTX-A6000"),
        ("rtx4070tisuper", "RTX-4070-Ti-SUPER"),
        ("RTX 4070 Ti", "RTX-4070-Ti"),
        ("2080ti", "RTX-2080-Ti"),
        ("NVIDIA TITAN RTX", "TITAN-RTX"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA A800-SXM4-80GB", "A800-80GB"),
        ("h100-94gb", "H100-NVL-94GB"),
        ("mi355x", "MI355X"),
    ],
)
def test_names_are_taken_as_they_are_meant(said: str, meant: str):
    assert find_gpu(said).name == meant


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("a100", "could be A100-40GB or A100-80GB"),
        ("h100-81gb", "could be H100-80GB or H100-96GB"),
        ("L41", r"unknown GPU 'L41': did you mean L4 or L40\? memfit knows T4, V100-16GB"),
        ("titan", "could be TITAN-Xp or TITAN-V or TITAN-RTX"),
        ("rtx 6000", "could be Quadro-RTX-6000 or RTX-6000-Ada or RTX-PRO-6000"),
        ("", "unknown GPU"),
        ("gtx", "unknown GPU"),
    ],
)
def test_names_that_could_be_several_or_none_are_refused(said: str, problem: str):
    with pytest.raises(ConfigError, match=problem):
        find_gpu(said)
