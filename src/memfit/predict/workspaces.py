"""Memory of libraries and kernels besides the recorded tensors, and the buffers of compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch

from memfit.ledger import Phase
from memfit.phantom.compile.allocation import Origin, current_origin, is_replayed
from memfit.phantom.kernels import RULES, Rule
from memfit.phantom.kernels.library_handles import Libraries
from memfit.phantom.kernels.rule import KernelTrial, ResultPlace, TakenBlocks
from memfit.phantom.target import Target
from memfit.record.sources.operators.blocks import BlockWriter
from memfit.record.sources.operators.handlers import OutputHandler
from memfit.record.sources.operators.recorder import Recorder
from memfit.record.tensors import tensors_in
from memfit.units import MIB, format_bytes

SURELY_FREE = 64 * MIB
"""Free memory is checked only for larger trials: a run without room for this much is short of memory anyway."""


class WorkspaceObserver:
    """Records workspaces: with an operator's outputs, or between them if each output has its own kernel."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._libraries = Libraries(target, self._free_kept)
        self._kept: list[Callable[[], None]] = []
        self._assumed: dict[str, None] = {}
        self._tried: set[Hashable] = set()
        self._largest_trial = 0
        self._tries_unknown = False

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the rules, each once, in order."""
        of_trials = (_of_trials(self._largest_trial, self._tries_unknown),) if self._tried else ()
        return (*self._assumed, *of_trials)

    def handler(self, func: Any, write_outputs: OutputHandler | None, blocks: BlockWriter) -> OutputHandler | None:
        rule = RULES.get(func)
        if rule is None or (rule.takes is None and rule.keeps is None and rule.copies is None):
            return write_outputs

        def plan_by_output(func: Any, args: Any, result: Any) -> None:
            assert rule.takes is not None
            assert write_outputs is not None
            device = _gpu_of(result)
            sizes = rule.takes(self._target, args, result) if device is not None else [()] * len(result)
            trials = self._new_trials(rule, args, result) if device is not None else [None] * len(result)
            of_call, of_first, *of_outputs = rule.copies(args) if device is not None and rule.copies else [()] * (len(result) + 2)
            held, held_at_first = _take(blocks, func, device, of_call), _take(blocks, func, device, of_first)
            for place, (output, copied, taken, trial) in enumerate(zip(result, of_outputs, sizes, trials, strict=True)):
                if output is None:
                    continue
                if place == len(result) - 1:
                    _give_back(blocks, *held_at_first)
                    held_at_first = []
                copies = _take(blocks, func, device, copied)
                write_outputs(func, args, output)
                self._try(blocks, func, output.device, trial)
                _give_back(blocks, *copies, *_take(blocks, func, device, taken))
            _give_back(blocks, *held_at_first, *held)

        def plan_with_workspaces(func: Any, args: Any, result: Any) -> None:
            device = _gpu_of(result)
            taken: TakenBlocks = rule.takes(self._target, args, result) if rule.takes is not None and device is not None else ()
            later = {each.place for each in taken if isinstance(each, ResultPlace)}
            results = result if isinstance(result, (tuple, list)) else (result,)
            if write_outputs is not None:
                write_outputs(func, args, [each for place, each in enumerate(results) if place not in later] if later else result)
            if device is None:
                return
            self._prepare(blocks, func, rule, args, result, device)
            held: list[int | None] = []
            for each in taken:
                if isinstance(each, ResultPlace):
                    if write_outputs is not None:
                        write_outputs(func, args, results[each.place])
                elif each < 0:
                    _give_back(blocks, held[-each - 1])
                    held[-each - 1] = None
                else:
                    held.append(blocks.write_workspace(func, device, each) if each else None)
            _give_back(blocks, *held)

        def plan_after_copies(func: Any, args: Any, result: Any) -> None:
            assert rule.copies is not None
            device = _gpu_of(result)
            sizes = rule.copies(args) if device is not None else ()
            copies = _take(blocks, func, device, sizes)
            plan_with_workspaces(func, args, result)
            _give_back(blocks, *copies)

        if rule.by_output:
            return plan_by_output
        return plan_with_workspaces if rule.copies is None else plan_after_copies

    def _prepare(self, blocks: BlockWriter, func: Any, rule: Rule, args: Any, result: Any, device: torch.device) -> None:
        """Records what comes before the blocks of this call: what libraries keep for good, and their trials."""
        if rule.keeps is not None:
            for size in self._libraries.newly_taken(func, args):
                self._kept.append(partial(blocks.free_workspace, blocks.write_workspace(func, device, size)))
        if rule.takes is not None:
            if rule.assumption is not None:
                self._assumed[rule.assumption if isinstance(rule.assumption, str) else rule.assumption(self._target)] = None
            for trial in self._new_trials(rule, args, result):
                self._try(blocks, func, device, trial)

    def _free_kept(self) -> None:
        while self._kept:
            self._kept.pop(0)()

    def _new_trials(self, rule: Rule, args: Any, result: Any) -> Sequence[KernelTrial | None]:
        """Per output: what a library tries out for this call, ``None`` if it has tried that before."""
        if rule.tries is None or not torch.backends.cudnn.benchmark:
            return [None] * (len(result) if rule.by_output else 1)
        options = (torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32)
        trials: list[KernelTrial | None] = []
        for trial in rule.tries(args, result):
            key = None if trial is None else (trial.key, options)
            is_new = key is not None and key not in self._tried
            if is_new:
                self._tried.add(key)
            trials.append(trial if is_new else None)
        return trials

    def _try(self, blocks: BlockWriter, func: Any, device: torch.device, trial: KernelTrial | None) -> None:
        """Records a trial. It ends with ``emptyCache()``: ATen/native/cudnn/Conv_v8.cpp."""
        if trial is None:
            return
        size = max(trial.sizes)
        if size > SURELY_FREE:
            room, _ = torch.cuda.mem_get_info(device)
            size = max((each for each in trial.sizes if each <= room), default=0)
        self._largest_trial = max(self._largest_trial, size)
        self._tries_unknown |= not trial.is_known
        _give_back(blocks, *_take(blocks, func, device, [size]))
        blocks.empty_caches()


def _of_trials(largest: int, is_any_unknown: bool) -> str:
    sentence = (
        "torch.backends.cudnn.benchmark is on: cuDNN measures all its kernels at the first call of each shape, with up to "
        f"{format_bytes(largest)} for a while (sizes seen on an H200); a GPU with less room gets by with less"
    )
    return (
        f"{sentence}. Some convolutions were of kinds that were not measured, and may take more then"
        if is_any_unknown
        else sentence
    )


def _take(blocks: BlockWriter, func: Any, device: torch.device | None, sizes: Sequence[int]) -> list[int]:
    return [] if device is None else [blocks.write_workspace(func, device, size) for size in sizes if size > 0]


def _give_back(blocks: BlockWriter, *taken: int | None) -> None:
    for block in taken:
        if block is not None:
            blocks.free_workspace(block)


def _gpu_of(result: Any) -> torch.device | None:
    first = next(tensors_in(result), None)
    return first.device if first is not None and first.is_cuda else None


# -- buffers of compiled graphs: by the kernel that writes them, in the module that the kernel was made from -----------------

aten = torch.ops.aten


class CompiledBuffers:
    """Records the allocations of compiled graphs, and nothing else."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None

    def follow(self, recorder: Recorder) -> None:
        """Sets the recorder, which knows the modules' numbers."""
        self._recorder = recorder

    def handler(self, func: Any, write_outputs: OutputHandler | None, blocks: BlockWriter) -> OutputHandler | None:
        if func is not aten.empty_strided.default or write_outputs is None:
            return write_outputs

        def plan_for_graphs(func: Any, args: Any, result: Any) -> None:
            if is_replayed():
                blocks.new(result, result.untyped_storage(), blocks.op("CUDA graph"), size=0)
                return
            origin = current_origin()
            if origin is None:
                write_outputs(func, args, result)
            else:
                self._write(origin, blocks, result)

        return plan_for_graphs

    def _write(self, origin: Origin, blocks: BlockWriter, result: torch.Tensor) -> None:
        assert self._recorder is not None
        scopes, depth = blocks.scopes, blocks.scopes.depth
        module = self._recorder.module_inside(origin.module)
        if module != -1:
            scopes.push(Phase.BACKWARD if origin.is_backward else Phase.FORWARD, module)
        try:
            blocks.new(result, result.untyped_storage(), blocks.op(origin.kernel))
        finally:  # memory may run out
            scopes.pop_to(depth)
