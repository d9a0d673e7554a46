"""Milliseconds of an operator on a GPU, whatever device its tensors are on, and what libraries keep there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from memfit.hardware import find_gpu
from memfit.phantom.clock.describe import describe
from memfit.phantom.kernels.library_handles import Libraries
from memfit.phantom.target import DEFAULT_TORCH, Target
from memfit.timing import Call, KernelSettings, Operand, price, usual_interconnect
from memfit.timing.collectives import all_gather_seconds, all_reduce_seconds
from memfit.torch_compat.fake_tensors import device_query

MODES: Final = ("operator-level-benchmark", "operator-level-cost-model")
"""PyTorch's two ways to estimate, both of which need CUDA. Here both mean ``memfit.timing``."""
_COLLECTIVES: Final = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class OperatorPrices:
    """Prices of a GPU and of the links that such GPUs usually have; equal calls are priced once."""

    def __init__(self, gpu: str) -> None:
        self._gpu = find_gpu(gpu)
        self._links = usual_interconnect(self._gpu)
        self._known: dict[Call, float] = {}

    def milliseconds(self, func: Any, args: Any, result: Any) -> float:
        """What the kernel of one call takes; nothing for looking at a tensor, or for a question about one."""
        if func is device_query or not hasattr(func, "_schema"):
            return 0.0
        return 1000 * self._seconds(func, args, result)

    def _seconds(self, func: Any, args: Any, result: Any) -> float:
        if func.namespace in _COLLECTIVES:
            return self._collective_seconds(func, args)
        schema = func._schema
        if schema.returns and all(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns):
            return 0.0  # it looks at a tensor in another way
        call = _on_gpu(describe(func, args, result))
        known = self._known.get(call)
        if known is None:
            settings = KernelSettings(allow_tf32=bool(torch.backends.cuda.matmul.allow_tf32))
            known = self._known[call] = price(call, self._gpu, settings).seconds
        return known

    def _collective_seconds(self, func: Any, args: Any) -> float:
        """Over the links, as ranks of the world that is there."""
        import torch.distributed as dist

        call = _on_gpu(describe(func, args, None))
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        size = max((tensor.size_bytes for tensor in call.inputs), default=0)
        seconds = all_reduce_seconds if "reduce" in call.name and "scatter" not in call.name else all_gather_seconds
        return seconds(size, ranks, self._links) if "wait" not in call.name else 0.0


def libraries_of(gpu: str) -> Libraries:
    """What libraries keep on a GPU, with the torch that is installed if it is one for CUDA."""
    return Libraries(Target.parse(gpu, torch.__version__ if "+cu" in torch.__version__ else DEFAULT_TORCH))


def check_mode(estimate_mode_type: str) -> str:
    """The name of a way to estimate, refused where it is none."""
    if estimate_mode_type not in MODES:
        raise NotImplementedError(f"cannot estimate by {estimate_mode_type!r}: {' and '.join(MODES)} are known")
    return estimate_mode_type


def _on_gpu(call: Call) -> Call:
    return Call(call.operator, tuple(map(_moved, call.arguments)), tuple(map(_moved, call.results)))


def _moved(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(_moved, argument))
    return replace(argument, device_kind="") if isinstance(argument, Operand) else argument
