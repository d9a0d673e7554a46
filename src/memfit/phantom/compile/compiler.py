"""``torch.compile`` in the phantom world: Dynamo, AOTAutograd and Inductor are the installed torch's own.

::

    a function is called ──> Dynamo ──> AOTAutograd ──> Inductor ──> a wrapper in Python, the memory plan
                              └──────── tracing.py ────────┘              │
                                        device_answers.py                 └──> wrapper.py runs it, forward and backward
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, Final

import torch

from memfit.phantom.compile import cuda_graphs, device_answers, folding, tracing
from memfit.phantom.compile.tuning import Tuner
from memfit.phantom.compile.wrapper import note_garbage, run_wrapper
from memfit.phantom.target import Target
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.compiler import (
    COMPILE_FRAME,
    FRAMES,
    NAMES_IN_GLOBALS,
    PACKAGES,
    CompilerParts,
    configured,
    load,
    taking_a_list,
)
from memfit.torch_compat.dispatch import TorchDispatchMode
from memfit.torch_compat.dynamo import runs_frames_itself, stop_looking_at_frames
from memfit.torch_compat.patches import Patches
from memfit.torch_compat.versions import installed_torch
from memfit.torch_versions import TorchVersion

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""Where memfit is installed."""

_PHANTOM = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

NOT_COMPILED: Final = "__not_compiled__"
"""Packages and modules that have this name are no part of any program that is compiled. Short answers in the place of torch's and
others' functions are: Dynamo follows them, as a graph that ended at each would be another graph."""


NOT_CHOSEN_BY_TIMING = (
    "max-autotune: matrix products and convolutions were taken to be the libraries' own and other kernels the first that Inductor "
    "proposes, since nothing is timed here, and what timing them takes while the graph is compiled was not counted"
)
_ASYNC = (
    "async tensor parallelism is predicted as ordinary collectives: the symmetric memory that its fused products use is not counted"
)
_OTHER_TORCH = (
    "Inductor of the installed torch {installed} made the memory plan, and that of torch {predicted}, which is predicted, may plan "
    "otherwise: predict where torch {predicted} is installed, or with --torch-version {installed} if the run will use that"
)


