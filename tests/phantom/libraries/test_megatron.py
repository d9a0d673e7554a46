"""What a rank of a pipeline of Megatron's waits for the others, with doubles of its schedules."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
import torch

import memfit

SCHEDULES = """
    class parallel_state:
        @staticmethod
        def get_pipeline_model_parallel_world_size():
            return 4


    def forward_backward_pipelining_without_interleaving(*, model, num_microbatches, x):
        return [model(x) for _ in range(num_microbatches)]


    def forward_backward_pipelining_with_interleaving(*, model, num_microbatches, x):
        return [part(x) for _ in range(num_microbatches) for part in model]
"""


@pytest.fixture
def megatron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "megatron" / "core" / "pipeline_parallel" / "schedules.py"
    path.parent.mkdir(parents=True)
    path.write_text(textwrap.dedent(SCHEDULES))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        del sys.modules[name]


def predict(schedule: str, num_parts: int, num_microbatches: int) -> memfit.Prediction:
    def build():
        from megatron.core.pipeline_parallel import schedules

        parts = [torch.nn.Linear(8192, 8192, device="cuda") for _ in range(num_parts)]
        x = torch.randn(8192, 8192, device="cuda")

        def step():
            with torch.no_grad():
                model = parts if num_parts > 1 else parts[0]
                getattr(schedules, schedule)(model=model, num_microbatches=num_microbatches, x=x)

        return step

    return memfit.predict(build, gpu="H100-80GB", steps=2)


@pytest.mark.usefixtures("megatron")
@pytest.mark.parametrize(
    ("schedule", "num_parts", "share"),
    [
        ("forward_backward_pipelining_without_interleaving", 1, 3 / 8),
        ("forward_backward_pipelining_with_interleaving", 2, 3 / 16),
    ],
)
def test_a_rank_waits_for_the_other_stages(schedule: str, num_parts: int, share: float):
    found = predict(schedule, num_parts, num_microbatches=8)
    spent = found.time.breakdown()
    assert spent.exposed_communication == pytest.approx(share * spent.compute, rel=0.02)
    assert any("4 stages of the pipeline" in assumption for assumption in found.assumptions)
