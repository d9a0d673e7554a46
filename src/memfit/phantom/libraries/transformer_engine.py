"""NVIDIA's Transformer Engine: its own Python runs, above a stand-in for its compiled module.

::

    te.pytorch.Linear, DotProductAttention, ... ──> transformer_engine/pytorch/*.py of the installed package
                                                        └──> transformer_engine_torch ──> the functions here

The package ``transformer_engine`` is Python alone and installs anywhere (``PYTHON_ALONE``); what it loads where there is a
GPU come in other packages, and are neither needed nor looked at. So what a layer keeps for backward, its workspaces for cuBLAS,
which attention is chosen, tensor and context parallelism are those of the installed version.

Facts: transformer_engine/pytorch/csrc/extensions of 2.16: gemm.cpp (a result, a gradient of the bias), normalization.cpp and
common/normalization (statistics of rows in float32; backward sums parts of the weights' gradients, one for each multiprocessor),
attention.cpp and common/fused_attn (statistics of softmax in float32, two numbers of the generator; cuDNN's kernels take what they
take under torch), apply_rope.cpp, softmax.cpp, activation.cpp, multi_tensor/l2norm.cpp. Eight-bit and four-bit recipes make
their tensors in C++: they are refused by name.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from memfit.errors import NeedsGpuError
from memfit.phantom.clock.launches import launched, launched_attention
from memfit.phantom.current import current
from memfit.phantom.kernels.attention import cudnn_backward_bytes
from memfit.phantom.libraries.apex import l2norm, softmax, softmax_backward, update_in_place
from memfit.phantom.libraries.stand_ins import Fill, filling
from memfit.timing.operators.attention import deterministic_slowdown
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches

PACKAGE = "transformer_engine"
COMPILED = "transformer_engine_torch"
BUILDING = "NVTE_PROJECT_BUILDING"
"""With this in the environment the package does not load its libraries (transformer_engine/common/__init__.py)."""
STREAMS = 4
"""For products of groups: NVTE's number of compute streams, each with a workspace of its own."""
CUBLASLT = 130_200
"""The version that is answered: 13.2."""
LOW_PRECISION = (
    "Transformer Engine's eight-bit and four-bit recipes",
    "Predict the run without them (Megatron: without --fp8-format and --fp4-format), which needs at least as much for activations.",
)


def install(patches: Patches) -> None:
    """For the package that is installed, whose libraries are not loaded."""
    if PACKAGE not in sys.modules:
        _go_without_libraries(patches)
    patches.when_imported(
        f"{PACKAGE}.common", lambda module: patches.replace(module, "load_framework_extension", lambda framework: None)
    )
    patches.when_imported(
        f"{PACKAGE}.pytorch.attention.dot_product_attention.utils",
        lambda module: patches.wrap(module, "get_attention_backend", _with_plain_type),
    )
    patches.finally_call(_forget_workspaces)


def _go_without_libraries(patches: Patches) -> None:
    """While ``transformer_engine.common`` is imported."""
    if BUILDING in os.environ:
        return
    os.environ[BUILDING] = "1"

    def restore(module: Any = None) -> None:
        os.environ.pop(BUILDING, None)

    patches.when_imported(f"{PACKAGE}.common", restore)
    patches.finally_call(restore)


