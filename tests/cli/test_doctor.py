"""``memfit doctor``: what people paste into a bug report."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import memfit
from memfit.cli import main
from memfit.torch_compat.patches import active_patches


def test_what_it_says(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert f"memfit     {memfit.__version__}, Python" in said
    assert f"torch      {torch.__version__}: supported" in said
    assert "allocator  simulated in" in said
    assert "private parts of torch are where memfit knows them" in said
    assert "places in torch while a run is tracked" in said
    assert active_patches() == []


def test_every_patch_has_a_reason(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--patches"]) == 0
    said = capsys.readouterr().out
    assert "  the recorder: which module runs\n    torch.nn.modules.module.Module.__call__" in said
    assert "    torch.cuda.max_memory_reserved" in said
    assert ": \n" not in said


def test_for_programs(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["torch"]
    assert found["is_well"] is True
    assert all(patch["place"] and patch["who"] and patch["why"] for patch in found["replaced"])


MOVED = """
import sys, torch
del torch._C._swap_tensor_impl
from memfit.cli import main
sys.exit(main(["doctor"]))
"""


def test_a_part_that_torch_has_moved_is_named():
    done = subprocess.run([sys.executable, "-c", MOVED], capture_output=True, text=True)
    assert done.returncode == 1
    assert "torch._C._swap_tensor_impl is missing (torch_compat/tensors.py needs it)" in done.stdout


def test_it_says_which_facts_about_a_gpu_are_measured(capsys):
    assert main(["doctor", "--gpu", "A100-80GB"]) == 0
    said = capsys.readouterr().out
    assert "products     published  share of the peak: 271.2 of 312 teraflops" in said
    assert "host         assumed" in said
    assert main(["doctor", "--gpu", "H200"]) == 0
    assert "products     measured" in capsys.readouterr().out
