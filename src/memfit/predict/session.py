"""A phantom world with a recorder in it."""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

import memfit
from memfit.errors import NoGpuWorkError, StepFailedError
from memfit.hardware import PEER_BYTES, Gpu
from memfit.job import PredictOptions
from memfit.ledger import Coverage, Ledger, RunInfo
from memfit.ledger.cutting import leaves_all_as_it_was
from memfit.phantom.clock.communication import GroupUse
from memfit.phantom.clock.operator_clock import OperatorClock
from memfit.phantom.distributed.environment import RankInfo
from memfit.phantom.distributed.pipelines import Neighbours
from memfit.phantom.target import DEFAULT_TORCH, Target
from memfit.phantom.values.assumptions import Expected
from memfit.phantom.world import PhantomWorld
from memfit.predict.blame import advise, users_traceback
from memfit.predict.clock import ClockObserver, EngineTime, TimedBuilder, run_time
from memfit.predict.host import PinnedBlocks
from memfit.predict.meter import LedgerMeter
from memfit.predict.ranks import RankOutcome
from memfit.predict.result import Prediction, with_last_step_again
from memfit.predict.work import with_work
from memfit.predict.workspaces import CompiledBuffers, WorkspaceObserver
from memfit.record import run_hooks
from memfit.record.sources.operators.session import OperatorSession
from memfit.timing.basis import is_measured
from memfit.torch_compat.autograd import calibrate
from memfit.torch_versions import TorchVersion
from memfit.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from memfit.predict.limit import Refusal