def _with_plain_type(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The package chooses by the class of its tensors: one of the phantom is a ``torch.Tensor``."""

    def get_attention_backend(params: Any) -> Any:
        if issubclass(getattr(params, "qkv_type", torch.Tensor), FakeTensor):
            params = dataclasses.replace(params, qkv_type=torch.Tensor)
        return original(params)

    return get_attention_backend


def _forget_workspaces() -> None:
    """The package keeps workspaces and properties of the GPU in caches of its functions."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == PACKAGE:
            # The compiled module is among the values, too, and answers to any name.
            for function in [value for value in vars(module).values() if not isinstance(value, ModuleType)]:
                if callable(forget := getattr(function, "cache_clear", None)):
                    forget()


class DType(enum.IntEnum):
    """Types of elements, in the order of transformer_engine.h."""

    kByte = 0
    kInt16 = 1
    kInt32 = 2
    kInt64 = 3
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat8E8M0 = 9
    kFloat4E2M1 = 10


_TORCH_TYPES = {
    DType.kByte: torch.uint8,
    DType.kInt32: torch.int32,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
}


class _Open(type):
    """An enumeration whose members are made when they are first named: releases add to them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        member = cls()
        member.name = name
        setattr(cls, name, member)
        return member


class NvteName(metaclass=_Open):
    """One of the package's words for layouts, masks and kinds."""

    name: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class NVTE_QKV_Layout(NvteName): ...


class NVTE_QKV_Format(NvteName): ...


class NVTE_Bias_Type(NvteName): ...


class NVTE_Mask_Type(NvteName): ...


class NVTE_Softmax_Type(NvteName): ...


class NVTE_Fused_Attn_Backend(enum.IntEnum):
    NVTE_No_Backend = -1
    NVTE_F16_max512_seqlen = 0
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2


class CommOverlapType(NvteName): ...


class CommOverlapAlgo(NvteName): ...


class Float8BlockScaleTensorFormat(NvteName): ...


class FP8FwdTensors(enum.IntEnum):
    GEMM1_INPUT = 0
    GEMM1_WEIGHT = 1
    GEMM1_OUTPUT = 2
    GEMM2_INPUT = 3
    GEMM2_WEIGHT = 4
    GEMM2_OUTPUT = 5
    GEMM3_INPUT = 6
    GEMM3_WEIGHT = 7
    GEMM3_OUTPUT = 8


class FP8BwdTensors(enum.IntEnum):
    GRAD_OUTPUT1 = 0
    GRAD_INPUT1 = 1
    GRAD_OUTPUT2 = 2
    GRAD_INPUT2 = 3
    GRAD_OUTPUT3 = 4
    GRAD_INPUT3 = 5


class FP8TensorMeta:
    scale: Any = None
    scale_inv: Any = None
    amax_history: Any = None


def _refuse_quantizer(quantizer: Any) -> None:
    if quantizer is not None:
        raise NeedsGpuError(*LOW_PRECISION)


# -- products ------------------------------------------------------------------------------------------------------------------


def generic_gemm(
    a: torch.Tensor,
    transposes_a: bool,
    b: torch.Tensor,
    transposes_b: bool,
    out: torch.Tensor | None,
    quantizer: Any,
    out_type: DType | None,
    bias: torch.Tensor | None,
    bias_type: DType,
    gelu: bool,
    gelu_in: torch.Tensor | None,
    grad: bool,
    workspace: torch.Tensor,
    *options: Any,
    extra_output: torch.Tensor | None = None,
    comm_overlap: Any = None,
    **more: Any,
) -> list[torch.Tensor | None]:
    """``b`` times ``a``, in cuBLAS's order of columns: ``b`` may have more than two dimensions, and the result has them too."""
    _refuse_quantizer(quantizer)
    rows = (b.shape[-1],) if transposes_b else tuple(b.shape[:-1])
    columns = _rows(a) if transposes_a else a.shape[-1]
    if out is None:
        out = b.new_empty((*rows, columns), dtype=a.dtype if out_type is None else _TORCH_TYPES[out_type])
    bias_grad = b.new_empty(b.shape[-1], dtype=out.dtype) if grad and bias is not None else None
    before_gelu = torch.empty_like(out) if gelu and not grad else None
    _multiplied(_matrix(b, not transposes_b), _matrix(a, not transposes_a), out.detach().flatten(0, -2))
    return [out, bias_grad, before_gelu, extra_output]


def _matrix(tensor: torch.Tensor, is_turned: bool) -> torch.Tensor:
    rows = tensor.detach().flatten(0, -2)
    return rows if is_turned else rows.t()


def _multiplied(one: torch.Tensor, other: torch.Tensor, out: torch.Tensor) -> None:
    """Advances the clock as by torch's product of these matrices."""
    current().clock.launch_as(torch.ops.aten.mm.default, (one, other), out)


def te_general_grouped_gemm(
    a: Sequence[torch.Tensor],
    transposes_a: bool,
    b: Sequence[torch.Tensor],
    transposes_b: bool,
    out: Sequence[torch.Tensor] | None,
    out_type: DType,
    splits: Sequence[int],
    bias: Sequence[torch.Tensor],
    *options: Any,
) -> Any:
    """One product a group, into tensors that are there: in all versions the Python above makes them first."""
    if out is None:
        raise NeedsGpuError(f"a grouped product of {COMPILED} without tensors for its results", "Use another release of it.")
    for one, other, made in zip(b, a, out if len(out) == len(a) else [out[0]] * len(a), strict=True):
        if one.numel() and other.numel():
            _multiplied(_matrix(one, not transposes_b), _matrix(other, not transposes_a), made.detach())
    return bias


def _rows(tensor: torch.Tensor) -> int:
    """The first dimension of a matrix, or all but the last one."""
    return tensor.numel() // max(1, tensor.shape[-1])


# -- norms ---------------------------------------------------------------------------------------------------------------------


def layernorm_fwd(
    x: torch.Tensor, weight: torch.Tensor, bias: Any, eps: float, out: Any, quantizer: Any, out_type: DType, *options: Any
) -> list[Any]:
    _refuse_quantizer(quantizer)
    mean, deviation = (x.new_empty(_rows(x), dtype=torch.float32) for _ in range(2))
    made = x.new_empty(x.shape, dtype=_TORCH_TYPES[out_type]) if out is None else out
    launched("te_layernorm", [x, made])
    return [made, mean, deviation]


def rmsnorm_fwd(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: Any, quantizer: Any, out_type: DType, *options: Any
) -> list[Any]:
    _refuse_quantizer(quantizer)
    deviation = x.new_empty(_rows(x), dtype=torch.float32)
    made = x.new_empty(x.shape, dtype=_TORCH_TYPES[out_type]) if out is None else out
    launched("te_rmsnorm", [x, made])
    return [made, None, deviation]


def layernorm_bwd(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, deviation: torch.Tensor, weight: torch.Tensor, *options: Any
) -> list[torch.Tensor]:
    return _norm_backward(grad, x, weight, num_weights=2)


def rmsnorm_bwd(
    grad: torch.Tensor, x: torch.Tensor, deviation: torch.Tensor, weight: torch.Tensor, *options: Any
) -> list[torch.Tensor]:
    return _norm_backward(grad, x, weight, num_weights=1)


def rmsnorm_bwd_add(
    grad: torch.Tensor, x: torch.Tensor, added: torch.Tensor, deviation: torch.Tensor, weight: torch.Tensor, *options: Any
) -> list[torch.Tensor]:
    return _norm_backward(grad, x, weight, num_weights=1)


def _norm_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, num_weights: int) -> list[torch.Tensor]:
    grad, x = grad.contiguous(), x.contiguous()
    made = torch.empty_like(x)
    grads = [torch.empty_like(weight) for _ in range(num_weights)]
    num_parts = min(_rows(x), torch.cuda.get_device_properties(x.device).multi_processor_count)
    parts = x.new_empty(num_weights * num_parts * weight.numel(), dtype=torch.float32)
    launched("te_norm_backward", [grad, x, made, parts])
    return [made, *grads]


