"""Plan files, damaged: each is refused in a line, or is a plan that can be written out and applied, or refused then."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import torch
from torch import nn

import memfit
from attack.mutations import damage_bytes, damage_plain
from attack.protocol import Attack, Fell, Limits, Tried
from memfit.errors import MemfitError
from memfit.plan.plan_file import PlanCost
from memfit.plan.policy import CheckpointingPolicy, OperatorChoice, UnitPolicy

CHOICES = (OperatorChoice(operator="aten.addmm.default", call=0), OperatorChoice(operator="aten.relu.default", call=0))


class DamagedPlans(Attack):
    name = "plans"
    promise = "a damaged plan is refused in a line, before or when it is applied, or trains"
    limits = Limits(memory_bytes=6 * 2**30)

    def prepare(self, folder: Path) -> None:
        torch.set_num_threads(1)
        policy = CheckpointingPolicy(groups=(UnitPolicy(units=("0",)), UnitPolicy(units=("1",), choices=CHOICES)))
        figures = PlanCost(peak_allocated_bytes=1, peak_reserved_bytes=1, smallest_fit_bytes=1, step_seconds=0.1)
        plan = memfit.Plan(gpu="H200", budget_bytes=1 << 30, checkpointing=policy, figures=figures)
        self.sound = plan.to_json()
        if not self._train(plan):
            raise Fell("the sound plan was refused")

    def attempt(self, chance: Random, folder: Path) -> Tried:
        file = folder / "plan.json"
        if chance.random() < 0.3:
            file.write_bytes(damage_bytes(chance, json.dumps(self.sound).encode()))
        else:
            file.write_text(json.dumps(damage_plain(chance, self.sound)))
        try:
            plan = memfit.Plan.load(file)
            plan.code()
            is_used = self._train(plan)
        except MemfitError as error:
            if "\n" in str(error):
                raise Fell(f"it was refused in more than a line: {error}") from error
            is_used = False
        return Tried(files=1, refused=not is_used)

    def _train(self, plan: memfit.Plan) -> bool:
        block = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)]
        model = nn.Sequential(*block)
        memfit.apply(model, plan)
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
        return True


ATTACK = DamagedPlans()
