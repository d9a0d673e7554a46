"""Attention: which kernel the GPU would run, what that returns, and what it takes.

::

    scaled_dot_product_attention ── AttentionKernels ─> cuDNN, flash, efficient   kernels, each with its own backward and memory
                                              └─> math                      ordinary operators

Torch has an order of preference by its own version, cuDNN's and the GPU, and asks each kernel whether it accepts the call. The
first one that does is run; math accepts everything (ATen/native/transformers/cuda/sdp_utils.cpp). The memory of cuDNN's kernels
was measured; that of the others follows from their sources.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.phantom.kernels.rule import MEASURED_CUDNN, Arguments, ResultPlace, Rule, TakenBlocks, bytes_of
from memfit.phantom.target import Target
from memfit.torch_compat.devices import KERNEL_QUESTIONS, TORCH_C
from memfit.torch_compat.patches import Patches

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of one attention."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool

    @property
    def head_dim(self) -> int:
        return int(self.query.shape[-1])

    @property
    def needs_grad(self) -> bool:
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (self.query, self.key, self.value))

    @property
    def is_regular(self) -> bool:
        """What every kernel but math asks for."""
        tensors = (self.query, self.key, self.value)
        return (
            all(tensor.dim() == 4 and tensor.dtype == self.query.dtype and tensor.stride(-1) == 1 for tensor in tensors)
            and all(tensor.shape[0] == self.query.shape[0] for tensor in tensors)
            and all(tensor.shape[2] > 0 for tensor in tensors)
            and (self.mask is None or self.mask.stride(-1) == 1)
        )

    @property
    def has_equal_heads(self) -> bool:
        return self.query.shape[1] == self.key.shape[1] == self.value.shape[1]

    @property
    def has_equal_dims(self) -> bool:
        return self.query.shape[-1] == self.key.shape[-1] == self.value.shape[-1]


class AttentionKernels:
    """The first that accepts the call of cuDNN's, flash and memory-efficient attention; otherwise ordinary operators."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._order = _preference(target)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """``torch.nn.functional.scaled_dot_product_attention``."""
        call = AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return _RUN[self.choose(call)](call)

    def choose(self, call: AttentionCall) -> str:
        for name in self._order:
            if _ENABLED[name]() and _ACCEPTS[name](call, self._target):
                return name
        return "math"


def _preference(target: Target) -> tuple[str, ...]:
    """The order in which kernels are tried."""
    if target.is_rocm:
        return ("flash", "efficient")
    major, minor = target.capability
    is_favoured_gpu = (major, minor) in ((9, 0), (10, 0)) or (target.torch >= (2, 10) and (major, minor) == (10, 3))
    if target.torch >= (2, 10):
        cudnn_first = is_favoured_gpu and target.cudnn > (9, 15, 0)
    else:
        cudnn_first = target.torch == (2, 9) and is_favoured_gpu and target.cudnn >= (9, 9, 0)
    return ("cudnn", "flash", "efficient") if cudnn_first else ("flash", "efficient")


def _flash_accepts(call: AttentionCall, target: Target) -> bool:
    return (
        target.capability >= (8, 0)
        and call.query.dtype in _HALVES
        and call.is_regular
        and call.mask is None
        and call.has_equal_dims
        and call.head_dim <= 256
        and (not call.is_causal or call.query.shape[2] == call.key.shape[2])
        and (call.has_equal_heads or _is_grouped(call))
    )


def _is_grouped(call: AttentionCall) -> bool:
    return call.enable_gqa and call.query.shape[1] % call.key.shape[1] == 0 and call.key.shape[1] == call.value.shape[1]


def _efficient_accepts(call: AttentionCall, target: Target) -> bool:
    alignment = 4 if call.query.dtype == torch.float32 else 8
    return (
        call.query.dtype in (torch.float32, *_HALVES)
        and (call.query.dtype != torch.bfloat16 or target.capability >= (8, 0))
        and call.is_regular
        and call.has_equal_heads
        and call.query.shape[-1] == call.key.shape[-1]
        and call.query.shape[-1] % alignment == 0
        and call.value.shape[-1] % alignment == 0
    )


def _cudnn_accepts(call: AttentionCall, target: Target) -> bool:
    if target.is_rocm:
        return False
    largest = 256 if target.capability == (9, 0) and target.cudnn >= (9, 10, 0) else 128
    return (
        target.capability >= (8, 0)
        and call.query.dtype in _HALVES
        and call.is_regular
        and call.head_dim == call.key.shape[-1]
        and all(size % 8 == 0 and size <= largest for size in (call.head_dim, call.value.shape[-1]))
        and call.key.shape[2] != 1
        and (call.mask is None or not call.mask.requires_grad)
        and (call.has_equal_heads or _is_grouped(call))
        and not torch.are_deterministic_algorithms_enabled()
    )


