"""DeepSpeed: its own Python runs, above operators that it would compile when they are first used. Here nothing is compiled.

::

    OpBuilder.load() ──> OPERATORS[name]     in place of the compiled module: takes what it takes on the GPU, and changes nothing
                     └─> Extension(name)     for the others: the first call is refused, by its name

Facts: csrc/adam, csrc/lion and csrc/adagrad (an update is one kernel over all tensors, or a loop of the host's, and takes nothing),
csrc/lamb/fused_lamb_cuda.cpp (two sums of 512 parts and a coefficient), csrc/quantization/pt_binding.cpp (one float of scale for a
group, eight or four bits for a value), all of DeepSpeed 0.19. An accelerator that DeepSpeed chose before there was a GPU is chosen
again. Whether a gradient overflows, only data can tell: none does, and the assumptions say so.

Where DeepSpeed is not installed, its optimizers alone have stand-ins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from memfit.errors import PredictionError
from memfit.phantom.clock.launches import launched
from memfit.phantom.current import current
from memfit.phantom.libraries.apex import FusedAdam, FusedLAMB
from memfit.phantom.libraries.brought.extensions import Extension
from memfit.phantom.libraries.stand_ins import Fill, filling
from memfit.torch_compat.patches import Patches

PARTS = 512
"""Of a norm, which LAMB sums in two steps."""
SYMMETRIC, ASYMMETRIC = 0, 1
ALIGNMENT = 512
"""In bytes, of what one thread reads from a file or writes to one (csrc/aio/py_lib/deepspeed_py_io_handle.cpp)."""


def install(patches: Patches) -> None:
    patches.when_imported("deepspeed.accelerator.real_accelerator", lambda module: _choose_again(patches, module))
    patches.when_imported("deepspeed.ops.op_builder.builder", lambda module: patches.replace(module.OpBuilder, "load", _load))
    patches.when_imported("deepspeed.runtime.engine", lambda module: _name_overflow(patches, module.DeepSpeedEngine))
    patches.when_imported("deepspeed.runtime.pipe.engine", lambda module: _tell_stages(patches, module.PipelineEngine))


def _choose_again(patches: Patches, accelerators: Any) -> None:
    """Which accelerator there is, and which builder is meant by a name, DeepSpeed has decided when it was imported."""
    chosen = accelerators.ds_accelerator
    patches.replace(accelerators, "ds_accelerator", None)
    if chosen is None or chosen._name == "cuda":
        return
    cuda = accelerators.get_accelerator()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "deepspeed":
            for member in [each for each in vars(module) if each.endswith("Builder")]:
                builder = cuda.get_op_builder(member)
                if builder is not None and getattr(module, member) is chosen.get_op_builder(member):
                    patches.replace(module, member, builder)


def _name_overflow(patches: Patches, engine: type) -> None:
    """Says what becomes of steps that a gradient without a finite value would end."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def take_model_step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(engine, *args, **kwargs)
            if getattr(engine.optimizer, "overflow", False):
                current().say("DeepSpeed skipped a step, because something on the GPU was read as an overflow: see --expected")
            elif engine.fp16_enabled():
                current().say("DeepSpeed with fp16: no gradient was taken to overflow, so that no step is skipped")
            return result

        return take_model_step

    patches.wrap(engine, "_take_model_step", around)


def _tell_stages(patches: Patches, engine: type) -> None:
    """Stages of a pipeline describe what they send in tensors on the GPU; here they do it out of band."""

    def around_send(original: Callable[..., None]) -> Callable[..., None]:
        def send_tensor_meta(engine: Any, sent: Any, *args: Any) -> None:
            original(engine, sent, *args)
            parts = [(tuple(tensor.shape), tensor.dtype) for tensor in ((sent,) if isinstance(sent, torch.Tensor) else sent)]
            _neighbours().tell(engine.stage_id, (isinstance(sent, torch.Tensor), parts))

        return send_tensor_meta

    def receive_tensor_meta(engine: Any, source: int) -> Any:
        is_one, parts = _neighbours().ask(source, lambda: engine.grid.stage_to_global(0), current().assumptions)
        buffers = tuple(engine._allocate_or_extend_buffers(index, list(shape), dtype) for index, (shape, dtype) in enumerate(parts))
        return buffers[0] if is_one else buffers

    patches.wrap(engine, "_send_tensor_meta", around_send)
    patches.replace(engine, "_recv_tensor_meta", receive_tensor_meta)


def _neighbours() -> Any:
    return current().neighbours


def _load(builder: Any, verbose: bool = False) -> Any:
    make = OPERATORS.get(builder.name)
    return Extension(f"{builder.name} of DeepSpeed") if make is None else make()


# -- updates -------------------------------------------------------------------------------------------------------------------


def _multi_tensor(name: str) -> Callable[..., None]:
    """An update of lists of tensors on the GPU, one kernel."""

    def update(chunk_size: int, flag: torch.Tensor, lists: Sequence[Sequence[torch.Tensor]], *options: Any) -> None:
        # Gradients are read; what is updated is read and written.
        launched(name, [tensor for tensors in (lists[0], *lists[1:], *lists[1:]) for tensor in tensors])

    return update


def _of_host(kind: str) -> SimpleNamespace:
    """The optimizer of the host: it works in place."""

    def make(*options: Any) -> int:
        current().say(f"the time that DeepSpeed's optimizer on the host (cpu_{kind}) takes is not known")
        return 0

    def update(*tensors: Any) -> int:
        return 0

    updates = {f"{kind}_update": update, f"{kind}_update_copy": update, f"{kind}_rollback": update}
    return SimpleNamespace(**{f"create_{kind}": make, f"destroy_{kind}": update, **updates})


