"""What the GPU's libraries and kernels take beside the tensors that a recorder sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from memfit.phantom.kernels import RULES, Rule
from memfit.phantom.kernels.libraries import Libraries
from memfit.phantom.target import Target
from memfit.record.blocks import BlockWriter
from memfit.record.operators import Plan
from memfit.record.roles import tensors_in


class WorkspaceObserver:
    """Writes workspaces down: beside an operator's outputs, or between them where each is made by a kernel of its own."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._libraries = Libraries(target, self._free_kept)
        self._kept: list[Callable[[], None]] = []
        self.assumptions: dict[str, None] = {}
        """What rules had to assume, each once, in order."""

    def plan(self, func: Any, write_outputs: Plan | None, blocks: BlockWriter) -> Plan | None:
        rule = RULES.get(func)
        if rule is None or (rule.takes is None and rule.keeps is None):
            return write_outputs

        def plan_by_output(func: Any, args: Any, result: Any) -> None:
            assert rule.takes is not None
            assert write_outputs is not None
            device = _gpu_of(result)
            sizes = rule.takes(self._target, args, result) if device is not None else [()] * len(result)
            for output, taken in zip(result, sizes, strict=True):
                write_outputs(func, args, output)
                if output is not None:
                    _take_for_a_while(blocks, func, output.device, taken)

        def plan_with_workspaces(func: Any, args: Any, result: Any) -> None:
            if write_outputs is not None:
                write_outputs(func, args, result)
            device = _gpu_of(result)
            if device is not None:
                self._take(blocks, func, rule, args, result, device)

        return plan_by_output if rule.by_output else plan_with_workspaces

    def _take(self, blocks: BlockWriter, func: Any, rule: Rule, args: Any, result: Any, device: torch.device) -> None:
        if rule.keeps is not None:
            for size in self._libraries.newly_taken(func, args):
                self._kept.append(partial(blocks.free_workspace, blocks.write_workspace(func, device, size)))
        if rule.takes is not None:
            if rule.assumption is not None:
                self.assumptions[rule.assumption] = None
            _take_for_a_while(blocks, func, device, rule.takes(self._target, args, result))

    def _free_kept(self) -> None:
        while self._kept:
            self._kept.pop(0)()


def _take_for_a_while(blocks: BlockWriter, func: Any, device: torch.device, sizes: Sequence[int]) -> None:
    taken = [blocks.write_workspace(func, device, size) for size in sizes if size > 0]
    for block in taken:
        blocks.free_workspace(block)


def _gpu_of(result: Any) -> torch.device | None:
    first = next(tensors_in(result), None)
    return first.device if first is not None and first.is_cuda else None
