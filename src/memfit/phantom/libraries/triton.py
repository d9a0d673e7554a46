"""Triton: a launch writes into tensors that its caller has allocated, and takes nothing itself.

::

    kernel[grid](x, BLOCK=64) ──> launch()    named in the assumptions; what is known of the data that it may write is forgotten
    autotuned kernel          ──> tune()      256 MiB for a while, at the first launch for each key
    import triton             ──> stand-in    where it is not installed: decorators, tl.*, cdiv, the driver's answers

Facts, from triton/runtime/jit.py, runtime/autotuner.py, testing.py and backends/nvidia/driver.py of Triton 3.3 to 3.6: ``do_bench``
takes a buffer of 256 MiB to clear the cache with, once for each configuration that it measures, and an autotuner with
``restore_value`` clones those arguments. A kernel that makes descriptors on the GPU asks the function given to
``triton.set_allocator`` for scratch memory, of a size that only its compiler knows.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from memfit.phantom.clock.launches import launched
from memfit.phantom.current import current
from memfit.phantom.libraries.kernel_source import written_parameters
from memfit.phantom.libraries.stand_ins import Fill, filling, is_stand_in
from memfit.phantom.tensors.tensor_annotations import forget_data
from memfit.torch_compat.patches import Patches
from memfit.units import MIB

_NOTED = "_scratch_is_noted"
TUNING_BYTES = 256 * MIB

PASSED_OVER = "Triton kernels were passed over, since a launch takes no memory of its own"
NOT_TUNED = (
    "Triton kernels were not tuned: the first configuration of each is taken, and tuning takes 256 MiB for a while, at the first "
    "launch for each key"
)
SCRATCH = (
    "scratch memory that Triton kernels ask the function of triton.set_allocator for was not counted: only Triton's compiler knows "
    "how much it is"
)


def install(patches: Patches) -> None:
    """For the Triton that is installed."""
    patches.when_imported("triton.runtime.jit", _unless_stand_in(lambda module: _pass_over_kernels(patches, module)))
    patches.when_imported("triton.runtime.autotuner", _unless_stand_in(lambda module: _pass_over_tuning(patches, module)))
    patches.when_imported("triton.runtime.driver", _unless_stand_in(lambda module: _answer_for_driver(patches, module)))
    patches.when_imported(
        "triton.runtime.interpreter",
        _unless_stand_in(lambda module: patches.replace(module.InterpretedFunction, "run", _run_real)),
    )
    patches.when_imported("triton.testing", _unless_stand_in(lambda module: patches.replace(module, "do_bench", measure_nothing)))
    note_scratch = _unless_stand_in(lambda module: _note_scratch(patches, module))
    patches.when_imported("triton.runtime._allocation", note_scratch)
    if "triton" in sys.modules:  # with its own reference to the function
        note_scratch(sys.modules["triton"])


def _unless_stand_in(action: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda module: None if is_stand_in(module) else action(module)


def launch(name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """A kernel would run now."""
    current().assumptions.add_name(PASSED_OVER, name)
    launched(name, tuple(arguments.values()))
    written = written_parameters(function)
    for parameter, value in arguments.items():
        if written is None or parameter in written:
            forget_data(getattr(value, "base", value))  # a descriptor has its tensor there


def tune(tuner: Any, named: Mapping[str, Any]) -> None:
    """An autotuner meets these arguments."""
    if len(tuner.configs) > 1:
        keys = getattr(tuner, "keys", None) or [tuner.arg_names[index] for index in getattr(tuner, "key_idx", ())]
        restored = [named[each] for each in getattr(tuner, "restore_value", None) or () if each in named]
        tune_once(innermost(tuner).__name__, (id(tuner), _tuning_key(keys, named)), restored)


def tune_once(name: str, key: Any, restored: Sequence[torch.Tensor] = ()) -> None:
    """A kernel's configurations are measured at its first launch for each key."""
    context = current()
    if (name, key) in context.tuned:
        return
    context.tuned.add((name, key))
    context.assumptions.add_name(NOT_TUNED, name)
    taken = [empty_cache(), *(tensor.clone() for tensor in restored)]
    taken.clear()


