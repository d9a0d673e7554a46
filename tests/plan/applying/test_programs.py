"""A plan, applied to programs that know nothing of it: for real, on the CPU, with losses that are equal bit by bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from memfit.cli import main
from memfit.errors import ConfigError
from memfit.plan import CheckpointingPolicy, Plan, PlanCost, PlannedModel, UnitPolicy
from memfit.plan.applying.checkpointed_forward import is_checkpointed
from memfit.plan.applying.programs import ProgramPlan, described
from memfit.watch.launch import program_environment

SCRIPT = """
import sys
import torch
from torch import nn

layers, device = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(64, 256), nn.Linear(256, 64), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(nn.functional.gelu(self.up(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

teacher, model = nn.Linear(64, 64).to(device), Net().to(device)
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(16384 if device == "cuda" else 16, 64, device=device)
for _ in range(3):
    with torch.no_grad():
        wanted = teacher(x)
    loss = nn.functional.mse_loss(model(x), wanted)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex(), flush=True)
"""
UNITS = tuple(f"layers.{number}" for number in range(4))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def a_plan(model: PlannedModel | None = None) -> Plan:
    policy = CheckpointingPolicy(groups=(UnitPolicy(units=UNITS[:2]),), untouched=UNITS[2:])
    cost = PlanCost(peak_allocated_bytes=1, peak_reserved_bytes=1, smallest_fit_bytes=1)
    return Plan(gpu="H200", budget_bytes=2, checkpointing=policy, figures=cost, model=model)


def test_a_script_is_planned_predicted_and_trained_with_equal_losses(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = script.with_name("plan.json")
    assert main(["plan", str(script), "--budget", "240MiB", "-o", str(path), "--", "4", "cuda"]) == 0
    assert f"memfit train --plan {path} {script} 4 cuda" in " ".join(capfd.readouterr().out.split())
    plan = Plan.load(path)
    assert plan.model == PlannedModel(kind="Net", num_parameters=4 * (64 * 256 + 256 + 256 * 64 + 64))
    assert plan.checkpointing is not None
    assert plan.checkpointing.groups

    assert (
        main(
            [
                "run",
                "--json",
                "--steps",
                "3",
                "--plan",
                str(path),
                "-o",
                str(script.with_name("r.memfit")),
                str(script),
                "4",
                "cuda",
            ]
        )
        == 0
    )
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["smallest_fit"] == plan.figures.smallest_fit_bytes

    command = [sys.executable, str(script), "4", "cpu"]
    bare = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert main(["train", "--plan", str(path), *command]) == 0
    assert capfd.readouterr().out == bare


def test_another_model_is_refused_before_its_first_backward(script: Path) -> None:
    a_plan().save(path := script.with_name("plan.json"))
    done = subprocess.run(
        [sys.executable, str(script), "3", "cpu"],
        capture_output=True,
        text=True,
        env=program_environment({"MEMFIT_PLAN": str(path)}),
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "the plan is for another model than this program trains" in done.stderr
    assert "Net: it has no layers.3" in done.stderr


def test_a_plan_that_cannot_be_read_ends_the_program(script: Path) -> None:
    (path := script.with_name("plan.json")).write_text("{")
    done = subprocess.run(
        [sys.executable, str(script), "4", "cpu"],
        capture_output=True,
        text=True,
        env=program_environment({"MEMFIT_PLAN": str(path)}),
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "is no plan: it is not JSON" in done.stderr


class Net(nn.Module):
    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.ReLU()) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_the_plan_goes_to_the_model_that_was_planned_and_to_no_other() -> None:
    small, planned = Net(4), Net(8)
    waiting = ProgramPlan(a_plan(described(planned)))
    call = nn.Module.__call__
    with waiting.applied():
        small(torch.ones(1, 4))
        planned(torch.ones(1, 8))
    assert [is_checkpointed(layer) for layer in planned.layers] == [True, True, False, False]
    assert not any(is_checkpointed(layer) for layer in small.layers)
    assert nn.Module.__call__ is call


def test_a_program_without_the_planned_model_is_an_error() -> None:
    with (
        pytest.raises(ConfigError, match="it is a Net of 80 parameters, the planned one a Net of 288"),
        ProgramPlan(a_plan(described(Net(8)))).applied(),
    ):
        Net(4)(torch.ones(1, 4))