# -- attention -----------------------------------------------------------------------------------------------------------------


def get_fused_attn_backend(is_training: bool, query_type: DType, key_type: DType, layout: Any, *shape: Any) -> Any:
    """cuDNN's attention for half types on Ampere and newer, with heads that it has kernels for."""
    sizes = [value for value in shape if type(value) is int]
    head_dims = sizes[4:6]  # after heads, groups of heads, and both lengths
    has_type = query_type in (DType.kFloat16, DType.kBFloat16)
    capability = torch.cuda.get_device_capability()
    largest = 256 if capability[0] == 9 else 128
    has_heads = all(dim % 8 == 0 and dim <= largest for dim in head_dims)
    is_packed = layout.name.startswith("NVTE_T")
    if has_type and has_heads and capability >= ((9, 0) if is_packed else (8, 0)):
        return NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen
    return NVTE_Fused_Attn_Backend.NVTE_No_Backend


def fused_attn_fwd(*args: Any, **options: Any) -> list[torch.Tensor]:
    """The output, then what backward needs: statistics of softmax, the generator's state, and a bias where there is one.

    Arguments differ between releases, and are told apart by their types: lengths of queries and keys, then queries, keys, values.
    """
    tensors = [value for value in (*args, *options.values()) if isinstance(value, torch.Tensor)]
    query, key, value = tensors[2:5]
    wants_most = _named(options, args, "return_max_logit")
    layout = _first(args, NVTE_QKV_Layout)
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    statistics = [query.new_empty(_statistics_shape(layout, query), dtype=torch.float32) for _ in range(1 + wants_most)]
    state = query.new_empty(2, dtype=torch.int64)
    bias = _first(args, NVTE_Bias_Type)
    given = [tensors[-1]] if bias is not None and bias.name in ("NVTE_POST_SCALE_BIAS", "NVTE_PRE_SCALE_BIAS") else []
    _attended(layout, tensors[0], (query, key, value), args)
    return [out, *statistics, state, *given]


