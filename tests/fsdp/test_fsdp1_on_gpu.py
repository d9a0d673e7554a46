"""FSDP1 on NCCL trains what the unsharded model trains, and its state dicts come back."""

import json
import subprocess
import sys

import pytest
import torch
from helpers import HELPERS
from helpers.hanging import HANGS_AFTER

SCRIPT = HELPERS / "fsdp1_training.py"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_fsdp1_trains_and_saves():
    ranks = str(torch.cuda.device_count())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_AFTER)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    plain = found.pop("plain")
    assert len(set(plain)) == 3, "else equal losses would prove nothing"
    for name, losses in found.items():
        if isinstance(losses[0], list):
            assert losses[0] == pytest.approx(losses[1], rel=1e-5), name
        else:
            assert losses == pytest.approx(plain, rel=1e-4), name