def empty_cache() -> torch.Tensor:
    return torch.empty(TUNING_BYTES // 4, dtype=torch.int, device="cuda")


def measure_nothing(fn: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    """``triton.testing.do_bench``: runs it once, and says a millisecond."""
    cache = empty_cache()
    fn()
    del cache
    quantiles = kwargs.get("quantiles")
    return [1.0] * len(quantiles) if quantiles else 1.0


def _note_scratch(patches: Patches, module: Any) -> None:
    if not hasattr(module.set_allocator, _NOTED):
        patches.wrap(module, "set_allocator", _noting_scratch)


def _noting_scratch(set_allocator: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        current().say(SCRATCH)
        return set_allocator(*args, **kwargs)

    setattr(call, _NOTED, True)
    return call


# -- the Triton that is installed ----------------------------------------------------------------------------------------------


def _run_real(kernel: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> Any:
    names = getattr(kernel, "arg_names", None) or list(inspect.signature(kernel.fn).parameters)
    launch(kernel.fn.__name__, kernel.fn, dict(zip(names, args, strict=False)) | kwargs)
    return Anything("a compiled Triton kernel")


def _pass_over_kernels(patches: Patches, module: Any) -> None:
    patches.replace(module.JITFunction, "run", _run_real)


def _pass_over_tuning(patches: Patches, module: Any) -> None:
    patches.replace(module.Autotuner, "run", _run_tuned)


def _run_tuned(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    named = dict(zip(tuner.arg_names, args, strict=False)) | kwargs
    tune(tuner, named)
    config = tuner.best_config = tuner.configs[0]
    chosen = config.all_kwargs()
    if config.pre_hook is not None:
        config.pre_hook(named | chosen)
    return tuner.fn.run(*args, **(kwargs | chosen))


def _tuning_key(keys: Sequence[str], named: Mapping[str, Any]) -> Any:
    """As Triton makes it: the arguments that the author names, and the types of all tensors."""
    dtypes = tuple(str(value.dtype) for value in named.values() if hasattr(value, "dtype"))
    return tuple(str(named[name]) for name in keys if name in named), dtypes


def innermost(kernel: Any) -> Any:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def _answer_for_driver(patches: Patches, module: Any) -> None:
    place = "_active" if hasattr(module.driver, "_active") else "active"
    patches.replace(module.driver, place, Driver())


class Driver:
    """``triton.runtime.driver.active``."""

    launcher_cls = None

    def get_current_target(self) -> Any:
        major, minor = torch.cuda.get_device_capability()
        return GpuTarget("cuda", 10 * major + minor, 32)

    def get_current_device(self) -> int:
        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        torch.cuda.set_device(device)

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", self.get_current_device())

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return torch.cuda.get_device_capability()

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        return measure_nothing

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return empty_cache()

    def clear_cache(self, cache: torch.Tensor) -> None: ...

    @property
    def utils(self) -> Driver:
        return self

    def get_device_properties(self, device: Any = None) -> dict[str, int]:
        properties = torch.cuda.get_device_properties(device or 0)
        return {
            "max_shared_mem": int(getattr(properties, "shared_memory_per_block_optin", 232448)),
            "max_num_regs": 65536,
            "multiprocessor_count": int(properties.multi_processor_count),
            "warpSize": 32,
            "sm_clock_rate": 1980000,
            "mem_clock_rate": 3201000,
            "mem_bus_width": 6144,
        }


class GpuTarget:
    """``triton.backends.compiler.GPUTarget``."""

    def __init__(self, backend: str, arch: int, warp_size: int) -> None:
        self.backend, self.arch, self.warp_size = backend, arch, warp_size


class Backend:
    """What ``triton.compiler.compiler.make_backend`` gives; torch asks it which types of 8 bits kernels can hold."""

    def __init__(self, target: GpuTarget) -> None:
        self.target = target

    def parse_options(self, options: dict[str, Any]) -> SimpleNamespace:
        """From triton/backends/nvidia/compiler.py."""
        since_ada = ("fp8e4nv",) if self.target.arch >= 89 else ()
        return SimpleNamespace(supported_fp8_dtypes=("fp8e4b15", *since_ada, "fp8e5"))


# -- where it is not installed -------------------------------------------------------------------------------------------------


class Anything:
    """What kernels are written with and what is never run: ``tl.float32``, ``tl.load``, a compiled kernel."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A decorator gives the function back."""
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Anything(f"{self._name}()")

    def __getitem__(self, index: Any) -> Any:
        return Anything(f"{self._name}[{index}]")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self._name} holds nothing: Triton is not installed")  # or Python would ask for one item after another

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __repr__(self) -> str:
        return self._name


class constexpr:
    def __init__(self, value: Any) -> None:
        self.value: Any = value.value if isinstance(value, constexpr) else value

    def __class_getitem__(cls, kind: Any) -> type:
        return cls

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return int(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, constexpr) else other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __mul__(self, other: Any) -> constexpr:
        return constexpr(self.value * (other.value if isinstance(other, constexpr) else other))

    __rmul__ = __mul__

    def __add__(self, other: Any) -> constexpr:
        return constexpr(self.value + (other.value if isinstance(other, constexpr) else other))

    __radd__ = __add__


class KernelInterface:
    fn: Any
    arg_names: list[str]

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return functools.partial(self.run, grid=grid, warmup=False)

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        return self.run(*args, grid=grid, warmup=True, **kwargs)

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        raise NotImplementedError


class JITFunction(KernelInterface):
    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.fn = fn
        self.arg_names = list(inspect.signature(fn).parameters)
        self._given_src: str | None = None
        functools.update_wrapper(self, fn)

    @property
    def src(self) -> str:
        return inspect.getsource(self.fn) if self._given_src is None else self._given_src

    def _unsafe_update_src(self, new_src: str) -> None:
        """For libraries that write kernels out of kernels, such as xformers."""
        self._given_src = new_src

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return _run_real(self, *args, grid=grid, warmup=warmup, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")


class Config:
    def __init__(
        self,
        kwargs: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Any = None,
        **options: Any,
    ) -> None:
        self.kwargs, self.pre_hook, self.maxnreg = kwargs, pre_hook, maxnreg
        self.num_warps, self.num_stages, self.num_ctas = num_warps, num_stages, num_ctas

    def all_kwargs(self) -> dict[str, Any]:
        launching = {"num_warps": self.num_warps, "num_stages": self.num_stages, "num_ctas": self.num_ctas}
        return self.kwargs | launching


class Autotuner(KernelInterface):
    def __init__(
        self,
        fn: Any,
        configs: Sequence[Config],
        key: Sequence[str],
        restore_value: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self.fn, self.configs, self.keys = fn, list(configs) or [Config({})], list(key)
        self.arg_names = fn.arg_names
        self.restore_value = list(restore_value or ())
        self.cache: dict[Any, Config] = {}
        self.best_config = self.configs[0]

    @property
    def base_fn(self) -> Any:
        return innermost(self)

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return _run_tuned(self, *args, grid=grid, warmup=warmup, **kwargs)


class Heuristics(KernelInterface):
    def __init__(self, fn: Any, values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
        self.fn, self.values, self.arg_names = fn, values, fn.arg_names

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        for name, value in self.values.items():
            kwargs[name] = value(dict(zip(self.arg_names, args, strict=False)) | kwargs)
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs)


def jit(fn: Any = None, **options: Any) -> Any:
    if isinstance(fn, KernelInterface):
        return fn
    return JITFunction(fn, **options) if fn is not None else functools.partial(jit, **options)


def autotune(configs: Sequence[Config], key: Sequence[str], **options: Any) -> Callable[[Any], Autotuner]:
    return lambda fn: Autotuner(fn, configs, key, options.get("restore_value"))


def heuristics(values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> Callable[[Any], Heuristics]:
    return lambda fn: Heuristics(fn, values)


def cdiv(x: int, y: int) -> int:
    return (x + y - 1) // y


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _set_allocator(allocator: Any) -> None:
    current().say(SCRATCH)


class TensorDescriptor:
    """``triton.tools.tensor_descriptor.TensorDescriptor``: describes a tensor, and takes nothing."""

    def __init__(self, base: torch.Tensor, shape: Any, strides: Any, block_shape: Any, *options: Any, **more: Any) -> None:
        self.base, self.shape, self.strides, self.block_shape = base, shape, strides, block_shape

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor, block_shape: Any, *options: Any, **more: Any) -> TensorDescriptor:
        return cls(tensor, list(tensor.shape), list(tensor.stride()), block_shape)


class _DriverConfig:
    def __init__(self) -> None:
        self.active = self.default = Driver()

    def set_active(self, driver: Any) -> None: ...

    def reset_active(self) -> None: ...


class OutOfResources(Exception):
    """Never raised: nothing is compiled."""


def _fill_any(module: ModuleType) -> None:
    """Whatever is asked of it is there: a class, where its name looks like one's, or else something that does nothing."""
    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        if f"{module.__name__}.{name}" in MODULES:
            return importlib.import_module(f"{module.__name__}.{name}")
        if name not in made:
            is_error = name.endswith(("Error", "Exception", "OutOfResources"))
            made[name] = (
                type(name, (Exception,) if is_error else (), {}) if name[:1].isupper() else Anything(f"{module.__name__}.{name}")
            )
        return made[name]

    module.__dict__["__getattr__"] = get


def _answering(**contents: Any) -> Callable[[ModuleType], None]:
    """With what any module of Triton's has, too."""
    fill = filling(**contents)

    def fill_all(module: ModuleType) -> None:
        _fill_any(module)
        fill(module)

    return fill_all


def _key() -> str:
    return str(sys.modules["triton"].__version__)


_DRIVER = _DriverConfig()
_RUNNING = {
    "Autotuner": Autotuner,
    "Config": Config,
    "Heuristics": Heuristics,
    "JITFunction": JITFunction,
    "KernelInterface": KernelInterface,
    "OutOfResources": OutOfResources,
    "autotune": autotune,
    "heuristics": heuristics,
    "jit": jit,
    "next_power_of_2": next_power_of_2,
    "cdiv": cdiv,
    "set_allocator": _set_allocator,
    "constexpr_function": lambda function: function,
}

MODULES: dict[str, Fill] = {
    "triton": _answering(**_RUNNING),
    "triton.language": _answering(constexpr=constexpr, cdiv=cdiv, next_power_of_2=next_power_of_2),
    "triton.language.core": _answering(constexpr=constexpr),
    "triton.runtime": _answering(**_RUNNING, driver=_DRIVER),
    "triton.runtime.driver": _answering(driver=_DRIVER, active=_DRIVER.active),
    "triton.runtime.jit": _answering(**_RUNNING),
    "triton.runtime.autotuner": _answering(**_RUNNING),
    "triton.runtime.errors": _answering(OutOfResources=OutOfResources),
    "triton.testing": _answering(do_bench=measure_nothing, do_bench_cudagraph=measure_nothing),
    "triton.tools.tensor_descriptor": _answering(TensorDescriptor=TensorDescriptor),
    "triton.backends.compiler": _answering(GPUTarget=GpuTarget),
    "triton.compiler.compiler": _answering(triton_key=_key, make_backend=Backend),
    "triton.runtime.cache": _answering(triton_key=_key),
}
ANY_MODULE: Fill = _fill_any
ABSENT = ("triton.language.extra.tlx",)
"""Only another edition of Triton has these modules, and Inductor asks whether it is that one."""
