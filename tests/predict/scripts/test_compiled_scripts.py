"""Scripts that compile: what memfit wraps around calls of modules is no part of what they compile."""

from pathlib import Path

from memfit.job import PredictOptions
from memfit.predict.scripts.launchers import read_command
from memfit.predict.scripts.running import run_script
from memfit.predict.scripts.stopping import Bounds

WHOLE = """
import torch
from torch import nn

block = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda(), fullgraph=True)
optimizer = torch.optim.SGD(block.parameters())
while True:
    block(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_module_that_must_be_one_graph(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(WHOLE)
    job = read_command([str(script)])
    found = run_script(job, PredictOptions(gpu="H100", torch_version="2.11+cu130"), Bounds(steps=2)).prediction
    assert len(found.steps) == 2
    assert any(op.startswith("triton_") for op in found.ledger.strings)
    assert not any("not compiled" in sentence or "could not" in sentence for sentence in found.assumptions)
