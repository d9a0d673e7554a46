"""Everything the recorder uses of torch that torch does not promise, in one place.

Known to hold for torch 2.10 to 2.13. Where a name is missing, importing this file raises ``UnsupportedTorchError`` with that name
in it; ``tests/record/test_torch_private.py`` exercises each one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from memfit.errors import UnsupportedTorchError


def _need(owner: Any, name: str) -> Any:
    found = getattr(owner, name, None)
    if found is None:
        raise UnsupportedTorchError(f"{getattr(owner, '__name__', owner)}.{name}", torch.__version__)
    return found


graph_task_id: Callable[[], int] = _need(torch._C, "_current_graph_task_id")
"""The backward pass that runs in this thread, -1 outside one."""

current_node: Callable[[], Any] = _need(torch._C, "_current_autograd_node")
"""The autograd node whose backward runs in this thread."""

next_sequence_nr: Callable[[], int] = _need(torch._C._autograd, "_get_sequence_nr")
"""The number that this thread's next autograd node will have: nodes made in a module's forward lie between two readings of it."""

num_dispatch_modes: Callable[[], int] = _need(torch._C, "_len_torch_dispatch_stack")
"""How many dispatch modes see this thread's operators. They are thread-local; autograd hands them on to its own threads."""

storage_use_count: Callable[[int], int] = _need(torch._C, "_storage_Use_Count")
run_backward_code = _need(_need(torch.autograd.graph, "_engine_run_backward"), "__code__")

fake_implementations: dict[Any, Callable[..., Any]] = _need(fake_impls, "op_implementations_dict")
"""By operator: how fake tensors answer it, where they do not ask its meta kernel."""

LEAF_SEQUENCE_NR = 2**64 - 1
"""What gradient accumulation nodes answer as their sequence number."""


def use_counts(tensor: torch.Tensor) -> tuple[int, int]:
    """How many owners a tensor and its storage have, temporary ones of the call in progress included."""
    return tensor._use_count(), storage_use_count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]


def raw_stream_getter(device: torch.device) -> Callable[[], int] | None:
    """A cheap reading of the current CUDA stream; ``None`` where there are no streams."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    get_raw_stream = _need(torch._C, "_cuda_getCurrentRawStream")
    index = device.index or 0
    return lambda: int(get_raw_stream(index))


def call_after_backward(function: Callable[[], None]) -> None:
    """Has the engine call ``function`` when this thread's pass is over, after what FSDP, DDP and others asked for."""
    queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(function))


def called_by_the_engine(frames_above: int) -> bool:
    """Was the operator issued by the autograd engine itself, rather than by Python code that it called?

    Autograd's own threads have no Python frame below a dispatch mode's; on the caller's thread it is the one that started backward.
    """
    try:
        frame = sys._getframe(frames_above)
    except ValueError:
        return True
    return frame.f_code is run_backward_code


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
    """Would autograd, without a dispatch mode in the way, have added into this gradient in place?"""
    dense = gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()
    return dense and use_counts(gradient) == _exclusive


def calibrate() -> None:
    """Learns once what ``held_by_the_engine_alone`` compares with."""
    global _exclusive
    if _exclusive is None:
        _exclusive = _exclusive_use_counts()


__all__ = [
    "LEAF_SEQUENCE_NR",
    "FakeTensor",
    "calibrate",
    "call_after_backward",
    "called_by_the_engine",
    "current_node",
    "fake_implementations",
    "graph_task_id",
    "held_by_the_engine_alone",
    "is_traceable_wrapper_subclass",
    "next_sequence_nr",
    "num_dispatch_modes",
    "raw_stream_getter",
    "use_counts",
]
