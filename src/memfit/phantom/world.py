"""The world in which ``cuda`` is a GPU that is not there."""

from __future__ import annotations

import contextlib
import os
import threading
from types import TracebackType
from typing import Self

import torch

from memfit.engines import ENGINES
from memfit.errors import PredictionError
from memfit.phantom import current, kernels, libraries
from memfit.phantom.clock import python_parts
from memfit.phantom.clock.operator_clock import OperatorClock
from memfit.phantom.compile import ignored_features
from memfit.phantom.compile.compiler import Compiler
from memfit.phantom.current import CurrentWorld
from memfit.phantom.device import device_alias, generators, memory, streams
from memfit.phantom.distributed import environment, pipelines, process_groups, rank_shortcuts
from memfit.phantom.distributed.environment import RankInfo
from memfit.phantom.distributed.layout import LayoutObserver
from memfit.phantom.distributed.pipelines import Neighbours
from memfit.phantom.passthrough import checkpoints, refusals, transformers
from memfit.phantom.target import Target
from memfit.phantom.tensors import classes, forks, models, threads, torch_state
from memfit.phantom.tensors.mode import PhantomMode
from memfit.phantom.torch_cuda import autocast, module, nvidia_smi, tools
from memfit.phantom.torch_cuda.module import CudaModule, Meter
from memfit.phantom.values import answers
from memfit.phantom.values.assumptions import Assumptions, Expected
from memfit.torch_compat.autograd import calibrate
from memfit.torch_compat.patches import Patches

_one_at_a_time = threading.Lock()


