"""While torch compiles, it sees torch as it is.

Dynamo knows torch's functions by identity, reads the user's code and records what it does with tensors of its own. While it works:

::

    the phantom's and the recorder's modes        are off: nothing of what is traced happens
    functions that stand in for torch's own       are set aside where Dynamo would not know them
    tensors                                       stay what they are: cuda to Python, another device kind to C++
    devices in what is recorded                   are cuda, whatever names them
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from memfit.phantom.device.device_alias import INNER, outer
from memfit.phantom.kernels import RULES
from memfit.torch_compat.compiler import INIT_GROUP, CompilerParts, compiled_graph
from memfit.torch_compat.dispatch import TorchDispatchMode, modes_of_this_thread, without_modes
from memfit.torch_compat.fake_tensors import SUBCLASSES_MODULE, FakeTensor
from memfit.torch_compat.patches import Aside, Patches, set_aside

_IN_THE_WAY: tuple[tuple[Any, frozenset[str]], ...] = (
    (torch, frozenset(("tensor", "as_tensor", "asarray", "device", "Generator", "Stream", "Event", "cond"))),
    (nn.Module, frozenset(("__call__",))),
    (nn.Parameter, frozenset(("__new__",))),
    (SUBCLASSES_MODULE, frozenset(("FakeTensor",))),
    (threading.Thread, frozenset(("start",))),
    (ThreadPoolExecutor, frozenset(("submit",))),
)
"""What Dynamo would take for code of the user's."""


def as_torch_is() -> AbstractContextManager[Any]:
    """Nothing at all is replaced, and no mode is active: for imports."""
    return _entered(lambda owner, name: True)