class Compiler:
    """Takes part when the first function of a world is compiled."""

    def __init__(
        self, patches: Patches, assumptions: Assumptions, target: Target, modes: Callable[[], Sequence[TorchDispatchMode]]
    ) -> None:
        self._patches, self._assumptions, self._target = patches, assumptions, target
        self._tracing = tracing.Tracing(modes)
        self._parts: CompilerParts | None = None
        self._codes: set[CodeType] = set()
        self._scopes: dict[int, tuple[dict[str, object], set[str]]] = {}
        """Globals of modules whose functions are compiled, and the names that were there before."""
        self._num_raised = 0
        self._our_paths: tuple[str, ...] = ()

    def install(self) -> None:
        if runs_frames_itself():
            self._patches.finally_call(lambda: stop_looking_at_frames(at_most=self._num_raised))
        self._patches.around_imports(PACKAGES, tracing.as_torch_is)
        self._patches.when_imported(FRAMES, lambda frames: self._patches.wrap(frames, COMPILE_FRAME, self._around_frame))

    def _around_frame(self, compile_frame: Callable[..., Any]) -> Callable[..., Any]:
        def compile_inside(code: CodeType, scope: dict[str, object], *args: Any, **kwargs: Any) -> Any:
            self._begin()
            # In the place of functions in C++, which are no frames; and the first function of all is asked about before Dynamo has
            # been told to leave ours alone.
            if code.co_filename.startswith((_PHANTOM, *self._our_paths)):
                return self._parts_in_use.frame_result()
            self._codes.add(code)
            self._scopes.setdefault(id(scope), (scope, set(scope)))
            note_garbage()
            # Both names of the device are in the same state of autocast: Dynamo looks whether one has changed while it worked.
            torch.set_autocast_enabled("cuda", torch.is_autocast_enabled("cuda"))
            with self._tracing():
                try:
                    return compile_frame(code, scope, *args, **kwargs)
                except self._parts_in_use.not_compilable as error:
                    self._num_raised += 1
                    if _ROOT not in str(error):  # hooks of the recorder's end a graph; what follows them is compiled all the same
                        self._assumptions.add(f"{_place(code)} is not compiled, as it would not be on the GPU: {_reason(error)}")
                    raise
                except self._parts_in_use.failures as error:
                    self._assumptions.add(
                        f"{_place(code)} could not be compiled here, and is predicted as eager code: {_reason(error)}"
                    )
                    return self._parts_in_use.frame_result()

        return compile_inside

    @property
    def _parts_in_use(self) -> CompilerParts:
        assert self._parts is not None
        return self._parts

    def _begin(self) -> None:
        if self._parts is not None:
            return
        with tracing.as_torch_is():
            self._parts = parts = load()
            parts.fill_tables()
        installed, predicted = TorchVersion(installed_torch()), TorchVersion(self._target.torch)
        if installed != predicted:
            self._assumptions.add(_OTHER_TORCH.format(installed=installed, predicted=predicted))
        patches = self._patches.because("torch.compile asks about the GPU, and what it writes is run without one")
        patches.finally_call(self._forget_names)
        patches.finally_call(parts.remember_state())
        patches.finally_call(self._forget_code)
        settings = configured(parts)
        settings.__enter__()
        patches.finally_call(lambda: settings.__exit__(None, None, None))
        self._our_paths = _our_paths()
        for path in self._our_paths:
            patches.finally_call(parts.skip_frames_in(path))
        patches.finally_call(parts.silence())
        device_answers.install(patches, parts, self._target)
        folding.install(patches, parts)
        cuda_graphs.install(patches, parts)
        tracing.install(patches, parts, self._tracing)
        patches.wrap(parts.compile_fx, "_compile_fx_inner", self._around_graph)
        tuner = Tuner(parts, self._target, self._assumptions)
        tuner.install(patches)
        patches.replace(parts.kernel_choices, "lookup", _in_order)
        patches.replace(parts.graph.GraphLowering, "compile_to_module", _compiling(tuner))

    def _around_graph(self, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        """Backward is compiled when it first runs, out of Dynamo's sight."""

        def compile_inside(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if self._parts_in_use.is_autotuning():
                self._assumptions.add(NOT_CHOSEN_BY_TIMING)
            if self._parts_in_use.has_async_tensor_parallelism():
                self._assumptions.add(_ASYNC)
            with self._tracing():
                try:
                    return compile_graph(graph, *args, **kwargs)
                except Exception as error:
                    self._assumptions.add(
                        f"Inductor could not plan a compiled graph here, and its operators run one by one: {_reason(error)}"
                    )
                    return _one_by_one(graph)

        return compile_inside

    def _forget_code(self) -> None:
        for code in self._codes:
            self._parts_in_use.forget_code(code)
        self._codes.clear()

    def _forget_names(self) -> None:
        """Those of code that could not be compiled in the end, which torch does not take back."""
        for scope, before in self._scopes.values():
            for name in [name for name in scope if name not in before and name.startswith(NAMES_IN_GLOBALS)]:
                del scope[name]


def _in_order(choices_so_far: Any, choices: Sequence[Any], *args: Any, **kwargs: Any) -> dict[Any, float]:
    """How long each of the kernels takes that could do the same: the first is taken, and nothing is timed, read or kept on disk."""
    return {choice: float(place) for place, choice in enumerate(choices, start=1)}


def _our_paths() -> tuple[str, ...]:
    """Folders and files of memfit that say that they are not compiled."""
    found = []
    for name, module in list(sys.modules.items()):
        if name.startswith("memfit.") and hasattr(module, NOT_COMPILED) and module.__file__:
            is_package = hasattr(module, "__path__")
            found.append(os.path.dirname(module.__file__) + os.sep if is_package else module.__file__)
    return tuple(found)


def _place(code: CodeType) -> str:
    return f"{code.co_name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def _reason(error: BaseException) -> str:
    """The first lines of it, as torch words them: what follows is advice, and where torch was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"


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
