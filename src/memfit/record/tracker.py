"""``memfit.track``: records a run, and chooses the source that sees its blocks."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import torch
from torch import nn

import memfit
from memfit.errors import ConfigError
from memfit.ledger import Failure, Ledger, LedgerBuilder, RunInfo
from memfit.ledger.cutting import cut_at_failure
from memfit.ledger.journal import Journal, path_of_rank
from memfit.record.listener import warn
from memfit.record.out_of_memory import describe_failure
from memfit.record.session import RecordingSession
from memfit.record.sources.operators.session import OperatorSession
from memfit.torch_compat import memory_history
from memfit.torch_compat.dispatch import modes_of_this_thread
from memfit.torch_compat.fake_tensors import FakeTensor, FakeTensorMode

if TYPE_CHECKING:
    from memfit.allocator import Verdict
    from memfit.ledger.running_totals import RunningTotals
    from memfit.record.sources.allocator.history import AllocatorHistory
    from memfit.record.sources.allocator.levels import OnStep
    from memfit.record.sources.allocator.retention import Retention


def track(
    *subjects: Any,
    save_to: str | Path | None = None,
    on_oom: str | Path | None = None,
    witness: str | None = None,
    retention: Retention | None = None,
    on_step: Sequence[OnStep] = (),
) -> Tracker:
    """Records where the memory of everything inside the ``with`` block goes.

    ``subjects`` are the models, optimizers and input tensors that exist already, in any nesting of tuples, lists and dicts; what is
    made inside the block is found by itself. With ``save_to`` the ledger is on disk as the run goes on, readable even if the
    process is killed. With ``on_oom`` it is written there when ``torch.OutOfMemoryError`` passes through the block, which it does
    unchanged; ``memfit explain`` says what would have made it fit. Where a job has several processes, each writes to a file of its
    own: ``run.memfit`` becomes ``run.rank3.memfit``, and ``{rank}`` in a name becomes the number of the process.

    On CUDA the run is recorded from the history that CUDA's allocator keeps (``witness="allocator"``): everything that the process
    allocates there, libraries' workspaces included, at hardly any cost, and without changing what runs. Elsewhere, or with
    ``witness="operators"``, a dispatch mode sees every operator and knows its name; it belongs to the thread that enters it, and
    several threads can each have one. With a ``retention``, which needs the allocator, a run may last for weeks: some steps are
    kept in full, of all others how full the device was. ``on_step`` is called with the figures of each step. A forked child does
    not record.

    ::

        with memfit.track(model, optimizer, batch) as tracker:
            for _ in range(3):
                train_step()
        tracker.ledger.save("run.memfit")
    """
    return Tracker(*subjects, save_to=save_to, on_oom=on_oom, witness=witness, retention=retention, on_step=on_step)


class Tracker:
    """A recording. Entering it again continues the same ledger."""

    def __init__(
        self,
        *subjects: Any,
        save_to: str | Path | None = None,
        on_oom: str | Path | None = None,
        witness: str | None = None,
        retention: Retention | None = None,
        on_step: Sequence[OnStep] = (),
        history: AllocatorHistory | None = None,
    ) -> None:
        found, info = list(_flatten(subjects)), _run_info()
        witness = "allocator" if history is not None else choose_witness(witness, found)
        if witness == "operators" and (retention is not None or on_step):
            raise ConfigError("retention and on_step need the history of CUDA's allocator: witness='operators' has none")
        self._on_oom = _writable(path_of_rank(on_oom, info.rank, info.world_size)) if on_oom is not None else None
        self.path = path_of_rank(save_to, info.rank, info.world_size) if save_to is not None else None
        """Where the ledger is written while the run lasts, ``None`` if nowhere."""
        journal = _open_journal(self.path) if self.path is not None else None
        self._session: RecordingSession
        if witness == "operators":
            self._session = OperatorSession(LedgerBuilder(info, journal))
        else:
            from memfit.record.sources.allocator.history import CudaHistory
            from memfit.record.sources.allocator.session import HistorySession

            info = replace(info, witness=witness)
            self._session = HistorySession(info, journal, history or CudaHistory(), retention, on_step)
        self._depth = 0
        self._ledger: Ledger | None = None
        self._totals: RunningTotals | None = None
        self._totals_of: LedgerBuilder | None = None
        self.adopt(*found)

    def adopt(self, *subjects: nn.Module | torch.optim.Optimizer | torch.Tensor) -> None:
        """Records what existed before the recording began. Keeps no references."""
        self._session.adopt(subjects)

    @property
    def _builder(self) -> LedgerBuilder:
        return self._session.builder

    @property
    def ledger(self) -> Ledger:
        """Everything so far; after the block, the finished ledger."""
        if self._ledger is not None:
            return self._ledger
        self._session.catch_up()
        return self._builder.build()

    def __repr__(self) -> str:
        return f"Tracker({self.ledger_so_far()!r})"

    def _repr_html_(self) -> str:
        """What was recorded so far, drawn for a notebook."""
        return self.ledger_so_far()._repr_html_()

    def ledger_so_far(self) -> Ledger:
        """The ledger up to the last step that was kept; cheaper than ``ledger``."""
        return self._ledger if self._ledger is not None else self._builder.build()

    def mark_ended(self, problem: str) -> None:
        """Marks the ledger as incomplete if the program ended with a problem, and writes that to the file."""
        if problem and self._builder.info.complete:
            self._builder.mark_incomplete(problem)
            self._builder.flush()

    def running_totals(self) -> RunningTotals:
        """Current and peak memory in use. The cost is proportional to the number of events since the last call."""
        if self._ledger is None:
            self._session.catch_up()
        if self._totals is None or self._totals_of is not self._builder:
            from memfit.ledger.running_totals import RunningTotals

            self._totals_of = self._builder
            self._totals = RunningTotals(self._builder)
        return self._totals

    def fit(self, gpu: str, alloc_conf: str = "", torch_version: str | None = None) -> Verdict:
        """Judges whether this run fits on a GPU. ``torch_version`` is the allocator's, by default that of the recorded run."""
        from memfit.allocator import judge, parse_alloc_conf, requests_from_ledger
        from memfit.hardware import find_gpu

        version = torch_version or self.ledger.info.versions["torch"]
        return judge(requests_from_ledger(self.ledger), find_gpu(gpu), parse_alloc_conf(alloc_conf, version))

    def modules(self) -> Iterator[tuple[nn.Module, int]]:
        """The recorded modules that still exist, each with its number in the ledger."""
        return self._session.modules()

    def elapsed_ns(self) -> int:
        """The time on the ledger's clock."""
        return self._session.elapsed_ns()

    @property
    def num_steps_on_disk(self) -> int:
        """Number of steps in the file so far; 0 without a file, or if operators are recorded."""
        return self._session.num_steps_on_disk

    def step(self, number: int | None = None) -> None:
        """Starts a training step here. By default a step begins at the first forward after an optimizer step.

        ``number`` is the step's number in the ledger, by default the next one, from 0.
        """
        self._session.leave_steps_to_caller()
        self._session.mark_step(number)

    def __enter__(self) -> Self:
        if self._depth == 0 and not self._session.is_given_up:
            self._ledger = None
            if self._builder.info.failure:  # the run goes on after all
                self._builder.info = replace(self._builder.info, problem="", failure=Failure())
            self._session.attach()
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._depth -= 1
        if self._depth > 0 or self._session.is_given_up:
            return
        self._session.close()
        if isinstance(error, torch.OutOfMemoryError):
            self._note_failure(error)
        try:
            self._ledger = self._builder.close()
        except Exception as problem:  # a full disk at the end of a run is no reason to lose the run, nor the ledger in memory
            self._session.fail(problem)
            self._builder.give_up_journal()
        if self._builder.info.failure and self._on_oom is not None:
            self._save_failure(self._on_oom)

    def _note_failure(self, error: torch.OutOfMemoryError) -> None:
        time_ns, op = self._session.where_it_ran_out(error)
        try:
            failure = describe_failure(error, time_ns, op)
        except Exception:  # a device that can no longer be asked
            failure = Failure(message=str(error) or "out of memory", time_ns=time_ns, op=op)
        self._builder.info = replace(self._builder.info, failure=failure)
        self._builder.mark_incomplete(f"out of memory: {failure.message.partition(' GPU ')[0]}")

    def _save_failure(self, path: Path) -> None:
        """Saves the ledger of a run that ran out of memory. Never raises: the user must see the original error."""
        try:
            cut_at_failure(self.ledger).save(path)
        except Exception as problem:
            warn(f"the ledger of the run that ran out of memory could not be written to {path}: {problem}")


