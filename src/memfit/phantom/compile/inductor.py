"""Inductor in the phantom world: it plans memory as on the GPU, and the wrapper that it writes is run without one.

Loaded when the first function is compiled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from memfit.phantom.compile import cuda_graphs, device_answers, folding, launches, tracing
from memfit.phantom.compile.tuning import Tuner
from memfit.phantom.compile.wrapper import run_wrapper
from memfit.phantom.target import Target
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.compiler import CompilerParts, taking_a_list
from memfit.torch_compat.patches import Patches

NOT_CHOSEN_BY_TIMING = (
    "max-autotune: matrix products and convolutions were taken to be the libraries' own and other kernels the first that Inductor "
    "proposes, since nothing is timed here, and what timing them takes while the graph is compiled was not counted"
)
_ASYNC = (
    "async tensor parallelism is predicted as ordinary collectives: the symmetric memory that its fused products use is not counted"
)


class Inductor:
    """What is replaced in Inductor, and in what it asks about the GPU."""

    def __init__(self, parts: CompilerParts, seen_as_it_is: tracing.Tracing, assumptions: Assumptions, target: Target) -> None:
        self._parts, self._tracing, self._assumptions, self._target = parts, seen_as_it_is, assumptions, target

    def install(self, patches: Patches) -> None:
        parts = self._parts
        device_answers.install(patches, parts, self._target)
        folding.install(patches, parts)
        cuda_graphs.install(patches, parts)
        launches.install(patches, parts, self._tracing.modes)
        tracing.install(patches, parts, self._tracing)
        patches.wrap(parts.compile_fx, "_compile_fx_inner", self._around_graph)
        tuner = Tuner(parts, self._target, self._assumptions)
        tuner.install(patches)
        patches.replace(parts.kernel_choices, "lookup", _in_order)
        patches.replace(parts.graph.GraphLowering, "compile_to_module", _compiling(tuner))

    def _around_graph(self, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        """Backward is compiled when it first runs, out of Dynamo's sight."""

        def compile_inside(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if self._parts.is_autotuning():
                self._assumptions.add(NOT_CHOSEN_BY_TIMING)
            if self._parts.has_async_tensor_parallelism():
                self._assumptions.add(_ASYNC)
            with self._tracing():
                try:
                    return compile_graph(graph, *args, **kwargs)
                except Exception as error:
                    self._assumptions.add(
                        f"Inductor could not plan a compiled graph here, and its operators run one by one: "
                        f"{tracing.reason_of(error)}"
                    )
                    return _one_by_one(graph)

        return compile_inside


def _in_order(choices_so_far: Any, choices: Sequence[Any], *args: Any, **kwargs: Any) -> dict[Any, float]:
    """How long each of the kernels takes that could do the same: the first is taken, and nothing is timed, read or kept on disk."""
    return {choice: float(place) for place, choice in enumerate(choices, start=1)}


def _one_by_one(graph: Any) -> Callable[[list[Any]], Any]:
    """A graph that runs as it was traced."""

    def run(args: list[Any]) -> Any:
        values = list(args)
        args.clear()
        return graph(*values)

    return taking_a_list(run)


def _compiling(tuner: Tuner) -> Callable[[Any], Any]:
    """In the place of GraphLowering's ``compile_to_module``, which writes a file and compiles its kernels."""
    return lambda graph: _to_module(graph, tuner)


def _to_module(graph: Any, tuner: Tuner) -> Any:
    written, _ = graph.codegen()
    source = written.value
    key = hashlib.sha256(source.encode()).hexdigest()
    graph.cache_key, graph.cache_path, graph.cache_linemap = key, "", []
    constants = {**graph.constants, **getattr(graph, "torchbind_constants", {})}
    is_backward = bool(getattr(graph, "is_backward", False))
    return run_wrapper(source, written.line_map, is_backward, constants, f"compiled graph {key[:12]}", tuner)
