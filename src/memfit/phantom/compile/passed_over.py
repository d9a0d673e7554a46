"""``torch.compile`` and CUDA graphs, passed over: the code runs as it is written.

What compiling would change is said in the assumptions. ``model._orig_mod`` of a model that a script has compiled is the model.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import nn

from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.cuda import DYNAMO
from memfit.torch_compat.patches import Patches

EAGER = "torch.compile was passed over: the prediction is of the eager code"
NO_GRAPHS = (
    "CUDA graphs were passed over: what they capture runs once as it is, replays take nothing, and memory that a graph keeps for "
    "itself is not counted"
)


def install(patches: Patches, assumptions: Assumptions) -> None:
    compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def compile_nothing(model: Any = None, **kwargs: Any) -> Any:
        assumptions.add(EAGER)
        if isinstance(model, nn.Module):
            compiled.add(model)
        return model if model is not None else lambda function: function

    def original(module: nn.Module) -> nn.Module:
        if module in compiled:
            return module
        raise AttributeError(f"{type(module).__name__!r} object has no attribute '_orig_mod'")

    patches.replace(torch, "compile", compile_nothing)
    patches.replace(torch.compiler, "compile", compile_nothing)
    # It would find torch's functions replaced.
    patches.replace(torch.jit, "script", lambda function, *args, **kwargs: function)
    patches.replace(nn.Module, "compile", lambda module, *args, **kwargs: compile_nothing())
    patches.replace(nn.Module, "_orig_mod", property(original))
    for name in ("reset", "cudagraph_mark_step_begin"):
        patches.replace(torch.compiler, name, _nothing)
    _install_dynamo(patches, assumptions)
    _install_graphs(patches, assumptions)


def _install_dynamo(patches: Patches, assumptions: Assumptions) -> None:
    """What was compiled before the world was entered runs eagerly in it as well."""

    def optimize(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        assumptions.add(EAGER)
        return lambda function: function

    def take_over(dynamo: Any) -> None:
        for name in ("optimize", "optimize_assert"):
            patches.replace(dynamo, name, optimize)
        patches.replace(dynamo, "reset", _nothing)

    if DYNAMO in sys.modules:
        stance = torch.compiler.set_stance("force_eager")
        stance.__enter__()
        patches.finally_call(lambda: stance.__exit__(None, None, None))
    patches.when_imported(DYNAMO, take_over)


def _install_graphs(patches: Patches, assumptions: Assumptions) -> None:
    class CUDAGraph(_Graph):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            assumptions.add(NO_GRAPHS)

    def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
        assumptions.add(NO_GRAPHS)
        return callables

    for module in (torch.cuda, torch.cuda.graphs):
        patches.replace(module, "CUDAGraph", CUDAGraph)
        patches.replace(module, "graph", _Capture)
        patches.replace(module, "make_graphed_callables", make_graphed_callables)
        patches.replace(module, "graph_pool_handle", lambda: (0, 1))


class _Graph:
    """``torch.cuda.CUDAGraph``: captures nothing, and replays nothing."""

    def capture_begin(self, *args: Any, **kwargs: Any) -> None: ...

    def capture_end(self) -> None: ...

    def instantiate(self) -> None: ...

    def replay(self) -> None: ...

    def reset(self) -> None: ...

    def pool(self) -> tuple[int, int]:
        return (0, 1)


class _Capture:
    """``torch.cuda.graph``: what is inside runs."""

    def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, **kwargs: Any) -> None:
        self._context = torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self._context.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._context.__exit__(kind, error, trace)


def _nothing(*args: Any, **kwargs: Any) -> None: ...
