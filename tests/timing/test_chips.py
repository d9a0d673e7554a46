"""What is said of a GPU's speed."""

import pytest

from memfit.hardware import find_gpu
from memfit.timing.chips import what_times_are_from


@pytest.mark.parametrize(("name", "said"), [("H200", "read off an H200"), ("A100-40GB", "no operator was timed on A100-40GB")])
def test_a_time_says_what_it_is_from(name, said):
    assert said in what_times_are_from(find_gpu(name), 1)
    assert "links" not in what_times_are_from(find_gpu(name), 1)
    assert "links between GPUs were never measured" in what_times_are_from(find_gpu(name), 8)
