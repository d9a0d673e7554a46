"""The result of a prediction: memory, time and the verdict, all computed from its ledger."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from memfit.allocator import AllocatorSettings, Replay, Requests, Verdict, judge, parse_alloc_conf, replay, requests_from_ledger
from memfit.allocator.verdict import advised
from memfit.analysis import Breakdown, DeviceReport, Growth, ModuleStats, Report, breakdown_at, build_report, find_growth
from memfit.drawing import Drawn
from memfit.ledger import Coverage, Ledger, Phase, RunInfo
from memfit.ledger.cutting import repeat_last_step
from memfit.phantom.target import Target
from memfit.predict.host import HostMemory, host_memory
from memfit.timing.breakdown import RunTime, TimeBreakdown
from memfit.units import Bytes, format_bytes


@dataclass(frozen=True, kw_only=True)
class StepPrediction:
    """One step, or initialisation. All figures are bytes."""

    peak_allocated: Bytes
    """What ``torch.cuda.max_memory_allocated()`` would return, counted from the beginning of the step."""
    peak_reserved: Bytes
    end_allocated: Bytes
    """Memory in use at the end."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction(Drawn):
    """A predicted run, as the named GPU would have seen it. Everything is computed from the ledger."""

    ledger: Ledger
    target: Target
    torch_version: str
    alloc_conf: str
    device: str = "cuda:0"
    """The device of this rank."""
    time: RunTime | None = None
    """The times of everything that ran; ``None`` if no step was seen."""
    ran_out: bool = False
    """True if memory ran out and the run continued."""
    pinned_blocks: frozenset[int] = frozenset()
    """The numbers of the blocks in pinned host memory."""
    num_on_node: int = 1
    """Number of the run's processes on one host."""
    host_limit: int | None = None
    """The host's memory in bytes, ``None`` if unknown."""

    def __repr__(self) -> str:
        peaks = f"{format_bytes(self.peak_allocated)} allocated, {format_bytes(self.peak_reserved)} reserved"
        return f"Prediction({peaks}, on {self.target.gpu.name})"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was assumed: data-dependent values, kernels without a size formula."""
        return self.ledger.info.assumptions

    @property
    def problem(self) -> str:
        """What was not seen of the run, such as any training step; empty if nothing is missing."""
        return self.ledger.info.problem

    @property
    def covered(self) -> Coverage:
        """How much of a script was seen. ``is_known`` is false for other predictions, which are complete."""
        return self.ledger.info.covered

    # -- memory --------------------------------------------------------------------------------------------------------------

    @property
    def peak_allocated(self) -> Bytes:
        """What ``torch.cuda.max_memory_allocated()`` would return."""
        return Bytes(self.replay.peak_allocated)

    @property
    def peak_reserved(self) -> Bytes:
        """What ``torch.cuda.max_memory_reserved()`` would return."""
        return Bytes(self.replay.peak_reserved)

    @cached_property
    def growth(self) -> Growth | None:
        """The memory that every step leaves behind; ``None`` if memory does not grow, or too few steps were seen."""
        return find_growth(self.ledger, [known.name for known in self.ledger.devices].index(self.device))

    @property
    def smallest_fit(self) -> Bytes:
        """The smallest allocator limit under which the run completes."""
        return Bytes(self.verdict_alone.smallest_fit)

    @property
    def fits(self) -> bool:
        """True if the run fits on the named GPU, including context and communicators; with several GPUs, on each of them. False if
        part of the run was not seen."""
        return all(verdict.fits for verdict in (self.verdict_alone, *self.verdicts_of_others.values())) and not self.problem

    @cached_property
    def init(self) -> StepPrediction:
        """Everything before the first step."""
        return self._all_steps[0]

    @cached_property
    def steps(self) -> tuple[StepPrediction, ...]:
        return self._all_steps[1:]

    @cached_property
    def _all_steps(self) -> tuple[StepPrediction, ...]:
        allocated, reserved = (self.replay.per_event(level) for level in (self.replay.allocated, self.replay.reserved))
        bounds = np.concatenate(([0], self.ledger.step_starts, [len(allocated)]))
        found = []
        for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            span = slice(max(first - 1, 0), end)  # a step's peak is at least what it began with
            found.append(
                StepPrediction(
                    peak_allocated=Bytes(allocated[span].max(initial=0)),
                    peak_reserved=Bytes(reserved[span].max(initial=0)),
                    end_allocated=Bytes(allocated[end - 1] if end else 0),
                )
            )
        return tuple(found)

    @cached_property
    def host(self) -> HostMemory:
        """The host memory of this process's tensors."""
        return host_memory(self.ledger, self.pinned_blocks, num_processes=self.num_on_node, limit=self.host_limit)

    # -- time ----------------------------------------------------------------------------------------------------------------

    @property
    def step_seconds(self) -> float | None:
        """Duration of the last step, from the moment when everything before it is done; ``None`` without a step that was
        seen to its end."""
        return self.time.step_seconds() if self._has_steps and self.time is not None else None

    @property
    def step_seconds_range(self) -> tuple[float, float] | None:
        """The same with the fastest and the slowest host that was seen: wide where the GPU waits for the host."""
        return self.time.step_seconds_range() if self._has_steps and self.time is not None else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of this rank in the last step, counted by its embedding lookups; ``None`` if there were none. GPUs of one tensor
        parallel group look up the same tokens, so each contributes this divided by the size of the group."""
        if not self._has_steps or self.time is None:
            return None
        tokens = self.time.tokens(but_not=self._recomputed, module_of_scope=self.ledger.scopes.module)
        return tokens / self.step_seconds if tokens and self.step_seconds else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation of the last step: matrix products and attention, without recomputation, as a share of the GPU's
        peak in their types. ``None`` if there were none, or in a type whose peak is not known (float4)."""
        if not self._has_steps or self.time is None or not self.step_seconds:
            return None
        flops = self.time.flops(but_not=self._recomputed)
        if not flops.keys() <= self.time.peak_flops.keys():
            return None
        least = sum(count / self.time.peak_flops[kind] for kind, count in flops.items())
        return least / self.step_seconds if least else None

    @cached_property
    def time_breakdown(self) -> TimeBreakdown | None:
        """Where the time of the last step goes; ``None`` without a step that was
        seen to its end."""
        if not self._has_steps or self.time is None:
            return None
        paths = [self.ledger.module_path(number) for number in range(len(self.ledger.modules))]
        return self.time.breakdown(
            recomputed=self._recomputed, module_of_scope=self.ledger.scopes.module.tolist(), module_paths=paths
        )

    @property
    def _has_steps(self) -> bool:
        """True if there is a last step that was seen to its end."""
        return self.time is not None and self.time.num_steps > 0 and not self.problem

    @cached_property
    def _recomputed(self) -> frozenset[int]:
        """The numbers of the scopes in which checkpointing recomputes."""
        phase, parent = self.ledger.scopes.phase.tolist(), self.ledger.scopes.parent.tolist()
        found: set[int] = set()
        for scope, (kind, outer) in enumerate(zip(phase, parent, strict=True)):
            if kind == Phase.RECOMPUTE or outer in found:
                found.add(scope)
        return frozenset(found)

    # -- where it goes -------------------------------------------------------------------------------------------------------

    @property
    def breakdown(self) -> Breakdown:
        """Bytes by category at the peak, as requested by tensors: without the allocator's slack."""
        return breakdown_at(self.ledger, self.replay.peak_event, [known.name for known in self.ledger.devices].index(self.device))

    @property
    def modules(self) -> tuple[ModuleStats, ...]:
        """The memory of each module."""
        return self._device_report.modules

    @cached_property
    def report(self) -> Report:
        """Everything that the views show."""
        return build_report(self.ledger)

    @property
    def _device_report(self) -> DeviceReport:
        return next(device for device in self.report.devices if device.name == self.device)

    # -- the allocator -------------------------------------------------------------------------------------------------------

    @cached_property
    def requests(self) -> Requests:
        return requests_from_ledger(self.ledger, self.device)

    @cached_property
    def replay(self) -> Replay:
        """The run's requests served by the allocator: with unlimited memory, or with the GPU's if memory ran out in the run."""
        if self.ran_out:
            verdict = self._judged
            return replay(self.requests, self._settings, capacity=verdict.capacity, total_memory=self.target.gpu.usable_bytes)
        return self._unlimited

    @cached_property
    def _unlimited(self) -> Replay:
        return replay(self.requests, replace(self._settings, per_process_memory_fraction=None))

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the run fits on the named GPU, by how much, and what would help."""
        return advised(self.verdict_alone, self.requests)

    @cached_property
    def verdict_alone(self) -> Verdict:
        """The verdict without the needs of other allocator settings, which are most of the work."""
        return replace(self._judged, peak_reserved=self.replay.peak_reserved) if self.ran_out else self._judged

    @cached_property
    def _judged(self) -> Verdict:
        return judge(self.requests, self.target.gpu, self._settings, with_advice=False, unlimited=self._unlimited)

    @cached_property
    def verdicts_of_others(self) -> dict[str, Verdict]:
        """Verdicts on the other GPUs that this process uses, by device name. They are assumed to be of the same kind."""
        names = [known.name for known in self.ledger.devices if known.is_cuda and known.name != self.device]
        return {
            name: judge(requests_from_ledger(self.ledger, name), self.target.gpu, self._settings, with_advice=False)
            for name in names
        }

    def relabelled(self, info: RunInfo) -> Prediction:
        """A copy with another ``info``; everything computed from the events is kept."""
        same = copy.copy(self)
        vars(same).pop("report", None)  # it has the words, too
        object.__setattr__(same, "ledger", replace(self.ledger, info=info))
        return same

    def about(self, asked: Mapping[str, Any], command: str = "", made_at: str = "") -> Prediction:
        """The same with a ledger that says what was asked for, by which command and when, and how long a step takes."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items()}
        known = {"step_seconds": self.step_seconds, "tokens_per_second": self.tokens_per_second, "mfu": self.mfu}
        speed = {name: float(value) for name, value in known.items() if value is not None}
        return self.relabelled(replace(self.ledger.info, asked=plain, command=command, made_at=made_at, speed=speed))

    @property
    def _settings(self) -> AllocatorSettings:
        return parse_alloc_conf(self.alloc_conf, self.torch_version)


def with_last_step_again(prediction: Prediction, times: int, *, num_after: int, sooner: float) -> Prediction:
    """The prediction with its last step repeated, each time starting ``sooner`` seconds earlier after the previous step. The last
    ``num_after`` events are after that step."""
    assert prediction.time is not None
    ledger, time = prediction.ledger, prediction.time
    start, end = int(ledger.step_starts[-1]), len(ledger.events) - num_after
    first_scope, num_scopes = (int(np.count_nonzero(ledger.scope_enter < event)) for event in (start, end))
    total_ns = int(1e9 * time.steps[-1].seconds) - int(ledger.events.time_ns[start])
    return replace(
        prediction,
        ledger=repeat_last_step(ledger, times, total_ns, sooner_ns=round(1e9 * sooner), num_after=num_after),
        time=time.with_last_step_again(times, sooner=sooner, first_scope=first_scope, num_scopes=num_scopes - first_scope),
    )