def _renew_lock() -> None:
    """For the child of a fork: a thread of the parent may have held the lock."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def refuse_a_second() -> None:
    """Raises if a world is active in any thread."""
    if _one_at_a_time.locked():
        raise PredictionError(
            "another prediction is running in this process, and torch can be changed for one at a time: make predictions one after "
            "the other, or in processes of their own"
        )


class PhantomWorld:
    """A context in which CUDA code runs without a GPU. Leaving it restores torch, also after an error.

    ``assumptions`` collects what was assumed along the way.
    """

    def __init__(
        self,
        target: Target,
        meter: Meter,
        *,
        processes: RankInfo | None = None,
        expected: Expected | None = None,
        neighbours: Neighbours | None = None,
        clock: OperatorClock | None = None,
    ) -> None:
        self.target = target
        self.clock = clock or OperatorClock.of(target)
        self.neighbours = neighbours or Neighbours()
        self.layout = LayoutObserver()
        self.assumptions = Assumptions()
        self.expected = expected or Expected()
        self.values = answers.Values(self.assumptions, self.expected)
        self.mode = PhantomMode(self.values)
        self.threads = threads.Threads(self.mode, self.assumptions)
        self.casts = autocast.CastCache()
        self._meter = meter
        self._processes = processes or RankInfo()
        self.world_size = self._processes.world_size
        """Without a launcher, grows with the world that the run itself makes."""
        self._patches = Patches("the phantom GPU")
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        refuse_a_second()
        _one_at_a_time.acquire()
        # The first backward of a process starts a thread for every device there is, and no child can run autograd after that.
        calibrate()
        device_alias.register()
        try:
            self._install()
            # Autograd has a thread for every device that existed when it first ran: perhaps before ours did.
            self._stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            self.threads.begin()
            self._stack.enter_context(self.mode)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()

    def _install(self) -> None:
        """Installs all replacements, each with its reason. Later ones build on earlier ones."""
        because, assumptions = self._patches.because, self.assumptions
        processes = self._processes
        cuda = CudaModule(self.target, self._meter, processes.local_world_size, processes.local_rank)
        world = CurrentWorld(self.target, assumptions, self.clock, self.values.count, self.neighbours)
        current.begin(self._patches, world)
        streams.restart()
        python_parts.install(because("Python of torch's takes time"), self.clock.timeline, self.clock.pace)
        tools.install_cached_answers(because("what was remembered of the machine holds inside the world or outside it, not both"))
        module.install(because("torch.cuda and torch.accelerator answer for the target"), cuda, self.target)
        tools.install_markers(because("markers and profilers have nothing to do"))
        tools.install_transformers(because("torch.nn's transformers leave torch in evaluation"), assumptions)
        tools.install_lbfgs(because("when L-BFGS is content, only data can tell"), assumptions)
        tools.install_loss_scaler(because("whether a gradient overflows, only data can tell"), assumptions, self.expected)
        tools.install_sensors(because("a driver would tell of sensors, NCCL and the CUDA runtime"))
        nvidia_smi.install(because("scripts start nvidia-smi"), self.target, processes.local_world_size)
        tools.install_memory_tools(because("memory history, snapshots and pools are passed over"), assumptions)
        because("tensors are cuda to Python and a device kind of our own to C++")
        device_alias.install(self._patches, processes.local_rank)
        generators.install(because("generators of the GPU draw nothing"))
        torch_state.install_defaults(because("a script's defaults are put back; nothing looks like a compiler at work"))
        memory.install_pinned_memory(because("pinned memory is host memory that says it is pinned"))
        memory.install_pointers(because("addresses of memory that is not there"))
        ignored_features.install(because("CUDA graphs that a script captures, and TorchScript, are passed over"), assumptions)
        ignored_features.install_control_flow(because("the inside of torch.cond and similar operators is seen"))
        checkpoints.install(because("saving and loading without data"), assumptions)
        refusals.install(because("what needs a real GPU is refused by name"))
        libraries.install(because("kernels that are not torch's, and packages that need a GPU"), world)
        transformers.install(because("no library takes the prediction for a compiler at work, and the GPU's packages are found"))
        tools.install_tensor_types(because("torch.cuda.FloatTensor and the like"))
        autocast.install(because("CUDA's autocast lists"), self.target, self.casts)
        kernels.install(because("operators that CUDA runs differently"), self.target)
        torch_state.install_inference(because("inference mode is seen like no_grad, operator by operator"))
        models.install_parameters(because("modules without data can be moved and cast"), self.mode)
        self.mode.modified_views.watch_passes(because("views that were changed in place have gradients as on a GPU"))
        models.install_subclasses(because("classes of tensors and parameters that libraries make"), self.mode)
        classes.install(because("a tensor is a torch.Tensor, and a parameter an nn.Parameter, to those who ask for its type"))
        models.install_existing_models(because("models that were built before, with data"))
        models.install_initialisation(
            because("weights are initialised as the torch that is predicted does it"), self.target, assumptions
        )
        answers.install(because("values that only data can tell"), self.values)
        environment.install(because("a launcher tells each process who it is"), processes)
        because("one rank of a world of processes that are not there")
        process_groups.install(self._patches, self.values, processes, self._learn_world_size, self.clock.communication)
        pipelines.install(because("what pipeline stages ask their neighbours"), assumptions, self.target, self.neighbours)
        self.layout.install(because("how a job arranges its ranks"))
        for engine in ENGINES.values():
            engine.install(self._patches)
        rank_shortcuts.install(because("work that torch does once for every rank, done once"), self.mode)
        threads.install(because("threads that start inside the world are in it"), self.threads)
        because("torch.compile sees torch as it is")
        Compiler(self._patches, assumptions, self.target, self.threads.modes).install()
        forks.Forks(self._patches, self.mode, self.threads, self.values).begin()

    def _learn_world_size(self, world_size: int) -> None:
        self.world_size = world_size

    def _leave(self) -> None:
        # The mode first: what is put back must not be looked at by it.
        try:
            self.threads.finish()
            self._stack.close()
            self.threads.put_flags_back()
        finally:
            try:
                self._patches.undo()
            finally:
                _one_at_a_time.release()
