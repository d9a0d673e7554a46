"""``nvidia-smi`` tells of the predicted GPU, where there is none."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from helpers.phantom_worlds import phantom

from memfit.phantom.torch_cuda.nvidia_smi import NAME


@pytest.mark.skipif(shutil.which(NAME) is not None, reason="there is a real one")
def test_a_script_that_starts_it_reads_of_the_gpu():
    with phantom("T4", world_size=2):
        listed = subprocess.run([NAME], capture_output=True, text=True, check=True).stdout.splitlines()
        query = [NAME, "--query-gpu=index,name,memory.total,no.such", "--format=csv,noheader,nounits"]
        asked = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split(" (")[0] for line in listed] == ["GPU 0: NVIDIA T4", "GPU 1: NVIDIA T4"]
    index, name, memory, unknown = asked[1].split(", ")
    assert (index, name, memory.isdigit(), unknown) == ("1", "NVIDIA T4", True, "[N/A]")
    assert shutil.which(NAME) is None
