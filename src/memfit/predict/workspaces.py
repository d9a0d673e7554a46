"""Recording in the phantom world: what the recorder sees, and what the GPU's libraries would have taken beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memfit.ledger import Category, LedgerBuilder
from memfit.phantom.kernels import RULES, Rule
from memfit.phantom.kernels.libraries import Libraries
from memfit.phantom.target import Target
from memfit.record.recorder import Plan, Recorder
from memfit.record.roles import tensors_in


class PhantomRecorder(Recorder):
    """A recorder that also writes down workspaces."""

    def __init__(self, builder: LedgerBuilder, target: Target) -> None:
        super().__init__(builder)
        self._target = target
        self._libraries = Libraries(target)
        self.assumptions: dict[str, None] = {}
        """What rules had to assume, each once, in order."""

    def _plan(self, func: Any) -> Plan | None:
        plan, rule = super()._plan(func), RULES.get(func)
        if rule is None or (rule.takes is None and rule.keeps is None):
            return plan

        def plan_by_output(func: Any, args: Any, result: Any) -> None:
            assert rule.takes is not None
            assert plan is not None
            device = _gpu_of(result)
            sizes = rule.takes(self._target, args, result) if device is not None else [()] * len(result)
            for output, blocks in zip(result, sizes, strict=True):
                plan(func, args, output)
                if output is not None:
                    self._take_for_a_while(func, output.device, blocks)

        def plan_with_workspaces(func: Any, args: Any, result: Any) -> None:
            if plan is not None:
                plan(func, args, result)
            device = _gpu_of(result)
            if device is not None:
                self._take_workspaces(func, rule, args, result, device)

        return plan_by_output if rule.by_output else plan_with_workspaces

    def _take_workspaces(self, func: Any, rule: Rule, args: Any, result: Any, device: torch.device) -> None:
        if rule.keeps is not None:
            for size in self._libraries.newly_taken(func, args):
                self._write_workspace(func, device, size)
        if rule.takes is not None:
            if rule.assumption is not None:
                self.assumptions[rule.assumption] = None
            self._take_for_a_while(func, device, rule.takes(self._target, args, result))

    def _take_for_a_while(self, func: Any, device: torch.device, sizes: Sequence[int]) -> None:
        taken = [self._write_workspace(func, device, size) for size in sizes if size > 0]
        for block in taken:
            self.builder.free(block)

    def _write_workspace(self, func: Any, device: torch.device, size: int) -> int:
        number, get_stream = self._devices[device]
        block = self.builder.alloc(size, number, self._op(func), self.scopes.top, get_stream() if get_stream is not None else 0)
        self.builder.role(block, Category.WORKSPACE)
        return block


def _gpu_of(result: Any) -> torch.device | None:
    first = next(tensors_in(result), None)
    return first.device if first is not None and first.is_cuda else None