class Tracing:
    """The state in which torch compiles; what it has set aside is remembered."""

    def __init__(self, modes: Callable[[], Sequence[TorchDispatchMode]]) -> None:
        """``modes`` gives those that are active while the program runs, the innermost last."""
        self._modes = modes
        self._aside: Aside | None = None
        self._originals: dict[int, Any] = {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self._aside is not None:
            yield
            return
        try:
            with _entered(_is_in_the_way) as self._aside:
                self._originals.update((id(original), original) for original in self._aside.originals)
                yield
        finally:
            self._aside = None

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """What happens inside is part of the program, although torch does it while it compiles."""
        aside, self._aside = self._aside, None
        try:
            with ExitStack() as world:
                if aside is not None:
                    world.enter_context(aside.interrupted())
                for mode in self._modes():
                    world.enter_context(mode)
                yield
        finally:
            self._aside = aside

    @property
    def modes(self) -> Sequence[TorchDispatchMode]:
        """Those that are active while the program runs."""
        return self._modes()

    def is_set_aside(self, value: Any) -> bool:
        """Is this something of torch's in whose place something else is while the program runs?"""
        return id(value) in self._originals


@contextmanager
def _entered(is_chosen: Callable[[Any, Any], bool]) -> Iterator[Aside]:
    with without_modes(), set_aside(is_chosen) as aside, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns itself while it compiles
        yield aside


def _is_in_the_way(owner: Any, name: Any) -> bool:
    return any(owner is known and name in names for known, names in _IN_THE_WAY) or _is_modules_type(owner, name)


def _is_modules_type(owner: Any, name: Any) -> bool:
    """What stands for Python's ``type`` in a module (``tensors/classes.py``)."""
    return name == "type" and type(owner) is dict


def install(patches: Patches, parts: CompilerParts, tracing: Tracing) -> None:
    for mode in (
        parts.fake_modes.FakeTensorMode,
        parts.proxy_modes.ProxyTorchDispatchMode,
        parts.functional_modes.FunctionalTensorMode,
    ):
        patches.wrap(mode, "__torch_dispatch__", _naming_cuda)
    patches.wrap(parts.fake_modes.FakeTensorMode, "__torch_dispatch__", _as_on_the_gpu)
    # A constant that is copied to the GPU has no data there.
    patches.replace(parts.fake_modes.FakeTensorMode, "avoid_device_init", True)
    patches.wrap(parts.output_graph.OutputGraph, "call_user_compiler", lambda call: _with_own_inputs(parts, call))
    patches.wrap(parts.aot_autograd, "process_inputs", lambda process: _of_one_mode(parts, process))
    patches.wrap(parts.guards.CheckFunctionManager, "__init__", lambda init: _guarding(init, tracing))
    if hasattr(parts.wrapping, "InductorCompiledCode"):
        patches.wrap(parts.wrapping.InductorCompiledCode, "__call__", lambda call: _as_what_it_calls(parts, call))
    # Graphs write their code when they first run, and know devices by torch's own type.
    patches.wrap(parts.fx_graph.Graph, "python_code", lambda write: _while_tracing(write, tracing))
    patches.wrap(parts.optimizer_variable, "call_method", lambda call: _making_state(call, tracing))


def _as_what_it_calls(parts: CompilerParts, call: Callable[..., Any]) -> Callable[..., Any]:
    """With ``wrap_inductor_compiled_regions``, a compiled graph is one operator for modes such as selective checkpointing's. Ours
    must see what it does, and torch would run it uncompiled for fake tensors."""

    def __call__(operator: Any, graph: Any, inputs: Any, **kwargs: Any) -> Any:
        modes = modes_of_this_thread()
        if modes and getattr(modes[-1], "looks_into_compiled_graphs", False):
            return compiled_graph(parts.wrapping, graph)(inputs)
        return call(operator, graph, inputs, **kwargs)

    return __call__


def _naming_cuda(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """For modes that record: operators in C++ name the device as C++ knows it."""

    def __torch_dispatch__(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = kwargs.get("device") if kwargs else None
        if device is not None and device.type == INNER:
            kwargs = {**kwargs, "device": outer(device)}
        return dispatch(mode, func, types, args, kwargs or {})

    return __torch_dispatch__


def _as_on_the_gpu(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """For what Dynamo and AOTAutograd trace with: results lie in memory as they do on CUDA, convolutions with channels last."""
    returns = {operator: rule.returns for operator, rule in RULES.items() if rule.returns is not None}

    def __torch_dispatch__(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = returns.get(func)
        if answer is not None and any(isinstance(value, torch.Tensor) and value.is_cuda for value in args):
            with mode:
                result = answer(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        return dispatch(mode, func, types, args, kwargs or {})

    return __torch_dispatch__


def _with_own_inputs(parts: CompilerParts, call: Callable[..., Any]) -> Callable[..., Any]:
    """A backend is given examples of the inputs; those of the phantom belong to another mode than the graph."""

    def call_user_compiler(graph: Any, module: Any, example_inputs: Any) -> Any:
        return call(graph, module, _retold(parts, example_inputs))

    return call_user_compiler


def _of_one_mode(parts: CompilerParts, process: Callable[..., Any]) -> Callable[..., Any]:
    def process_inputs(flat_args: Any, *args: Any, **kwargs: Any) -> Any:
        return process(_retold(parts, flat_args), *args, **kwargs)

    return process_inputs


def _retold(parts: CompilerParts, examples: Any) -> list[Any]:
    """The inputs as tensors of the mode that traces, with the symbols that Dynamo has given their sizes."""
    context = parts.tracing_context.try_get()
    if context is None or context.fake_mode is None:
        return list(examples)
    mode = context.fake_mode

    def retell(value: Any) -> Any:
        if type(value) is not FakeTensor or value.fake_mode is mode:
            return value
        symbols = context.tensor_to_context.get(value)
        if symbols is None:
            return mode.from_tensor(value, static_shapes=True)
        return mode.from_tensor(value, source=symbols.tensor_source, symbolic_context=symbols, trace=False)

    with mode if examples else nullcontext():
        return [retell(value) for value in examples]


def _while_tracing(function: Callable[..., Any], tracing: Tracing) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with tracing():
            return function(*args, **kwargs)

    return call


def _making_state(call: Callable[..., Any], tracing: Tracing) -> Callable[..., Any]:
    """An optimizer's state is made when its step is compiled, and not by the compiled step."""

    def call_method(variable: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        optimizer = variable.value
        if name != INIT_GROUP or not hasattr(optimizer, name):
            return call(variable, tx, name, *args, **kwargs)
        make = getattr(optimizer, name)

        def make_in_the_world(*args: Any, **kwargs: Any) -> Any:
            with tracing.interrupted():
                return make(*args, **kwargs)

        vars(optimizer)[name] = make_in_the_world
        try:
            return call(variable, tx, name, *args, **kwargs)
        finally:
            del vars(optimizer)[name]

    return call_method


def _guarding(init: Callable[..., None], tracing: Tracing) -> Callable[..., None]:
    """Guards are checked when the program runs: what is set aside now is not there then, and a tensor's type is the one it has."""
    signature = inspect.signature(init)

    def __init__(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        choose = given.arguments.get("guard_filter_fn")

        def keep(entries: Any) -> list[bool]:
            wanted = choose(entries) if choose is not None else [True] * len(entries)
            return [
                bool(is_wanted) and not (entry.has_value and tracing.is_set_aside(entry.value))
                for is_wanted, entry in zip(wanted, entries, strict=True)
            ]

        given.arguments["guard_filter_fn"] = keep
        patched = Patches("the compiler").because("a tensor's type is the one it has when the program runs")
        patched.replace(SUBCLASSES_MODULE, "FakeTensor", _NoTensor)
        try:
            init(*given.args, **given.kwargs)
        finally:
            patched.undo()

    return __init__


class _NoTensor:
    """No tensor is one of these."""


def reason_of(error: BaseException) -> str:
    """The first lines of it, as torch words them: what follows is advice, and where torch was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"
