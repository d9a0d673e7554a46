"""``torch.compile`` in the phantom world: Dynamo, AOTAutograd and Inductor are the installed torch's own.

::

    a function is called ──> Dynamo ──> AOTAutograd ──> Inductor ──> a wrapper in Python, the memory plan
                              └──────── tracing.py ────────┘ inductor.py  │
                                        device_answers.py                 └──> wrapper.py runs it, forward and backward
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, Final

import torch

from memfit.phantom.compile import tracing
from memfit.phantom.target import Target
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.compiler import (
    COMPILE_FRAME,
    EXPORT,
    EXPORTS,
    FRAMES,
    NAMES_IN_GLOBALS,
    PACKAGES,
    RULE_TABLE,
    RULES,
    CompilerParts,
    configured,
    load,
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


_OTHER_TORCH = (
    "Inductor of the installed torch {installed} made the memory plan, and that of torch {predicted}, which is predicted, may plan "
    "otherwise: predict where torch {predicted} is installed, or with --torch-version {installed} if the run will use that"
)


def _filled_as_torch_is(table: Any) -> Callable[[], Any]:
    """Dynamo's table of torch's functions: where Dynamo was imported before the prediction, it is written only now, and with what
    stands in their places it would be another table."""

    def filled() -> Any:
        if table.cache_info().currsize:
            return table()
        with tracing.as_torch_is():
            return table()

    filled.cache_clear = table.cache_clear  # type: ignore[attr-defined]
    return filled


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
        self._patches.when_imported(RULES, lambda rules: self._patches.wrap(rules, RULE_TABLE, _filled_as_torch_is))
        self._patches.when_imported(EXPORTS, lambda exports: self._patches.wrap(exports, EXPORT, self._around_export))

    def _around_export(self, export: Callable[..., Any]) -> Callable[..., Any]:
        """``torch.export`` traces with symbolic sizes, which no other code may inspect."""

        def export_inside(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            with self._tracing():
                return export(*args, **kwargs)

        return export_inside

    def _around_frame(self, compile_frame: Callable[..., Any]) -> Callable[..., Any]:
        def compile_inside(code: CodeType, scope: dict[str, object], *args: Any, **kwargs: Any) -> Any:
            from memfit.phantom.compile.wrapper import note_garbage  # most predictions compile nothing

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
                        self._assumptions.add(
                            f"{_place(code)} is not compiled, as it would not be on the GPU: {tracing.reason_of(error)}"
                        )
                    raise
                except self._parts_in_use.failures as error:
                    self._assumptions.add(
                        f"{_place(code)} could not be compiled here, and is predicted as eager code: {tracing.reason_of(error)}"
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
            from memfit.phantom.compile.inductor import Inductor

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
        Inductor(parts, self._tracing, self._assumptions, self._target).install(patches)

    def _forget_code(self) -> None:
        for code in self._codes:
            self._parts_in_use.forget_code(code)
        self._codes.clear()

    def _forget_names(self) -> None:
        """Those of code that could not be compiled in the end, which torch does not take back."""
        for scope, before in self._scopes.values():
            for name in [name for name in scope if name not in before and name.startswith(NAMES_IN_GLOBALS)]:
                del scope[name]


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