# -- asked from Python ---------------------------------------------------------------------------------------------------------
#
# Nested tensors choose their kernel in Python (torch/nested/_internal/sdpa.py), by questions to C++ about the GPU.


def install(patches: Patches, target: Target) -> None:
    for question, name in KERNEL_QUESTIONS.items():
        patches.replace(TORCH_C, question, functools.partial(_would_take, name, target))


def _would_take(name: str, target: Target, params: Any, debug: bool = False) -> bool:
    """Would the kernel take the call? cuDNN's comes last for nested tensors, and is left to those that come before."""
    if params.query.is_nested and name == "cudnn":
        return False
    parts = (params.query, params.key, params.value, params.attn_mask)
    call = AttentionCall(*parts, params.dropout, params.is_causal, None, params.enable_gqa)
    return _ENABLED[name]() and _ACCEPTS[name](call, target)


def _run_flash(call: AttentionCall) -> torch.Tensor:
    padding = -call.head_dim % 8
    scale = call.scale if call.scale is not None else call.head_dim**-0.5
    query, key, value = (
        torch.nn.functional.pad(tensor, (0, padding)) if padding else tensor for tensor in (call.query, call.key, call.value)
    )
    out = aten._scaled_dot_product_flash_attention(query, key, value, call.dropout, call.is_causal, False, scale=scale)[0]
    return out[..., : call.head_dim] if padding else out  # type: ignore[no-any-return]


def _run_efficient(call: AttentionCall) -> torch.Tensor:
    bias = _expand(_additive(call.mask, call.query), call)
    out: torch.Tensor = aten._scaled_dot_product_efficient_attention(
        call.query, call.key, call.value, bias, call.needs_grad, call.dropout, call.is_causal, scale=call.scale
    )[0]  # the bias outlives what else comes back
    return out


def _run_cudnn(call: AttentionCall) -> torch.Tensor:
    bias = _additive(call.mask, call.query)
    out: torch.Tensor = aten._scaled_dot_product_cudnn_attention(
        call.query, call.key, call.value, bias, call.needs_grad, call.dropout, call.is_causal, False, scale=call.scale
    )[0]  # the bias outlives what else comes back
    return out


def _run_math(call: AttentionCall) -> torch.Tensor:
    """ATen/native/transformers/attention.cpp: half types are computed in float32, the mask is added in place."""
    dtype = call.query.dtype
    widens = dtype in _HALVES and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    wide = [x.float() if widens else x for x in (call.query, call.key, call.value)]  # alive until the end, as they are in C++
    factor = (call.scale if call.scale is not None else call.head_dim**-0.5) ** 0.5
    query, key, value = wide[0] * factor, wide[1], wide[2]
    mask = _additive(_causal_mask(query, key) if call.is_causal else call.mask, query)
    if call.enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ (key.transpose(-2, -1) * factor)
    if mask is not None:
        scores.add_(mask)
    weights = aten._safe_softmax(scores, -1)
    del scores
    if call.dropout:
        weights = torch.nn.functional.dropout(weights, call.dropout)
    returned = weights.to(dtype)  # the kernel's second result, which is not used
    out: torch.Tensor = (weights @ value).to(dtype)
    del returned
    return out