def _open_journal(path: str | Path) -> Journal:
    try:
        return Journal(path)
    except BlockingIOError as error:
        raise ConfigError(f"cannot write a ledger to {path}: {error.strerror}; give each recording a file of its own") from error
    except OSError as error:
        raise ConfigError(
            f"cannot write a ledger to {path} ({error.strerror}): choose a folder that exists and can be written to"
        ) from error


def _writable(path: str | Path) -> Path:
    path = Path(path)
    if not path.parent.is_dir() or path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"cannot write a ledger to {path}: choose a file in a folder that exists and can be written to")
    return path


def _flatten(value: Any) -> Any:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flatten(item)
    elif isinstance(value, (nn.Module, torch.Tensor, torch.optim.Optimizer)):
        yield value
    elif value is not None and not isinstance(value, (str, bytes, int, float, bool)):
        raise ConfigError(
            f"cannot track a {type(value).__name__}: pass models, optimizers, tensors, or tuples, lists and dicts of them"
        )


def rank_of_process() -> tuple[int, int]:
    """This process's rank and the world size; (0, 1) if neither torch nor the environment says."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if os.environ.get("RANK", "").isdigit() and os.environ.get("WORLD_SIZE", "").isdigit():
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1


def _run_info() -> RunInfo:
    rank, world_size = rank_of_process()
    versions = {"memfit": memfit.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return RunInfo(versions=versions, rank=rank, world_size=world_size, alloc_conf=memory_history.alloc_conf_of_environment())


WITNESSES: Final = ("operators", "allocator")


def choose_witness(wanted: str | None, subjects: Sequence[Any]) -> str:
    """Returns ``wanted``, or by default CUDA's allocator if it keeps a history and something tracked may be on a GPU."""
    if wanted is not None and wanted not in WITNESSES:
        raise ConfigError(f"there is no witness {wanted!r}: choose one of {', '.join(WITNESSES)}")
    if wanted == "operators":
        return wanted
    tensors = [tensor for subject in subjects for tensor in _tensors_of(subject)]
    devices = {tensor.device.type for tensor in tensors} - {"meta"}
    others = devices - {"cpu", "cuda"}
    if others:
        warn(f"tracking {', '.join(sorted(others))} with a dispatch mode: only CUDA's allocator keeps a history that memfit reads")
    are_elsewhere = bool(devices) and "cuda" not in devices
    if wanted is None and (are_elsewhere or any(isinstance(tensor, FakeTensor) for tensor in tensors)):
        return "operators"  # and CUDA is not asked for anything
    reason = why_no_history()
    if wanted == "allocator" and reason:
        raise ConfigError(f"cannot record from the allocator's history: {reason}. witness='operators' records any device")
    return "operators" if reason else "allocator"


def why_no_history() -> str:
    """The reason why the allocator's history cannot be read here; empty if it can."""
    if any(isinstance(mode, FakeTensorMode) for mode in modes_of_this_thread()):
        return "tensors are fake here, so that nothing is allocated"
    if not memory_history.keeps_history():
        backend = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if backend is not None and backend.type != "cuda":
            return f"the accelerator is {backend.type}, and only CUDA's allocator keeps a history that memfit reads"
        return "there is no CUDA here, or its allocator is not torch's own"
    if memory_history.is_kept_by_somebody():
        return "somebody else is keeping it: call torch.cuda.memory._record_memory_history(None) first"
    return ""


def _tensors_of(subject: Any) -> Iterable[torch.Tensor]:
    if isinstance(subject, nn.Module):
        return subject.parameters()
    if isinstance(subject, torch.Tensor):
        return [subject]
    return [parameter for group in subject.param_groups for parameter in group["params"]]
