"""CUDA graphs that a script captures itself, and TorchScript, passed over: the code runs as it is written."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from memfit.phantom.clock.launches import CapturedGraph
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.patches import Patches

NO_GRAPHS = (
    "CUDA graphs were passed over: what they capture runs once as it is, a replay takes as long again and no memory, and what a "
    "graph keeps for itself is not counted"
)


def install(patches: Patches, assumptions: Assumptions) -> None:
    # It would find torch's functions replaced.
    patches.replace(torch.jit, "script", lambda function, *args, **kwargs: function)
    _install_graphs(patches, assumptions)


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
    """``torch.cuda.CUDAGraph``: what it captures runs as it is; a replay takes as long, and nothing else."""

    _captured: CapturedGraph | None = None

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        self._captured = CapturedGraph()

    def capture_end(self) -> None:
        if self._captured is not None:
            self._captured.end()

    def instantiate(self) -> None: ...

    def replay(self) -> None:
        if self._captured is not None:
            self._captured.launch()

    def reset(self) -> None: ...

    def pool(self) -> tuple[int, int]:
        return (0, 1)


class _Capture:
    """``torch.cuda.graph``: what is inside runs."""

    def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, **kwargs: Any) -> None:
        self._graph, self._context = cuda_graph, torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self._context.__enter__()
        self._graph.capture_begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._graph.capture_end()
        self._context.__exit__(kind, error, trace)