def fused_attn_bwd(*args: Any, **options: Any) -> list[torch.Tensor | None]:
    """Gradients of queries, keys and values: in one tensor where these were one."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    query, key, value = tensors[2:5]
    kept = next(value for value in args if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor))
    bias = _first(args, NVTE_Bias_Type)
    layouts = [value for value in args if isinstance(value, NVTE_QKV_Layout)]
    grads = _gradients(layouts[-1].name, query, key, value)
    has_bias = bias is not None and bias.name in ("NVTE_POST_SCALE_BIAS", "NVTE_PRE_SCALE_BIAS")
    bias_grad = torch.empty_like(kept[-1], dtype=query.dtype) if has_bias else None
    workspace = query.new_empty(_backward_bytes(layouts[0], query, key, value), dtype=torch.uint8)
    _attended(layouts[0], tensors[0], (query, key, value), args, is_backward=True)
    del workspace
    return [*grads, bias_grad, None]


def _attended(
    layout: Any, begins: torch.Tensor, tensors: Sequence[torch.Tensor], args: Sequence[Any], *, is_backward: bool = False
) -> None:
    """Advances the clock as by torch's attention with cuDNN. ``begins`` says where sequences begin that lie one after the other."""
    is_packed = layout.name.startswith("NVTE_T")
    mask, window = _first(args, NVTE_Mask_Type), next((value for value in args if _is_window(value)), (-1, -1))
    launched_attention(
        "cudnn",
        [tensor.detach() if is_packed else _by_heads(layout, tensor).transpose(1, 2) for tensor in tensors],
        batch=len(begins) - 1 if is_packed else 0,
        is_causal=mask is not None and "CAUSAL" in mask.name,
        window=window[0] + 1 if window[0] >= 0 else 0,
        is_backward=is_backward,
        slowdown=deterministic_slowdown("cudnn") if is_backward and _is_deterministic() else 1.0,
    )


def _is_deterministic() -> bool:
    """As the package itself decides."""
    return os.environ.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1") == "0" or torch.are_deterministic_algorithms_enabled()