@dataclass(frozen=True, kw_only=True)
class PhantomSession:
    """A phantom world with a recorder in it."""

    target: Target
    torch_version: str
    builder: TimedBuilder
    recording: OperatorSession
    workspaces: WorkspaceObserver
    pinned: PinnedBlocks
    world: PhantomWorld
    meter: LedgerMeter
    device: str
    num_on_node: int
    host_limit: int | None

    @classmethod
    def prepare(
        cls, options: PredictOptions, processes: RankInfo, neighbours: Neighbours | None = None, *, is_limited: bool = False
    ) -> PhantomSession:
        """A world for one of the processes; the world size is theirs, not that of the options. With ``is_limited``, what the GPU
        cannot serve raises ``torch.OutOfMemoryError`` in the run."""
        torch_version, alloc_conf = options.torch_version or DEFAULT_TORCH, options.alloc_conf
        target = Target.parse(options.gpu, torch_version)
        versions = {"memfit": memfit.__version__, "torch": torch_version, "python": platform.python_version()}
        clock = OperatorClock.of(target, options.interconnect)
        versions |= {"installed torch": torch.__version__}
        info = RunInfo(
            source="predicted",
            versions=versions,
            gpu=target.gpu.name,
            clock="timed" if is_measured(clock.chip) else "estimated",
            world_size=processes.world_size,
            rank=processes.rank,
            alloc_conf=alloc_conf,
        )
        builder = TimedBuilder(info, clock)
        device = f"cuda:{processes.local_rank}"
        workspaces, compiled, pinned = WorkspaceObserver(target), CompiledBuffers(), PinnedBlocks()
        recording = OperatorSession(builder, [workspaces, compiled, pinned, ClockObserver(clock)])
        recorder = recording.recorder
        recorder.let_compile()
        clock.follow(recorder)
        compiled.follow(recorder)
        meter = LedgerMeter(builder, recorder, alloc_conf, torch_version, device)
        if is_limited:
            from memfit.predict.limit import MemoryLimit

            num_groups = int(processes.world_size > 1)
            builder.limit = MemoryLimit(builder, device, target.gpu, num_groups, meter.settings)
        return cls(
            target=target,
            torch_version=torch_version,
            builder=builder,
            recording=recording,
            workspaces=workspaces,
            pinned=pinned,
            world=PhantomWorld(
                target,
                meter,
                processes=processes,
                expected=Expected(options.expected),
                neighbours=neighbours,
                clock=clock,
            ),
            meter=meter,
            device=device,
            num_on_node=processes.local_world_size,
            host_limit=None if options.host_memory is None else parse_bytes(options.host_memory),
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context manager: everything inside runs in the phantom world and is recorded. Leaving it closes the ledger."""
        gc.collect()
        calibrate()  # on real tensors, before the world is entered
        with self.world, self.recording.recording():
            withdraw = self.world.threads.invite(self.recording.recorder)
            engine_time = EngineTime(self.builder, self.recording.recorder)
            run_hooks.attach(engine_time)
            try:
                yield
            finally:
                run_hooks.detach(engine_time)
                withdraw()
            if failure := self.world.threads.failure():
                what, error = failure
                raise StepFailedError(what, error, users_traceback(error), advise(error)) from error

    def look_around(self) -> None:
        """Called at the end of a step, while the model exists: learns how the other ranks are arranged."""
        self.world.layout.look_at(module for module, _ in self.recording.recorder.modules())

    def last_step_left_all_as_it_was(self) -> bool:
        """True if the next step would begin in the same state as the last one."""
        ledger = self.builder.build()
        return not ledger.info.problem and leaves_all_as_it_was(ledger)

    def repeated(self, times: int, num_events: int, assumed: dict[str, int]) -> Prediction:
        """The prediction with the last step repeated ``times`` more times. The step ended at event ``num_events``; ``assumed``
        is what had been assumed before it."""
        self.world.assumptions.repeat_since(assumed, times)
        num_after = self.builder.num_events - num_events
        sooner = self.builder.sooner_next_time()
        return self._with_work(with_last_step_again(self._memory_and_time(), times, num_after=num_after, sooner=sooner))

    def outcome(self, prediction: Prediction, *, is_regular: bool = False) -> RankOutcome:
        """The prediction, with what it shows about the other ranks."""
        layout = self.world.layout.layout(self.world.world_size)
        return RankOutcome(prediction=prediction, layout=layout, stage_outputs=self.world.neighbours.told, is_regular=is_regular)

    @property
    def refusals(self) -> Sequence[Refusal]:
        """The requests that the GPU could not serve; empty without a memory limit."""
        return () if self.builder.limit is None else self.builder.limit.refusals

    def where_it_ran_out(self, number: int = -1) -> str:
        """The step, phase and module of a refused request."""
        ledger, refusal = self.builder.build(), self.refusals[number]
        return ledger.moment_at(min(refusal.num_events, len(ledger.events) - 1)).label

    def ran_out_notes(self) -> tuple[str, ...]:
        """Notes that memory ran out, for runs that continued after it."""
        if not self.refusals:
            return ()
        first, num = self.refusals[0].failure, len(self.refusals)
        times = "once" if num == 1 else f"{num} times"
        return (
            f"memory ran out {times} on {self.target.gpu.name}, and the script went on: first in "
            f"{self.where_it_ran_out(0)}, where {format_bytes(first.asked)} were asked for on top of "
            f"{format_bytes(first.allocated)}",
        )

    def ledger(self, notes: tuple[str, ...] = ()) -> Ledger:
        """The ledger so far, with its assumptions."""
        said = (
            *notes,
            *self.workspaces.assumptions,
            *self.world.clock.assumptions,
            *self.world.assumptions.sentences(),
            *self.world.expected.unused(),
            *_communicator_notes(self.world.clock.communication.uses.values(), self.target.gpu),
        )
        assumptions = (*_version_notes(self.torch_version), *said)
        builder = self.recording.builder
        several = [use for use in self.world.clock.communication.uses.values() if len(use.ranks) > 1]
        builder.info = replace(
            builder.info,
            assumptions=assumptions,
            alloc_conf=self.meter.alloc_conf,
            world_size=self.world.world_size,
            num_process_groups=len(several),
            num_peers=sum(len(use.peers) for use in several),
        )
        return builder.build()

    def prediction(self, *, notes: tuple[str, ...] = (), problem: str = "", covered: Coverage | None = None) -> Prediction:
        """The prediction. ``notes`` are further assumptions, ``problem`` is what was not seen of the run, ``covered`` what was."""
        builder = self.recording.builder
        if covered is not None:
            builder.info = replace(builder.info, covered=covered)
        if problem:
            builder.mark_incomplete(problem)
        return self._with_work(self._memory_and_time(notes))

    def _memory_and_time(self, notes: tuple[str, ...] = ()) -> Prediction:
        ledger = self.ledger(notes)
        if not any(known.name == self.device for known in ledger.devices):
            raise NoGpuWorkError(self.device)
        time, covered = run_time(self.world.clock), ledger.info.covered
        if not covered.is_whole and time.num_steps > covered.training_steps:
            time = time.without_last_step()
        return Prediction(
            ledger=ledger,
            target=self.target,
            torch_version=self.torch_version,
            alloc_conf=ledger.info.alloc_conf,
            device=self.device,
            time=time,
            ran_out=bool(self.refusals),
            pinned_blocks=frozenset(self.pinned.numbers),
            num_on_node=self.num_on_node,
            host_limit=self.host_limit,
        )

    def _with_work(self, prediction: Prediction) -> Prediction:
        """The ledger with the work of each stream in the last step."""
        assert prediction.time is not None
        return replace(prediction, ledger=with_work(prediction.ledger, prediction.time, self.world.clock.communication.group_names))


def _communicator_notes(uses: Iterable[GroupUse], gpu: Gpu) -> tuple[str, ...]:
    """Assumptions about NCCL's memory, for runs with several communicators or with point-to-point messages."""
    several = [use for use in uses if len(use.ranks) > 1]
    num_peers = sum(len(use.peers) for use in several)
    if len(several) < 2 and not num_peers:
        return ()
    named = ", ".join(f"{use.description or 'a group'} of {len(use.ranks)} ranks{_to_peers(use)}" for use in several)
    counted, first = gpu.communicators_bytes(len(several), num_peers), gpu.communicator_bytes
    further = gpu.communicators_bytes(2) - gpu.communicators_bytes(1)
    sources = [f"{format_bytes(first)} for the first (NVIDIA/nccl#964), {format_bytes(further)} for each further one (an H200)"]
    if num_peers:
        sources.append(f"{format_bytes(PEER_BYTES)} for each rank of the node in an all-to-all (NVIDIA/nccl#1685)")
    return (f"{format_bytes(counted)} are counted for NCCL's communicators, {named}: {', '.join(sources)}",)


def _to_peers(use: GroupUse) -> str:
    return f" with all-to-all to {len(use.peers)} of them in the node" if use.peers else ""


def _version_notes(torch_version: str) -> tuple[str, ...]:
    if TorchVersion.parse(torch_version).release == TorchVersion.parse(torch.__version__).release:
        return ()
    return (
        f"kernels and allocator are those of torch {torch_version}; what torch does in Python (FSDP above all) is that of the "
        f"installed {torch.__version__}",
    )
