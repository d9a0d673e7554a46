"""The world in which ``cuda`` is a GPU that is not there."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

import torch

from memfit.phantom import (
    adopting,
    autocast,
    caches,
    checkpoints,
    compiling,
    cuda,
    ddp,
    device,
    distributed,
    fsdp1,
    host,
    kernels,
    legacy,
    parameters,
    pinning,
    pointers,
    refusals,
    shortcuts,
    streams,
    tools,
    tracing,
    values,
)
from memfit.phantom.assumptions import Assumptions
from memfit.phantom.cuda import CudaModule, Meter
from memfit.phantom.expected import Expected
from memfit.phantom.fake import PhantomMode
from memfit.phantom.replacing import Replacements
from memfit.phantom.target import Target


class PhantomWorld:
    """Inside it, CUDA code runs without a GPU; leaving it puts torch back as it was, also after an error.

    ``assumptions`` collects what had to be assumed along the way.
    """

    def __init__(
        self, target: Target, meter: Meter, *, world_size: int = 1, rank: int = 0, expected: Expected | None = None
    ) -> None:
        self.target = target
        self.assumptions = Assumptions()
        self.expected = expected or Expected()
        self.values = values.Values(self.assumptions, self.expected)
        self.mode = PhantomMode(self.values)
        self._meter = meter
        self._world_size, self._rank = world_size, rank
        self._replacements = Replacements()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        device.register()
        try:
            self._install()
            # Autograd has a thread for every device that existed when it first ran: perhaps before ours did.
            self._stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            self._stack.enter_context(self.mode)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()

    def _install(self) -> None:
        undo = self._replacements
        streams.restart()
        caches.install(undo)
        module = CudaModule(
            self.target, self._meter, min(self._world_size, distributed.GPUS_A_NODE), distributed.local_rank(self._rank)
        )
        cuda.install(undo, module, self.target)
        tools.install(undo, self.assumptions)
        device.install(undo)
        host.install(undo)
        pinning.install(undo)
        pointers.install(undo)
        compiling.install(undo, self.assumptions)
        checkpoints.install(undo, self.assumptions)
        refusals.install(undo)
        tracing.install(undo)
        legacy.install(undo)
        autocast.install(undo, self.target)
        kernels.install(undo, self.target)
        parameters.install(undo, self.mode)
        adopting.install(undo)
        values.install(undo, self.values)
        distributed.install(undo, self.assumptions, self._world_size, self._rank)
        ddp.install(undo)
        fsdp1.install(undo)
        shortcuts.install(undo, self.mode)

    def _leave(self) -> None:
        # The mode first: what is put back must not be looked at by it.
        try:
            self._stack.close()
        finally:
            self._replacements.undo()
