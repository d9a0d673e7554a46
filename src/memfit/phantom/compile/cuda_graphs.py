"""CUDA graphs that torch.compile records by itself, in the modes ``reduce-overhead`` and ``max-autotune``.

::

    first step     warm-up: compiled functions run as they are, on a stream and in a memory pool of their own
    second step    recording: the same, and inputs that are not at the same address each time are copied into the pool
    later steps    replay: nothing is allocated; results are in the pool, which the allocator's statistics do not count as allocated

A step is a forward, with all compiled functions in it, and its backward; a graph is recorded for each place in that order, so that
a function that three blocks share has three. A function that was never called warms up, and so does what follows it in that step.

The pool is shared by all graphs, and nothing else gets memory from it. A pool here is a stream: the allocator never serves one
stream with what another has freed. Libraries' workspaces are given back before and after warm-up and recording.
Source: torch/_inductor/cudagraph_trees.py; measured on an H200 (benchmarks/truth/h200_frontier.json).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.phantom.clock.launches import CapturedGraph
from memfit.phantom.compile.allocation import replaying
from memfit.phantom.device.streams import Stream, StreamContext
from memfit.phantom.kernels.library_handles import give_workspaces_back
from memfit.torch_compat.compiler import GRAPH_TREES, CompilerParts
from memfit.torch_compat.patches import Patches

Model = Callable[[list[Any]], Any]


def install(patches: Patches, parts: CompilerParts) -> None:
    pool = _Pool()

    def cudagraphify(
        model: Model,
        static_input_idxs: Sequence[int] = (),
        *,
        is_backward: bool = False,
        is_inference: bool = False,
        mutated_input_idxs: Any = (),
        **kwargs: Any,
    ) -> Model:
        return _Graphed(model, frozenset(static_input_idxs), tuple(mutated_input_idxs), pool, is_backward, is_inference)

    def of_another_backend(model: Model, inputs: Any, static_input_idxs: Sequence[int], *args: Any, **kwargs: Any) -> Model:
        """``backend="cudagraphs"`` records operators as they are traced."""
        return cudagraphify(model, static_input_idxs, **kwargs)

    patches.replace(parts.compile_fx, "cudagraphify", cudagraphify)
    patches.when_imported(GRAPH_TREES, lambda trees: patches.replace(trees, "cudagraphify_impl", of_another_backend))
    patches.replace(parts.output_code, "maybe_handle_backward_generation", lambda *args: None)
    patches.replace(parts.torch_c, "_cuda_cudaCachingAllocator_is_enabled", lambda: True)


class _Pool:
    """The memory that all graphs of a device share."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._path: tuple[Any, ...] = ()
        self._is_warming_up = False
        self._ran_last = False
        self._warm: set[Any] = set()
        self._storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    @property
    def stream(self) -> Stream:
        if self._stream is None:
            self._stream = Stream()
        return self._stream

    def arrive(self, function: Any, *, is_backward: bool, is_inference: bool) -> tuple[tuple[Any, ...], bool]:
        """Where in a step this call of a function is, and whether it is a warm-up."""
        if not is_backward and (self._ran_last or is_inference):
            self._path, self._is_warming_up = (), False
        self._ran_last = is_backward
        self._path = (*self._path, function)
        self._is_warming_up = self._is_warming_up or function not in self._warm
        self._warm.add(function)
        return self._path, self._is_warming_up

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage() in self._storages

    def keep(self, tensors: Sequence[Any], inputs: _Inputs | None = None) -> None:
        """Remembers results that were made in the pool."""
        for _, tensor in _tensors(tensors):
            if inputs is None or inputs.index_of(tensor) < 0:
                self._storages.add(tensor.untyped_storage())


class _Inputs:
    """Which input a result shares its storage with; inputs may be gone by then, and others in their place."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._storages = {id(found): (weakref.ref(found), index) for index, found in _storages(inputs)}

    def index_of(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        reference, index = self._storages.get(id(storage), (lambda: None, -1))
        return index if reference() is storage else -1


@dataclass(frozen=True)
class _Result:
    """How to make a result of a replay again: from an input, or from the pool."""

    size: Any
    stride: Any
    dtype: torch.dtype
    offset: int
    input: int
    """Which input's storage it shares, -1 if none."""
    storage: int
    """Which of the pool's storages it shares, if it is none of an input."""
    storage_bytes: int


