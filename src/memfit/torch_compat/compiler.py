"""torch.compile: the parts of Dynamo, AOTAutograd and Inductor that memfit reaches into.

Loading them takes seconds, so nothing is imported here before ``load`` is called, which only those do who compile.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any, TypeVar

from memfit.torch_compat.versions import need, need_in

Function = TypeVar("Function", bound=Callable[..., Any])

PACKAGES = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._higher_order_ops", "torch.fx", "functorch")
"""What compiles. Their modules write torch's own functions down in tables when they are imported."""

FRAMES = "torch._dynamo.convert_frame"
"""The module that compiles the frame of a Python function; ``COMPILE_FRAME`` in it does."""

COMPILE_FRAME = "_compile"

RULES = "torch._dynamo.trace_rules"
"""The module that knows how Dynamo treats each of torch's functions; ``RULE_TABLE`` in it makes the table of them, once."""

RULE_TABLE = "get_torch_obj_rule_map"

EXPORTS = "torch.export._trace"
"""The module of ``torch.export``; ``EXPORT`` in it does all of it."""

EXPORT = "_export"

CURRENT_STREAM = "get_current_stream"

GRAPH_TREES = "torch._inductor.cudagraph_trees"
"""The module that records CUDA graphs."""

NAMES_IN_GLOBALS = ("__builtins_dict__", "__compiled_fn_", "__import_", "__resume_at_")
"""What Dynamo adds to the globals of a module whose functions it compiles begins so."""

INIT_GROUP = "_init_group"
"""The method with which an optimizer makes its state."""