def _lamb(weight: torch.Tensor, copy: torch.Tensor, m: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, *options: Any) -> Any:
    dtype = torch.float32 if weight.dtype is torch.float16 else weight.dtype
    parts = [weight.new_empty(PARTS, dtype=dtype) for _ in range(2)]
    coefficient = weight.new_empty(1, dtype=dtype)
    launched("lamb", [grad, weight, weight, m, m, v, v, *parts])
    return coefficient


# -- quantizing ----------------------------------------------------------------------------------------------------------------


def _scales(like: torch.Tensor, groups: int, kind: int) -> torch.Tensor:
    return like.new_empty((groups, 1 if kind == SYMMETRIC else 2), dtype=torch.float32)


def _quantize(values: torch.Tensor, groups: int, bits: int, kind: int) -> list[torch.Tensor]:
    scales = _scales(values, groups, kind)
    out = values.new_empty((*values.shape[:-1], values.shape[-1] // (1 if bits == 8 else 2)), dtype=torch.int8)
    launched("quantize", [values, out])
    return [out, scales]


def _dequantizing_to(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    def dequantize(values: torch.Tensor, scales: torch.Tensor, groups: int, bits: int, kind: int) -> torch.Tensor:
        out = values.new_empty((*values.shape[:-1], values.shape[-1] * (1 if bits == 8 else 2)), dtype=dtype)
        launched("dequantize", [values, out])
        return out

    return dequantize


def _swizzle_quant(values: torch.Tensor, groups: int, bits: int, kind: int, *layout: int) -> list[torch.Tensor]:
    scales = _scales(values, groups, kind)
    out = values.new_empty(values.numel() // (8 // bits), dtype=torch.int8)
    launched("swizzle_quant", [values, out])
    return [out, scales]


def _quantized_reduction(
    values: torch.Tensor, scales: torch.Tensor, in_groups: int, out_groups: int, bits: int, kind: int, per_node: int
) -> list[torch.Tensor]:
    made = _scales(values, out_groups, kind)
    out = values.new_empty((*values.shape[:-1], values.shape[-1] // per_node), dtype=torch.int8)
    launched("quantized_reduction", [values, out])
    return [out, made]


def _quantizer() -> SimpleNamespace:
    return SimpleNamespace(
        Symmetric=SYMMETRIC,
        Asymmetric=ASYMMETRIC,
        quantize=_quantize,
        dequantize=_dequantizing_to(torch.float16),
        dequantize_fp32=_dequantizing_to(torch.float32),
        swizzle_quant=_swizzle_quant,
        quantized_reduction=_quantized_reduction,
    )


# -- files and pinned memory ---------------------------------------------------------------------------------------------------


class AsyncFiles:
    """Reads and writes tensors of the host in files, which are not there: what is in flight is counted, nothing is moved."""

    def __init__(self, *options: Any, intra_op_parallelism: int = 1, **named: Any) -> None:
        self._in_flight, self._threads = 0, intra_op_parallelism
        current().say("the time that DeepSpeed spends on reading and writing files (NVMe) is not known")

    def _start(self, *args: Any) -> int:
        self._in_flight += 1
        return 0

    def _do(self, *args: Any) -> int:
        return 0

    async_pread = async_pwrite = _start
    read = write = sync_pread = sync_pwrite = pread = pwrite = _do

    def wait(self) -> int:
        done, self._in_flight = self._in_flight, 0
        return done

    def get_alignment(self) -> int:
        return ALIGNMENT * self._threads

    def new_cpu_locked_tensor(self, count: int, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(count, dtype=like.dtype, pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def free_cpu_locked_tensor(self, tensor: Any) -> bool:
        return True


OPERATORS: dict[str, Callable[[], Any]] = {
    "fused_adam": lambda: SimpleNamespace(multi_tensor_adam=_multi_tensor("multi_tensor_adam")),
    "fused_lion": lambda: SimpleNamespace(multi_tensor_lion=_multi_tensor("multi_tensor_lion")),
    "fused_lamb": lambda: SimpleNamespace(lamb=_lamb),
    "cpu_adam": lambda: _of_host("adam"),
    "cpu_lion": lambda: _of_host("lion"),
    "cpu_adagrad": lambda: _of_host("adagrad"),
    "quantizer": _quantizer,
    "async_io": lambda: SimpleNamespace(aio_handle=AsyncFiles),
}
"""By the name that its builder has."""


# -- where it is not installed -------------------------------------------------------------------------------------------------


class DeepSpeedFusedAdam(FusedAdam):
    """Its averages are like the parameter."""

    average_dtype = None


DeepSpeedFusedAdam.__name__ = "FusedAdam"


def _initialize(*args: Any, **kwargs: Any) -> NoReturn:
    raise PredictionError(
        "deepspeed.initialize was called, and DeepSpeed is not installed here: memfit runs DeepSpeed's own Python. Install it with "
        "DS_BUILD_OPS=0 pip install deepspeed; it needs no GPU and no compiler for that"
    )


MODULES: dict[str, Fill] = {
    "deepspeed": filling(initialize=_initialize),
    "deepspeed.ops.adam": filling(DeepSpeedFusedAdam),
    "deepspeed.ops.adam.fused_adam": filling(DeepSpeedFusedAdam),
    "deepspeed.ops.lamb": filling(FusedLAMB),
}