def _is_window(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(type(side) is int for side in value)


def _by_heads(layout: Any, tensor: torch.Tensor) -> torch.Tensor:
    """As torch's operators have it: batch, heads, length, dimension."""
    words = layout.name.removeprefix("NVTE_").removeprefix("Paged_KV_")
    tensor = tensor.detach()
    if words.startswith("T"):
        return tensor.unsqueeze(0).transpose(1, 2)
    if words.startswith("BHSD"):
        return tensor
    return tensor.permute(1, 2, 0, 3) if words.startswith("SB") else tensor.transpose(1, 2)


def _first(args: Sequence[Any], kind: type) -> Any:
    return next((value for value in args if isinstance(value, kind)), None)


def _named(options: dict[str, Any], args: Sequence[Any], name: str) -> bool:
    """The flag before the last one, unless it is given by its name."""
    flags = [value for value in args if isinstance(value, bool)]
    return bool(options.get(name, flags[-2] if len(flags) > 4 else False))


def _statistics_shape(layout: Any, query: torch.Tensor) -> tuple[int, ...]:
    batch, heads, length, _ = _by_heads(layout, query).shape
    return (length, heads, 1) if layout.name.startswith("NVTE_T") else (batch, heads, length, 1)


def _gradients(layout: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
    for word, at in (("3HD", -3), ("H3D", -2)):
        if word in layout:
            packed = query.new_empty((*query.shape[: at + 1], 3, *query.shape[at + 1 :]))
            return [packed.select(at, index) for index in range(3)]
    for word, at in (("2HD", -3), ("H2D", -2)):
        if word in layout:
            packed = key.new_empty((*key.shape[: at + 1], 2, *key.shape[at + 1 :]))
            return [query.new_empty(query.shape), *(packed.select(at, index) for index in range(2))]
    return [tensor.new_empty(tensor.shape) for tensor in (query, key, value)]


def _backward_bytes(layout: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    batch, heads, length, dim = _by_heads(layout, query).shape
    keys = _by_heads(layout, key)
    expanded = batch * heads * keys.shape[2] * (key.shape[-1] + value.shape[-1]) * key.element_size()
    return cudnn_backward_bytes(batch * heads * length, dim, expanded if keys.shape[1] != heads else 0)


def fused_rope_forward(x: torch.Tensor, *args: Any) -> torch.Tensor:
    made = x.new_empty(x.shape)
    launched("te_rope", [x, made])
    return made


def fused_qkv_rope_forward(
    x: torch.Tensor, query_angles: Any, key_angles: Any, starts: Any, parts: Sequence[int], *args: Any
) -> tuple[torch.Tensor, ...]:
    """``x`` has queries, keys and values of a group of heads side by side, of these widths."""
    first, second, groups = x.shape[:3]
    query = x.new_empty((first, second, groups * parts[0] // parts[1], parts[1]))
    made = (query, *(x.new_empty((first, second, groups, part)) for part in parts[1:]))
    launched("te_qkv_rope", [x, *made])
    return made


def fused_qkv_rope_backward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_angles: Any, key_angles: Any, *args: Any
) -> torch.Tensor:
    parts = next(value for value in args if isinstance(value, (list, tuple)))
    heads = query.shape[2] + key.shape[2] + value.shape[2]
    made = query.new_empty((*query.shape[:2], heads * query.shape[3] // sum(parts), sum(parts)))
    launched("te_qkv_rope_backward", [query, key, value, made])
    return made


# -- sequences one after the other ---------------------------------------------------------------------------------------------


def thd_read_half_tensor(tensor: torch.Tensor, starts: torch.Tensor, half: int) -> torch.Tensor:
    at = 0 if tensor.dim() == 3 else 1
    return tensor.new_empty((*tensor.shape[:at], tensor.shape[at] // 2, *tensor.shape[at + 1 :]))


def thd_read_second_half_lse(sums: torch.Tensor, starts: torch.Tensor, is_packed: bool, length: int) -> torch.Tensor:
    return sums.new_empty((*sums.shape[:-1], length))


def thd_get_partitioned_indices(starts: torch.Tensor, num_tokens: int, world_size: int, rank: int) -> torch.Tensor:
    return starts.new_empty(num_tokens // world_size, dtype=torch.int32)


def convert_thd_to_bshd(tensor: torch.Tensor, starts: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    return tensor.new_zeros((batch, length, *tensor.shape[1:]))


def convert_bshd_to_thd(tensor: torch.Tensor, starts: torch.Tensor, num_tokens: int) -> torch.Tensor:
    return tensor.new_zeros((num_tokens, *tensor.shape[2:]))


def in_place(*args: Any) -> None:
    """A kernel that writes into a tensor that it is given."""
    launched("te_in_place", [value for value in args if isinstance(value, torch.Tensor)])


# -- activations ---------------------------------------------------------------------------------------------------------------


def _activation(x: torch.Tensor, quantizer: Any = None, *options: Any, **named: Any) -> torch.Tensor:
    _refuse_quantizer(quantizer)
    made = x.new_empty(x.shape)
    launched("te_activation", [x, made])
    return made


def _gated(x: torch.Tensor, quantizer: Any = None, *options: Any, **named: Any) -> torch.Tensor:
    _refuse_quantizer(quantizer)
    made = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
    launched("te_activation", [x, made])
    return made


def _activation_backward(grad: torch.Tensor, x: torch.Tensor, quantizer: Any = None, *options: Any, **named: Any) -> torch.Tensor:
    _refuse_quantizer(quantizer)
    made = x.new_empty(x.shape)
    launched("te_activation_backward", [grad, x, made])
    return made


def _with_bias_backward(grad: torch.Tensor, x: torch.Tensor, quantizer: Any = None) -> list[torch.Tensor]:
    return [x.new_empty(x.shape[-1], dtype=grad.dtype), _activation_backward(grad, x, quantizer)]


# -- the module ----------------------------------------------------------------------------------------------------------------


def get_cudnn_version() -> int:
    return torch.backends.cudnn.version() or 0


def _missing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NeedsGpuError(
            f"{name} of Transformer Engine's compiled module",
            "Switch the option that uses it off for the prediction; what it takes is not known here.",
        )

    return refuse


class _CommOverlap:
    """Buffers shared between GPUs for overlapping products and collectives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NeedsGpuError(
            "Transformer Engine's user buffers", "Predict without overlapped communication (Megatron: without --tp-comm-overlap)."
        )


_PLAIN = ("gelu", "qgelu", "relu", "srelu", "silu")
_GATED = ("glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu", "clamped_swiglu")
_IN_PLACE = ("thd_second_half_lse_correction", "thd_out_correction", "thd_grad_correction")
_UPDATES = (
    "scale",
    "scale_tensor",
    "adam",
    "adam_param_remainder",
    "adam_capturable",
    "adam_capturable_master",
    "sgd",
)
_SOFTMAX = ("scaled_softmax", "scaled_masked_softmax", "scaled_upper_triang_masked_softmax", "scaled_aligned_causal_masked_softmax")


def _fill(module: ModuleType) -> None:
    named: dict[str, Any] = dict.fromkeys(_IN_PLACE, in_place)
    named |= {f"multi_tensor_{name}": update_in_place for name in _UPDATES}
    named |= {f"{name}_forward": softmax for name in _SOFTMAX} | {f"{name}_backward": softmax_backward for name in _SOFTMAX}
    named |= dict.fromkeys(_PLAIN, _activation) | dict.fromkeys(_GATED, _gated)
    named |= {_backward_name(name): _activation_backward for name in (*_PLAIN, *_GATED)}
    named |= {f"dbias_d{name}": _with_bias_backward for name in _PLAIN}
    filling(*_FUNCTIONS, *_WORDS, **named)(module)
    module.__dict__.update(
        fused_rope_backward=fused_rope_forward,
        multi_tensor_l2norm=l2norm,
        multi_tensor_unscale_l2norm=lambda size, flag, lists, scale, *options: l2norm(size, flag, lists, *options),
        get_num_cublas_streams=lambda: STREAMS,
        get_cublasLt_version=lambda: CUBLASLT,
        get_stream_priority_range=lambda *device: (0, -5),
        device_supports_multicast=lambda *device: False,
        ubuf_built_with_mpi=lambda: False,
        CommOverlap=_CommOverlap,
        CommOverlapP2P=_CommOverlap,
        CommOverlapHelper=_CommOverlap,
        __getattr__=_later,
    )


def _backward_name(name: str) -> str:
    return "clamped_dswiglu" if name == "clamped_swiglu" else f"d{name}"


def _later(name: str) -> Any:
    """A function that is not known here is refused when it is called: releases add some that few programs use."""
    if name.startswith("__"):
        raise AttributeError(name)
    current()
    return _missing(name)


_FUNCTIONS = (
    generic_gemm,
    te_general_grouped_gemm,
    layernorm_fwd,
    layernorm_bwd,
    rmsnorm_fwd,
    rmsnorm_bwd,
    rmsnorm_bwd_add,
    get_fused_attn_backend,
    fused_attn_fwd,
    fused_attn_bwd,
    fused_rope_forward,
    fused_qkv_rope_forward,
    fused_qkv_rope_backward,
    thd_read_half_tensor,
    thd_read_second_half_lse,
    thd_get_partitioned_indices,
    convert_thd_to_bshd,
    convert_bshd_to_thd,
    get_cudnn_version,
)
_WORDS = (
    DType,
    NVTE_QKV_Layout,
    NVTE_QKV_Format,
    NVTE_Bias_Type,
    NVTE_Mask_Type,
    NVTE_Softmax_Type,
    NVTE_Fused_Attn_Backend,
    CommOverlapType,
    CommOverlapAlgo,
    Float8BlockScaleTensorFormat,
    FP8FwdTensors,
    FP8BwdTensors,
    FP8TensorMeta,
)

MODULES: dict[str, Fill] = {COMPILED: _fill}