def _causal_mask(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()


def _additive(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A boolean mask is turned into one that is added, in the type of the query."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    nothing, everything = (torch.full((), value, dtype=query.dtype, device=query.device) for value in (0.0, float("-inf")))
    return torch.where(mask, nothing, everything)


def _expand(bias: torch.Tensor | None, call: AttentionCall) -> torch.Tensor | None:
    if bias is None:
        return None
    padding = -bias.shape[-1] % 8
    if padding:
        length = bias.shape[-1]
        bias = torch.nn.functional.pad(bias, (0, padding))[..., :length]
    return bias.expand(call.query.shape[0], call.query.shape[1], call.query.shape[2], call.key.shape[2])


_ENABLED: dict[str, Callable[[], bool]] = {
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
}
_ACCEPTS: dict[str, Callable[[AttentionCall, Target], bool]] = {
    "cudnn": _cudnn_accepts,
    "flash": _flash_accepts,
    "efficient": _efficient_accepts,
}
_RUN: dict[str, Callable[[AttentionCall], torch.Tensor]] = {
    "cudnn": _run_cudnn,
    "flash": _run_flash,
    "efficient": _run_efficient,
    "math": _run_math,
}


# -- memory of cuDNN's kernels -------------------------------------------------------------------------------------------------

GRAPH_BYTES = 256
"""What every graph of cuDNN takes beside."""


def _cudnn_attention(query: torch.Tensor, key: Any, value: Any, bias: Any, wants_sums: bool, *args: Any, **kwargs: Any) -> Any:
    """As torch has it; without the sums for backward where no gradient is asked for."""
    if wants_sums:
        return NotImplemented
    out, sums, *others = aten._scaled_dot_product_cudnn_attention(query, key, value, bias, True, *args, **kwargs)
    return out, sums.new_empty(0), *others


def _cudnn_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """Dropout's seed and offset first, then the output and the sums, and 256 bytes."""
    return (*map(ResultPlace, (6, 7, 0, 1)), GRAPH_BYTES)


def _cudnn_backward_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """In one block: the gradient of the query in float32, a sum for each of its rows, and separate gradients of grouped heads."""
    query = args[1]
    batch, heads, length, dim = query.shape
    key, value = args[2], args[3]
    expanded = sum(batch * heads * x.shape[2] * x.shape[3] * x.element_size() for x in (key, value) if x.shape[1] != heads)
    return (cudnn_backward_bytes(batch * heads * length, dim, expanded),)


def cudnn_backward_bytes(num_rows: int, dim: int, expanded: int) -> int:
    """The workspace for rows of queries in all heads; ``expanded`` are bytes of separate gradients of grouped heads."""
    return 4 * num_rows * dim + 4 * num_rows + expanded + GRAPH_BYTES


# -- flash ---------------------------------------------------------------------------------------------------------------------

ENOUGH_OF_THE_GPU, GOOD_ENOUGH, MOST_SPLITS = 0.8, 0.85, 128
ROWS_PER_BLOCK = 64


def _flash_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Where queries alone leave the GPU idle, the keys are divided: the results of the parts, in float32."""
    query, key, dropout = args[0], args[1], args[3] if len(args) > 3 else 0.0
    batch, heads, length, dim = query.shape
    splits = 1 if dropout else flash_splits(batch * heads * -(-length // ROWS_PER_BLOCK), 2 * target.gpu.num_sms, key.shape[2], dim)
    rows = 4 * splits * batch * heads * length
    return (rows, rows * padded_dim(dim)) if splits > 1 else ()


def flash_splits(blocks: int, num_slots: int, keys: int, dim: int) -> int:
    """The smallest number of parts that keeps the GPU about as busy as the best number would."""
    if blocks >= ENOUGH_OF_THE_GPU * num_slots:
        return 1
    key_blocks = -(-keys // (256 if dim <= 64 else 128 if dim <= 128 else 64))
    splits = [n for n in range(1, min(MOST_SPLITS, num_slots, key_blocks) + 1) if _is_new_split(key_blocks, n)]
    busy = {n: blocks * n / num_slots / math.ceil(blocks * n / num_slots) for n in splits}
    return next(n for n in splits if busy[n] >= GOOD_ENOUGH * max(busy.values()))


def _is_new_split(key_blocks: int, splits: int) -> bool:
    return splits == 1 or -(-key_blocks // splits) != -(-key_blocks // (splits - 1))


def _flash_backward_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """A sum for every row, the gradient of the query in float32, separate gradients of grouped heads, and copies for its layout.

    Gradient and output are copied where they do not lie in memory as batch, length, head, dimension.
    """
    grad, query, key, out = args[0], args[1], args[2], args[4]
    batch, heads, length, dim = query.shape
    padded_length = round_up(length, 128)
    sizes = [x.numel() * x.element_size() for x in (grad, out) if not x.transpose(1, 2).is_contiguous()]
    sizes += [4 * batch * heads * padded_length, 4 * batch * heads * padded_length * padded_dim(dim)]
    if key.shape[1] != heads:
        sizes += [batch * key.shape[2] * heads * dim * query.element_size()] * 2
    return sizes


def _flash_varlen_backward_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """The same for sequences one after another: each is rounded up by as much as a block of rows."""
    query, key, lengths = args[1], args[2], args[6]
    if query.dim() != 3 or lengths is None:
        return ()
    total, heads, dim = query.shape
    rows = total + 128 * (lengths.numel() - 1)
    sizes = [4 * heads * rows, 4 * heads * rows * padded_dim(dim)]
    if key.shape[1] != heads:
        sizes += [key.shape[0] * heads * dim * query.element_size()] * 2
    return sizes


def padded_dim(dim: int) -> int:
    return round_up(dim, 32 if dim <= 128 else 64)


# -- memory-efficient ----------------------------------------------------------------------------------------------------------

LARGEST_IN_REGISTERS = 128


def _efficient_attention(query: torch.Tensor, key: Any, value: Any, bias: Any, wants_sums: bool, *args: Any, **kwargs: Any) -> Any:
    """The output, sums for backward, padded to a multiple of 32 rows, and the seeds of dropout, which are on the host."""
    batch, heads, length, _ = query.shape
    out = query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)
    sums = query.new_empty((batch, heads, -(-length // 32) * 32 if wants_sums else 0), dtype=torch.float32)
    return out, sums, *(torch.empty((), dtype=torch.int64, device="cpu") for _ in range(2))


def _efficient_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """The output in float32, where heads are wide and the type is float16 or bfloat16."""
    query, value = args[0], args[2]
    if query.dtype not in _HALVES or value.shape[-1] <= LARGEST_IN_REGISTERS:
        return ()
    batch, heads, length, _ = query.shape
    return (4 * batch * heads * length * value.shape[-1],)


def _efficient_backward_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """A copy of a gradient that does not lie in memory as batch, length, head, dimension; after the results a sum for every row, in
    float32 from a product of gradient and output; tiles of the query's gradient, and of those of key and value where heads are
    wide."""
    grad, query, key, out = args[0], args[1], args[2], args[5]
    copies = () if grad.transpose(1, 2).is_contiguous() else (bytes_of(grad),)
    first = len(copies)
    batch, heads, length, dim = query.shape
    rows, columns = _tile(query.dtype, dim)
    floats = -(-length // rows) * -(-dim // columns) * (rows * columns + 4)
    if dim > LARGEST_IN_REGISTERS and query.dtype in _HALVES:
        splits = max(1, min(-(-key.shape[2] // columns), 200 // (batch * heads)))
        floats += 2 * splits * columns * round_up(dim, rows)
    sums, tiles = 4 * batch * heads * length, 4 * batch * heads * round_up(floats, 4)
    results = map(ResultPlace, range(4))
    if query.dtype != torch.float32:
        return (*copies, *results, sums, tiles)
    product = 4 * out.numel()
    if heads == 1 or length == 1:
        return (*copies, *results, product, sums, -first - 1, tiles)
    return (*copies, *results, product, sums, sums, -first - 1, -first - 2, tiles)  # the sums are copied, heads before rows


def _tile(dtype: torch.dtype, dim: int) -> tuple[int, int]:
    if dim <= 64:
        return 64, 64
    if dim <= 128:
        return (128, 64) if dtype == torch.float32 else (128, 128)
    return 128, 64


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


CUDA = "ATen/native/transformers/cuda"

RULES = (
    Rule(
        operators=("scaled_dot_product_attention",),
        runs=AttentionKernels,
        source=f"{CUDA}/sdp_utils.cpp, ATen/native/transformers/attention.cpp",
    ),
    Rule(
        operators=("_scaled_dot_product_cudnn_attention",),
        returns=_cudnn_attention,
        takes=_cudnn_blocks,
        source=f"{CUDA}/attention.cu; {MEASURED_CUDNN}",
    ),
    Rule(operators=("_scaled_dot_product_cudnn_attention_backward",), takes=_cudnn_backward_blocks, source=MEASURED_CUDNN),
    Rule(operators=("_scaled_dot_product_flash_attention",), takes=_flash_blocks, source=f"{CUDA}/flash_attn/flash_api.cpp"),
    Rule(
        operators=("_scaled_dot_product_flash_attention_backward",),
        takes=_flash_backward_blocks,
        source=f"{CUDA}/flash_attn/flash_api.cpp",
    ),
    Rule(
        operators=("_flash_attention_backward",),
        takes=_flash_varlen_backward_blocks,
        source=f"{CUDA}/flash_attn/flash_api.cpp",
    ),
    Rule(
        operators=("_scaled_dot_product_efficient_attention",),
        returns=_efficient_attention,
        takes=_efficient_blocks,
        source=f"{CUDA}/attention.cu, mem_eff_attention/kernel_forward.h",
    ),
    Rule(
        operators=("_scaled_dot_product_efficient_attention_backward",),
        takes=_efficient_backward_blocks,
        source=f"{CUDA}/mem_eff_attention/kernel_backward.h",
    ),
)