class _Graphed:
    """A compiled function, and the graphs that were recorded of it."""

    def __init__(
        self, model: Model, static: frozenset[int], mutated: tuple[int, ...], pool: _Pool, is_backward: bool, is_inference: bool
    ) -> None:
        self._model, self._static, self._mutated, self._pool = model, static, mutated, pool
        self._is_backward, self._is_inference = is_backward, is_inference
        self._recorded: dict[Any, tuple[list[Any], CapturedGraph]] = {}

    def __call__(self, inputs: list[Any]) -> Any:
        if any(not self._is_managed(index, inputs) for index in self._mutated):
            return self._model(inputs)  # torch does not record what changes other people's tensors
        function = (id(self), *(value for value in inputs if isinstance(value, int)))
        path, is_warm_up = self._pool.arrive(function, is_backward=self._is_backward, is_inference=self._is_inference)
        if not is_warm_up and path in self._recorded:
            return self._replay(path, inputs)
        return self._run(path, inputs, is_recording=not is_warm_up)

    def _is_managed(self, index: int, inputs: list[Any]) -> bool:
        return index in self._static or (isinstance(inputs[index], torch.Tensor) and self._pool.holds(inputs[index]))

    def _run(self, key: Any, inputs: list[Any], *, is_recording: bool) -> Any:
        give_workspaces_back()
        graph = CapturedGraph()
        with StreamContext(self._pool.stream):
            if is_recording:
                self._copy_into_pool(inputs)
            given = _Inputs(inputs)
            results = self._model(inputs)
        graph.end()
        give_workspaces_back()
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        if is_recording:
            self._recorded[key] = _describe(results, given), graph
        self._pool.keep(results, given)
        return results

    def _copy_into_pool(self, inputs: list[Any]) -> None:
        for index, value in enumerate(inputs):
            if isinstance(value, torch.Tensor) and value.is_cuda and not self._is_managed(index, inputs):
                inputs[index] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
                del value

    def _replay(self, key: Any, inputs: list[Any]) -> Any:
        given = list(inputs)
        inputs.clear()
        made: dict[int, torch.Tensor] = {}
        results: list[Any] = []
        recorded, graph = self._recorded[key]
        graph.launch()
        with replaying():
            for result in recorded:
                results.append(_make(result, given, made) if isinstance(result, _Result) else result)
        self._pool.keep(list(made.values()))
        return results


def _tensors(values: Sequence[Any]) -> list[tuple[int, torch.Tensor]]:
    return [(index, value) for index, value in enumerate(values) if isinstance(value, torch.Tensor)]


def _storages(values: Sequence[Any]) -> list[tuple[int, torch.UntypedStorage]]:
    return [(index, tensor.untyped_storage()) for index, tensor in _tensors(values)]


def _describe(results: list[Any], inputs: _Inputs) -> list[Any]:
    numbers: dict[int, int] = {}
    described: list[Any] = []
    for value in results:
        if not isinstance(value, torch.Tensor):
            described.append(value)
            continue
        storage = value.untyped_storage()
        described.append(
            _Result(
                value.shape,
                value.stride(),
                value.dtype,
                int(value.storage_offset()),
                inputs.index_of(value),
                numbers.setdefault(id(storage), len(numbers)),
                int(storage.nbytes()),
            )
        )
    return described


def _make(result: _Result, inputs: list[Any], made: dict[int, torch.Tensor]) -> torch.Tensor:
    if result.input >= 0:
        base: torch.Tensor = inputs[result.input]
    elif result.storage in made:
        base = made[result.storage]
    else:
        count = -(-result.storage_bytes // result.dtype.itemsize)
        base = made[result.storage] = torch.empty_strided((count,), (1,), dtype=result.dtype, device="cuda")
    if base.dtype != result.dtype:
        base = base.view(result.dtype)
    return torch.as_strided(base, result.size, result.stride, result.offset)
