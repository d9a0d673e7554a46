"""The world in which ``cuda`` is a GPU that is not there."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

import torch

from memfit.phantom import autocast, cuda, ddp, device, distributed, host, kernels, parameters, shortcuts, streams, values
from memfit.phantom.assumptions import Assumptions
from memfit.phantom.cuda import CudaModule, Meter
from memfit.phantom.fake import PhantomMode
from memfit.phantom.replacing import Replacements
from memfit.phantom.target import Target


class PhantomWorld:
    """Inside it, CUDA code runs without a GPU; leaving it puts torch back as it was, also after an error.

    ``assumptions`` collects what had to be assumed along the way.
    """

    def __init__(self, target: Target, meter: Meter, *, world_size: int = 1, rank: int = 0) -> None:
        self.target = target
        self.assumptions = Assumptions()
        self.values = values.Values(self.assumptions)
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
        module = CudaModule(
            self.target, self._meter, min(self._world_size, distributed.GPUS_A_NODE), distributed.local_rank(self._rank)
        )
        cuda.install(undo, module, self.target)
        device.install(undo)
        host.install(undo, self.assumptions)
        autocast.install(undo, self.target)
        kernels.install(undo, self.target)
        parameters.install(undo, self.mode)
        values.install(undo, self.values)
        distributed.install(undo, self._world_size, self._rank)
        ddp.install(undo)
        shortcuts.install(undo)

    def _leave(self) -> None:
        # The mode first: what is put back must not be looked at by it.
        try:
            self._stack.close()
        finally:
            self._replacements.undo()