def is_constant(function: Function) -> Function:
    """Marks what compiled code asks once, when it is compiled: ``torch.compiler.assume_constant_result`` without its imports."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


_LOGGERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx")

_ASK_FOR_TRITON = (
    "torch._inductor.compile_fx",
    "torch._inductor.scheduler",
    "torch._inductor.fx_passes.pad_mm",
    "torch._inductor.runtime.autotune_cache",
)
"""Modules of Inductor with a ``has_triton`` of their own. Those that would import it then are not among them."""

_DEVICE_ANSWERS_ARE_KEPT_BY = (
    "torch._inductor.utils",
    "torch._inductor.codecache",
    "torch._inductor.runtime.hints",
    "torch._inductor.runtime.benchmarking",
    "torch._inductor.runtime.runtime_utils",
    "torch._inductor.codegen.triton",
    "torch._inductor.codegen.triton_utils",
    "torch._inductor.choices",
    "torch._inductor.analysis.device_info",
    "torch._inductor.comm_analysis",
    "torch._inductor.fx_passes.pad_mm",
    "torch._inductor.kernel.mm",
    "torch._inductor.kernel.flex_attention",
)
"""Modules with functions that ask about the device once and keep the answer."""


_GROWING = (
    ("torch._dynamo.utils", "guard_failures"),
    ("torch._dynamo.utils", "graph_break_reasons"),
    ("torch._dynamo.eval_frame", "cached_backends"),
    ("torch._dynamo.eval_frame", "dynamo_tls.traced_frame_infos"),
)
"""What Dynamo notes of each compilation: by code, or one after the other."""


class CompilerParts:
    """Where everything is in the installed torch."""

    def __init__(self) -> None:
        config = importlib.import_module("torch._inductor.config")
        with config.patch(compile_threads=1):  # the import would start processes that compile kernels
            self.compile_fx = importlib.import_module("torch._inductor.compile_fx")
        self.inductor_config = config
        self.dynamo_config = importlib.import_module("torch._dynamo.config")
        self.functorch_config = importlib.import_module("torch._functorch.config")
        self.frames = importlib.import_module(FRAMES)
        self.dynamo = importlib.import_module("torch._dynamo")
        self.guards = importlib.import_module("torch._dynamo.guards")
        self.output_graph = importlib.import_module("torch._dynamo.output_graph")
        self.trace_rules = importlib.import_module(RULES)
        self.optimizer_variable: Any = need(importlib.import_module("torch._dynamo.variables.optimizer"), "OptimizerVariable")
        functions = importlib.import_module("torch._dynamo.variables.functions")
        self.kernel_launches: Any = need(functions, "DynamoTritonHOPifier")
        """Traces launches of Triton's kernels; ``call_triton_kernel`` traces one."""
        self.repros = importlib.import_module("torch._dynamo.repro.after_aot")
        """Writes graphs down, for reports of faults: ``save_graph_repro``."""
        self.aot_autograd = importlib.import_module("torch._functorch.aot_autograd")
        self.graph = importlib.import_module("torch._inductor.graph")
        self.output_code = importlib.import_module("torch._inductor.output_code")
        self.fx_graph = importlib.import_module("torch.fx.graph")
        self.torch_c: Any = importlib.import_module("torch._C")
        self.scheduler = importlib.import_module("torch._inductor.scheduler")
        self.joint_graph = importlib.import_module("torch._inductor.fx_passes.joint_graph")
        self.pad_mm = importlib.import_module("torch._inductor.fx_passes.pad_mm")
        self.inductor_utils = importlib.import_module("torch._inductor.utils")
        self.code_cache: Any = need(importlib.import_module("torch._inductor.codecache"), "PyCodeCache")
        self.cpu_vec_isa = importlib.import_module("torch._inductor.cpu_vec_isa")
        self.triton_questions = importlib.import_module("torch.utils._triton")
        self.hints = importlib.import_module("torch._inductor.runtime.hints")
        self.triton_heuristics: Any = importlib.import_module("torch._inductor.runtime.triton_heuristics")
        self.kernel_choices: Any = need(importlib.import_module("torch._inductor.select_algorithm"), "AlgorithmSelectorCache")
        """Chooses one of several kernels; ``lookup`` says how long each takes."""
        self.has_triton: bool = need(importlib.import_module("torch._inductor.runtime.triton_compat"), "HAS_TRITON")
        """Is Triton installed?"""
        self.wrapping = importlib.import_module("torch._higher_order_ops.wrap")
        """Has the operator that calls a compiled graph, where selective checkpointing is to see graphs."""
        self.fake_modes = importlib.import_module("torch._subclasses.fake_tensor")
        self.proxy_modes = importlib.import_module("torch.fx.experimental.proxy_tensor")
        self.functional_modes = importlib.import_module("torch._subclasses.functional_tensor")
        device_interface = importlib.import_module("torch._dynamo.device_interface")
        self.worker_properties: dict[str, Any] = need(device_interface, "caching_worker_device_properties")
        self.cuda_interface: Any = need(device_interface, "CudaInterface")
        exceptions = importlib.import_module("torch._dynamo.exc")
        self.not_compilable: tuple[type[Exception], ...] = (need(exceptions, "Unsupported"), need(exceptions, "UserError"))
        """What Dynamo raises of code that it does not compile, on whatever machine."""
        names = ("BackendCompilerFailed", "InternalTorchDynamoError", "TorchRuntimeError")
        self.failures: tuple[type[Exception], ...] = (
            AssertionError,
            *(getattr(exceptions, name) for name in names if hasattr(exceptions, name)),
        )
        """What it raises when something goes wrong."""
        self.frame_result: Any = need(importlib.import_module("torch._dynamo.types"), "ConvertFrameReturn")
        self.tracing_context: Any = need(importlib.import_module("torch._guards"), "TracingContext")

    def is_autotuning(self) -> bool:
        """Would kernels of matrix products be chosen by timing them?"""
        return bool(self.inductor_config.max_autotune or self.inductor_config.max_autotune_gemm)

    @staticmethod
    def tensor_in(argument: Any) -> Any:
        """The tensor that Dynamo traces an argument as, or that a descriptor describes; ``None`` if it is something else."""
        variables: Any = importlib.import_module("torch._dynamo.variables")
        value = argument.realize() if hasattr(argument, "realize") else argument
        value = getattr(value, "tensor", value)
        return value if isinstance(value, variables.TensorVariable) else None

    @staticmethod
    def traced_call(tx: Any, operator: Any, number: int, *lists: Sequence[Any]) -> Any:
        """Has Dynamo trace a call of an operator with a number and lists of traced tensors."""
        variables: Any = importlib.import_module("torch._dynamo.variables")
        made = [variables.ListVariable(list(each)) for each in lists]
        return variables.TorchInGraphFunctionVariable(operator).call_function(
            tx, [variables.ConstantVariable.create(number), *made], {}
        )

    def ask_for_the_stream(self) -> Iterator[ModuleType]:
        """Modules with a function of C++'s that tells the current stream: from torch 2.15 on."""
        for module in (importlib.import_module("torch._dynamo.utils"), self.guards):
            if hasattr(module, CURRENT_STREAM):
                yield module

    def has_async_tensor_parallelism(self) -> bool:
        """Would Inductor fuse collectives of tensor parallelism with products, in symmetric memory of all ranks?"""
        return bool(getattr(self.inductor_config, "_micro_pipeline_tp", False))

    def ask_for_triton(self) -> Iterator[ModuleType]:
        for name in _ASK_FOR_TRITON:
            yield importlib.import_module(name)

    def fill_tables(self) -> None:
        """Has Dynamo write its tables of torch's functions now, and not when it first needs them."""
        need(self.trace_rules, RULE_TABLE)()
        need(self.trace_rules, "get_tensor_method")()
        builder = importlib.import_module("torch._dynamo.variables.builder").VariableBuilder
        for name in ("_type_dispatch", "_id_dispatch"):
            getattr(builder, name, lambda: None)()
        functions = importlib.import_module("torch._dynamo.variables.torch")
        for kind in (need(functions, "TorchInGraphFunctionVariable"), need(functions, "TorchCtxManagerClassVariable")):
            getattr(kind, "_get_handlers", lambda: None)()

    def sizes_for_planning(self, sizes: Sequence[Any]) -> list[int]:
        """Sizes as numbers; for those that are symbols, what they were when the graph was made."""
        return [size if isinstance(size, int) else int(size.node.hint or 1) for size in sizes]

    def distinct_configurations(self, size_hints: Any, configs: Any, kind: Any, meta: dict[str, Any]) -> list[Any]:
        """Of a kernel of Triton's: those that are timed against each other."""
        heuristics = self.triton_heuristics
        enforce = getattr(heuristics, "_enforce_reduction_config_block_minimums", None)  # from 2.13 on
        if enforce is not None and size_hints is not None and kind.name in ("REDUCTION", "PERSISTENT_REDUCTION"):
            configs = enforce(configs, size_hints, meta)
        return list(heuristics.unique_configs(configs))

    @staticmethod
    def is_reduction(kind: Any) -> bool:
        """One that takes several elements at a time, and not all."""
        return bool(kind.name == "REDUCTION")

    @property
    def grows_again(self) -> bool:
        """Is a kernel that gets a further configuration timed again where another graph has the same? Up to torch 2.12 it is."""
        return not hasattr(self.triton_heuristics.CachingAutotuner, "_could_rblock_scale")

    def forget_device(self) -> None:
        """What was remembered of the machine's devices is asked anew."""
        self.worker_properties.clear()
        for name in _DEVICE_ANSWERS_ARE_KEPT_BY:
            try:
                module = importlib.import_module(name)
            except ImportError:
                continue  # of another release
            for value in list(vars(module).values()):
                _forget(value)
                if isinstance(value, type) and value.__module__ == name:
                    for method in list(vars(value).values()):
                        _forget(getattr(method, "__func__", method))

    def skip_frames_in(self, directory: str) -> Callable[[], None]:
        """Dynamo leaves functions of these files alone; gives what ends that."""
        directories: list[str] = need(self.trace_rules, "SKIP_DIRS")
        renew = need(self.trace_rules, "_recompile_re")
        directories.append(directory)
        renew()

        def end() -> None:
            directories.remove(directory)
            renew()

        return end

    def forget_code(self, code: CodeType) -> None:
        """What was compiled of a function is gone."""
        need(importlib.import_module("torch._dynamo.eval_frame"), "reset_code")(code)

    def remember_state(self) -> Callable[[], None]:
        """What Dynamo has noted of code so far is set aside, as in a new process; gives what puts it back.

        Sizes that were seen make later graphs dynamic. Names in the globals of scripts' modules belong to compiled code.
        """
        names: Any = need(importlib.import_module("torch._dynamo.utils"), "CleanupManager").instance
        sizes = importlib.import_module("torch._dynamo.pgo")
        seen = {name: getattr(sizes, name) for name in ("_CODE_STATE", "_INIT_CODE_STATE")}
        for name in seen:
            setattr(sizes, name, None)
        codes = set(names.values)
        before: list[tuple[Any, Any]] = [
            (found, set(found) if isinstance(found, dict) else len(found)) for found in self._growing()
        ]

        def put_back() -> None:
            for number in set(names.values) - codes:
                names._remove_id(number)
            for name, value in seen.items():
                setattr(sizes, name, value)
            for found, was in before:
                if isinstance(found, dict):
                    for key in found.keys() - was:
                        del found[key]
                else:
                    del found[was:]

        return put_back

    def _growing(self) -> Iterator[Any]:
        """Tables and lists to which Dynamo adds."""
        for module, name in _GROWING:
            owner: Any = importlib.import_module(module)
            for part in name.split("."):
                owner = getattr(owner, part, None)
            if owner is not None:
                yield owner

    def silence(self) -> Callable[[], None]:
        """Nothing is logged about compiling; gives what ends that."""
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)

        def end() -> None:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)

        return end


