"""``memfit.predict``: the run that never happened."""

from __future__ import annotations

import gc
import platform
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import memfit
from memfit.errors import ConfigError, NoGpuWorkError, ScriptExitError, StepFailedError
from memfit.ledger import Ledger, LedgerBuilder, RunInfo
from memfit.phantom.distributed.process_groups import local_rank
from memfit.phantom.target import DEFAULT_TORCH, Target
from memfit.phantom.values.expected import Expected
from memfit.phantom.world import PhantomWorld
from memfit.predict.child_process import has_a_gpu_to_spare, in_a_child
from memfit.predict.meter import LedgerMeter
from memfit.predict.result import Prediction
from memfit.predict.workspaces import PhantomRecorder
from memfit.record import run_hooks
from memfit.torch_compat.autograd import calibrate

Step = Callable[[], Any]


def predict(
    build: Callable[[], Step],
    *,
    gpu: str = "H200",
    world_size: int = 1,
    rank: int = 0,
    steps: int = 3,
    torch_version: str = DEFAULT_TORCH,
    alloc_conf: str = "",
    expected: Mapping[str, float] | None = None,
) -> Prediction:
    """Runs ``build`` and the step it returns on a GPU that is not there.

    ``build()`` makes model, optimizer and data on ``"cuda"`` and returns ``step()``, which does one training step. With a world
    size above one, ``torch.distributed.init_process_group("nccl")`` makes this process one rank of a fake world.

    ::

        def build():
            model = Transformer().cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            tokens = torch.randint(0, 32000, (8, 2048), device="cuda")

            def step():
                model(tokens).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

            return step

        print(memfit.predict(build, gpu="H100").verdict)

    ``expected`` says what to assume where only data could tell: ``{"mask": 0.25}`` that a quarter of every mask is set,
    ``{"train.py:31": 128}`` how much that line asks for. ``Prediction.assumptions`` names the places.
    """
    if steps < 1 or not 0 <= rank < world_size:
        raise ConfigError(
            f"cannot predict {steps} steps of rank {rank} of {world_size}: at least one step, and a rank below the world size"
        )

    def make() -> Prediction:
        session = PhantomSession.prepare(gpu, torch_version, alloc_conf, world_size, rank, Expected(expected or {}))
        return _predict_steps(session, build, steps)

    return in_a_child(make) if has_a_gpu_to_spare() else make()


def _predict_steps(session: PhantomSession, build: Callable[[], Step], steps: int) -> Prediction:
    session.recorder.marks_steps = False
    with session.recording():
        step = calling("build", build)
        if not callable(step):
            raise ConfigError(
                f"build() must return step(), a function that does one training step; it returned a {type(step).__name__}"
            )
        for number in range(steps):
            session.recorder.mark_step()
            calling(f"step {number}", step)
    return session.prediction()


def calling(what: str, function: Callable[[], Any]) -> Any:
    """Calls the user's own code; what it raises is told with its traceback first."""
    try:
        return function()
    except ScriptExitError:
        raise
    except Exception as error:
        raise StepFailedError(what, error, _users_traceback(error)) from error


def _users_traceback(error: Exception) -> str:
    """The frames from the user's own code down."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _is_ours(file: str) -> bool:
    return Path(file).parent == Path(__file__).parent or "runpy" in file


@dataclass(frozen=True, kw_only=True)
class PhantomSession:
    """A phantom world with a recorder in it."""

    target: Target
    torch_version: str
    builder: LedgerBuilder
    recorder: PhantomRecorder
    world: PhantomWorld
    meter: LedgerMeter
    device: str

    @classmethod
    def prepare(
        cls, gpu: str, torch_version: str, alloc_conf: str, world_size: int, rank: int, expected: Expected
    ) -> PhantomSession:
        target = Target.parse(gpu, torch_version)
        versions = {"memfit": memfit.__version__, "torch": torch_version, "python": platform.python_version()}
        versions |= {"installed torch": torch.__version__, "gpu": target.gpu.name}
        info = RunInfo(source="predicted", versions=versions, world_size=world_size, rank=rank, alloc_conf=alloc_conf)
        builder = LedgerBuilder(info)
        device = f"cuda:{local_rank(rank)}"
        meter = LedgerMeter(builder, alloc_conf, torch_version, device)
        return cls(
            target=target,
            torch_version=torch_version,
            builder=builder,
            recorder=PhantomRecorder(builder, target),
            world=PhantomWorld(target, meter, world_size=world_size, rank=rank, expected=expected),
            meter=meter,
            device=device,
        )

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Everything inside is recorded; leaving closes the ledger."""
        gc.collect()
        calibrate()
        try:
            with self.world:
                run_hooks.attach(self.recorder)
                try:
                    with self.recorder:
                        yield
                finally:
                    run_hooks.detach(self.recorder)
        finally:
            self.recorder.catch_up()
            self.recorder.close_scopes()

    def ledger(self) -> Ledger:
        """The ledger so far, with what had to be assumed."""
        said = (*self.recorder.assumptions, *self.world.assumptions.sentences(), *self.world.expected.unused())
        assumptions = (*_version_notes(self.torch_version), *said)
        self.builder.info = replace(self.builder.info, assumptions=assumptions, alloc_conf=self.meter.alloc_conf)
        return self.builder.build()

    def prediction(self) -> Prediction:
        ledger = self.ledger()
        if not any(known.name == self.device for known in ledger.devices):
            raise NoGpuWorkError(self.device)
        return Prediction(
            ledger=ledger,
            target=self.target,
            torch_version=self.torch_version,
            alloc_conf=ledger.info.alloc_conf,
            device=self.device,
        )


def _version_notes(torch_version: str) -> tuple[str, ...]:
    wanted, installed = torch_version.partition("+")[0], torch.__version__.partition("+")[0]
    if wanted.split(".")[:2] == installed.split(".")[:2]:
        return ()
    return (
        f"kernels and allocator are those of torch {torch_version}; what torch does in Python (FSDP above all) is that of the "
        f"installed {torch.__version__}",
    )
