"""The autograd engine: which pass and node run, which nodes a stretch of forward made, and who issued an operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from memfit.errors import UnsupportedTorchError
from memfit.torch_compat.dispatch import TorchDispatchMode
from memfit.torch_compat.versions import need

graph_task_id: Callable[[], int] = need(torch._C, "_current_graph_task_id")
"""The backward pass that runs in this thread, -1 outside a pass."""

current_node: Callable[[], Any] = need(torch._C, "_current_autograd_node")
"""The autograd node whose backward runs in this thread."""

next_sequence_nr: Callable[[], int] = need(torch._C._autograd, "_get_sequence_nr")
"""The sequence number of this thread's next autograd node. Nodes of a module's forward lie between two readings."""

LEAF_SEQUENCE_NR = 2**64 - 1
"""The sequence number of gradient accumulation nodes."""

run_engine: Callable[..., Any] = need(torch.autograd.graph, "_engine_run_backward")
"""A backward pass."""

ENGINE_RUNS: tuple[tuple[Any, str], ...] = (
    (torch.autograd, "_engine_run_backward"),
    (torch.autograd.graph, "_engine_run_backward"),
)
"""The places from which passes are started."""
need(*ENGINE_RUNS[0])


def policy_modes() -> tuple[type, ...]:
    """The dispatch modes that ask a policy of selective checkpointing about each operator, in forward and when it runs again."""
    from torch.utils import checkpoint

    return need(checkpoint, "_CachingTorchDispatchMode"), need(checkpoint, "_CachedTorchDispatchMode")


def contexts_that_keep(operators: frozenset[Any]) -> tuple[Any, Any]:
    """Torch's selective contexts, with a policy that keeps the outputs of these operators. All others may run more often when a
    module runs again, or in another order.

    Torch from 2.12 on counts every operator, and stops where one runs that forward has not run. FSDP2's hooks do, of experts that
    are sharded on a mesh of their own inside of a block: gathering, waiting and the profiler's marks come as prefetching has them.
    """
    from torch.utils import checkpoint

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> checkpoint.CheckpointPolicy:
        is_kept = operator in operators
        return checkpoint.CheckpointPolicy.MUST_SAVE if is_kept else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    forward, again = checkpoint.create_selective_checkpoint_contexts(policy)
    run_it = getattr(checkpoint, "_RECOMPUTE", None)
    if run_it is not None:
        forward.storage = again.storage = _CallsByOperator(operators, run_it)
    return forward, again


class _CallsByOperator(dict[Any, dict[int, Any]]):
    """What forward's calls left behind, in the form that torch's contexts look it up."""

    def __init__(self, kept: frozenset[Any], run_it: object) -> None:
        super().__init__()
        self._kept, self._run_it = kept, run_it

    def __missing__(self, key: Any) -> dict[int, Any]:
        found = self[key] = {} if key in self._kept else _CallsToRun(self._run_it)
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key, default) if key in self._kept else self[key]


class _CallsToRun(dict[int, Any]):
    """A call that forward has not made is run."""

    def __init__(self, run_it: object) -> None:
        super().__init__()
        self._run_it = run_it

    def get(self, call: int, default: Any = None) -> Any:
        return super().get(call, self._run_it)


_run_backward_code = need(run_engine, "__code__")
_storage_use_count: Callable[[int], int] = need(torch._C, "_storage_Use_Count")
_queue_callback: Callable[[Callable[[], None]], None] = need(torch.autograd.Variable, "_execution_engine").queue_callback


def use_counts(tensor: torch.Tensor) -> tuple[int, int]:
    """The use counts of a tensor and of its storage, including temporary ones of the current call."""
    return tensor._use_count(), _storage_use_count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]


def queue_callback(function: Callable[[], None]) -> None:
    """Makes the engine call ``function`` when this thread's pass is over."""
    _queue_callback(function)


def call_after_backward(function: Callable[[], None]) -> None:
    """Makes the engine call ``function`` when this thread's pass is over, after the callbacks of FSDP, DDP and others."""
    _queue_callback(lambda: _queue_callback(function))


def called_by_the_engine(dispatcher: CodeType) -> bool:
    """True if the engine itself issued the operator that a dispatch mode handles, not Python code that the engine called.

    ``dispatcher`` is the code of the mode's ``__torch_dispatch__``. Autograd's own threads have no Python frame below it; on the
    caller's thread it is the one that started backward.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not dispatcher:
        frame = frame.f_back
    caller = frame.f_back if frame is not None else None
    return caller is None or caller.f_code is _run_backward_code


def _exclusive_use_counts() -> tuple[int, int]:
    """What ``use_counts`` gives in a dispatch mode for a gradient that only the autograd engine holds."""

    class Probe(TorchDispatchMode):
        seen: tuple[int, int] | None = None

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.add.Tensor and graph_task_id() != -1:
                Probe.seen = use_counts(args[0])
            return func(*args, **(kwargs or {}))

    with Probe(), torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True, device="cpu")
        torch.autograd.backward(torch.relu(leaf) + torch.sigmoid(leaf), torch.ones(1, device="cpu"))
    if Probe.seen is None:
        raise UnsupportedTorchError("gradient accumulation that a dispatch mode can see", torch.__version__)
    return Probe.seen


_exclusive: tuple[int, int] | None = None


def held_by_the_engine_alone(gradient: torch.Tensor) -> bool:
    """True if autograd, without a dispatch mode, would have accumulated into this gradient in place.

    It never does in a pass that makes a graph of itself: gradients are on in that pass, and what is added up may be needed again.
    """
    if torch.is_grad_enabled():
        return False
    dense = gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()
    return dense and use_counts(gradient) == _exclusive


def calibrate() -> None:
    """Measures once the use counts that ``held_by_the_engine_alone`` compares with."""
    global _exclusive
    if _exclusive is None:
        _exclusive = _exclusive_use_counts()