_REMEMBERING = type(functools.cache(lambda: None))


def _forget(value: Any) -> None:
    if isinstance(value, _REMEMBERING):
        value.cache_clear()


def taking_a_list(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Marks a compiled function that is given its arguments in a list, which it empties."""
    function._boxed_call = True  # type: ignore[attr-defined]
    return function


@functools.cache
def load() -> CompilerParts:
    """Imports what compiles, and checks that what memfit needs of it is there."""
    parts = CompilerParts()
    need_in(FRAMES, COMPILE_FRAME)
    need_in(EXPORTS, EXPORT)
    need_in("torch._dynamo.guards", "CheckFunctionManager")
    need_in("torch._dynamo.utils", "CleanupManager.instance")
    need_in("torch._dynamo.pgo", "get_code_state")  # it fills what is set aside
    need_in("torch._dynamo.output_graph", "OutputGraph.call_user_compiler")
    need_in("torch._functorch.aot_autograd", "process_inputs")
    need_in("torch._inductor.compile_fx", "_compile_fx_inner")
    need_in("torch._inductor.graph", "GraphLowering.compile_to_module", "GraphLowering.codegen")
    need_in("torch._inductor.fx_passes.joint_graph", "UniformValueConstantFolder._deduce_value")
    need_in("torch._inductor.fx_passes.pad_mm", "_should_pad")
    need_in("torch._inductor.runtime.triton_heuristics", "cached_autotune", "unique_configs")
    need_in("torch._inductor.select_algorithm", "AlgorithmSelectorCache.lookup")
    need_in("torch.fx.experimental.proxy_tensor", "ProxyTorchDispatchMode")
    need_in("torch._subclasses.functional_tensor", "FunctionalTensorMode")
    return parts


@contextmanager
def configured(parts: CompilerParts) -> Iterator[None]:
    """Nothing is read from or written to caches on disk, no process is started, and no kernel is chosen by timing it."""
    settings = (
        (
            parts.inductor_config,
            {
                "compile_threads": 1,
                "fx_graph_cache": False,
                "fx_graph_remote_cache": False,
                "max_autotune_gemm_backends": "ATEN",
                "max_autotune_conv_backends": "ATEN",
            },
        ),
        (parts.functorch_config, {"enable_autograd_cache": False, "enable_remote_autograd_cache": False}),
        (parts.dynamo_config, {"automatic_dynamic_local_pgo": False, "automatic_dynamic_remote_pgo": False}),
    )
    entered = [config.patch({key: value for key, value in wanted.items() if hasattr(config, key)}) for config, wanted in settings]
    for patch in entered:
        patch.__enter__()
    try:
        yield
    finally:
        for patch in reversed(entered):
            patch.__exit__(None, None, None)


def compiled_graph(wrapping: ModuleType, graph: Any) -> Callable[[list[Any]], Any]:
    """What the operator that calls a compiled graph was given: in code that was traced, the number of it."""
    found: Callable[[list[Any]], Any]
    found = wrapping.inductor_code_side_table.get_callable(graph) if isinstance(graph, int) else graph
    return found
