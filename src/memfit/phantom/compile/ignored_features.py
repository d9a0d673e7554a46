"""Features that run as plain Python here: CUDA graphs that a script captures, TorchScript, ``torch.cond`` and ``while_loop``.

Torch runs control flow through its compiler, which is skipped here, or as one operator, whose inside no recorder sees. Here the
branch that is taken runs as it stands in the script.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from memfit.phantom.clock.launches import CapturedGraph
from memfit.phantom.device.streams import PrivatePool
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.dispatch import CONTROL_FLOW
from memfit.torch_compat.patches import Patches

GRAPHS = (
    "what CUDA graphs capture runs once as it is, with memory that each keeps to itself; a replay takes as long again and no "
    "memory, and what the driver keeps for a graph is not counted"
)
NO_GRAPHED_CALLABLES = (
    "torch.cuda.make_graphed_callables was passed over: what it would capture runs as it is, in the common memory"
)


def install(patches: Patches, assumptions: Assumptions) -> None:
    # It would find torch's functions replaced.
    patches.replace(torch.jit, "script", lambda function, *args, **kwargs: function)
    _install_graphs(patches, assumptions)


def _install_graphs(patches: Patches, assumptions: Assumptions) -> None:
    class CUDAGraph(_Graph):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            assumptions.add(GRAPHS)

    def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
        assumptions.add(NO_GRAPHED_CALLABLES)
        return callables

    for module in (torch.cuda, torch.cuda.graphs):
        patches.replace(module, "CUDAGraph", CUDAGraph)
        patches.replace(module, "graph", _Capture)
        patches.replace(module, "make_graphed_callables", make_graphed_callables)
        patches.replace(module, "graph_pool_handle", lambda: PrivatePool(takes_backward=True).id)
    patches.finally_call(_pools.clear)
    patches.finally_call(_Capture.forget)


_pools: dict[tuple[int, ...], PrivatePool] = {}
"""Those of graphs, by what torch calls them."""


class _Graph:
    """``torch.cuda.CUDAGraph``: what it captures runs as it is, in a pool of its own or of other graphs; a replay takes as long,
    and nothing else."""

    _captured: CapturedGraph | None = None
    _pool: PrivatePool | None = None

    def capture_begin(self, pool: Any = None, *args: Any, **kwargs: Any) -> None:
        self._captured = CapturedGraph()
        self._pool = PrivatePool(takes_backward=True) if pool is None else _pools.get(tuple(pool))
        if self._pool is None:
            self._pool = PrivatePool(takes_backward=True)
            _pools[tuple(pool)] = self._pool
        _pools.setdefault(self._pool.id, self._pool)
        self._pool.begin()

    def capture_end(self) -> None:
        if self._captured is not None:
            self._captured.end()
        if self._pool is not None:
            self._pool.end()

    def instantiate(self) -> None: ...

    def replay(self) -> None:
        if self._captured is not None:
            self._captured.launch()

    def reset(self) -> None: ...

    def pool(self) -> tuple[int, int]:
        return (0, 0) if self._pool is None else self._pool.id


class _Capture:
    """``torch.cuda.graph``: what is inside runs, on a stream that all captures share. The cache is emptied before:
    torch/cuda/graphs.py."""

    _stream: Any = None

    def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, **kwargs: Any) -> None:
        if stream is None and _Capture._stream is None:
            _Capture._stream = torch.cuda.Stream()
        self._graph, self._pool = cuda_graph, pool
        self._capturing = stream if stream is not None else _Capture._stream
        self._context = torch.cuda.stream(self._capturing)

    @classmethod
    def forget(cls) -> None:
        cls._stream = None

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._context.__enter__()
        self._graph.capture_begin(self._pool)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._graph.capture_end()
        self._context.__exit__(kind, error, trace)
        torch.cuda.current_stream().wait_stream(self._capturing)  # what runs here as it is captured would run in the first replay


def install_control_flow(patches: Patches) -> None:
    patches.replace(torch, "cond", _cond)
    for name, stand_in in (("cond", _cond), ("while_loop", _while_loop)):
        for module in CONTROL_FLOW[name]:
            patches.when_imported(module, functools.partial(_replace, patches, name, stand_in))


def _replace(patches: Patches, name: str, stand_in: Callable[..., Any], module: Any) -> None:
    patches.replace(module, name, stand_in)


def _cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    return true_fn(*operands) if bool(pred) else false_fn(*operands)


def _while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any) -> Any:
    carried = tuple(carried_inputs)
    while bool(cond_fn(*carried)):
        given = body_fn(*carried)
        carried = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    return carried
