"""xformers: ``memory_efficient_attention``, whether the package is installed or not.

Facts: xformers/ops/fmha/dispatch.py and flash.py of 0.0.30: half types with heads of up to 256 go to flash attention 2, whose
kernels take what flash_attn's do; float32 and biases given as tensors go to CUTLASS's kernels, which are those of torch's
memory-efficient attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from memfit.phantom.current import current
from memfit.phantom.libraries.flash_attention import FlashCall, Kernels2, attend
from memfit.phantom.libraries.stand_ins import Fill, filling, is_stand_in
from memfit.torch_compat.patches import Patches

_FLASH = Kernels2()
_HALVES = (torch.float16, torch.bfloat16)


class AttentionBias:
    is_causal = False


class LowerTriangularMask(AttentionBias):
    is_causal = True

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


class BlockDiagonalMask(AttentionBias):
    """Sequences one after the other, in a batch of one."""

    def __init__(self, query_lengths: Sequence[int], key_lengths: Sequence[int]) -> None:
        self.query_lengths, self.key_lengths = list(query_lengths), list(key_lengths)

    @classmethod
    def from_seqlens(cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, **options: Any) -> BlockDiagonalMask:
        return cls(q_seqlen, q_seqlen if kv_seqlen is None else kv_seqlen)

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[torch.Tensor]) -> tuple[BlockDiagonalMask, torch.Tensor]:
        lengths = [int(tensor.shape[1]) for tensor in tensors for _ in range(tensor.shape[0])]
        flat = [tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in tensors]
        mask = cls(lengths, lengths)
        mask._batch_sizes = [int(tensor.shape[0]) for tensor in tensors]
        return mask, torch.cat(flat, dim=1)

    _batch_sizes: list[int] | None = None

    def split(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        sizes = self._batch_sizes or [1] * len(self.query_lengths)
        lengths, at = [], 0
        for size in sizes:
            lengths.append(self.query_lengths[at] * size)
            at += size
        parts = tensor.split(lengths, dim=1)
        return [part.reshape(size, -1, *part.shape[2:]) for part, size in zip(parts, sizes, strict=True)]

    def make_causal(self) -> BlockDiagonalCausalMask:
        return BlockDiagonalCausalMask(self.query_lengths, self.key_lengths)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    is_causal = True


def memory_efficient_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Any:
    current()
    if query.dim() == 3:
        one_head = [tensor.unsqueeze(2) for tensor in (query, key, value)]
        return memory_efficient_attention(one_head[0], one_head[1], one_head[2], attn_bias, p, scale, op=op).squeeze(2)
    if isinstance(attn_bias, torch.Tensor) or query.dtype not in _HALVES or query.shape[-1] > 256:
        return _by_cutlass(query, key, value, attn_bias, p, scale)
    packed = _packed_lengths(attn_bias)
    if packed is None:
        return attend(_FLASH, (query, key, value), FlashCall(dropout=p, is_causal=_is_causal(attn_bias)))
    lengths = [_begins(each, query.device) for each in packed]
    longest = max(packed[0]), max(packed[1])
    call = FlashCall(lengths=(lengths[0], lengths[1]), longest=longest, dropout=p, is_causal=_is_causal(attn_bias))
    return attend(_FLASH, tuple(x.flatten(0, 1) for x in (query, key, value)), call).unflatten(0, query.shape[:2])


def _is_causal(bias: Any) -> bool:
    """Also of the real package's masks, which say it in their names."""
    return bool(getattr(bias, "is_causal", False)) or any(word in type(bias).__name__ for word in ("Causal", "LowerTriangular"))


def _packed_lengths(bias: Any) -> tuple[list[int], list[int]] | None:
    """The lengths of sequences one after the other, of queries and of keys."""
    if isinstance(bias, BlockDiagonalMask):
        return bias.query_lengths, bias.key_lengths
    if not hasattr(bias, "q_seqinfo"):
        return None
    begins = bias.q_seqinfo.seqstart_py, bias.k_seqinfo.seqstart_py
    queries, keys = ([after - before for before, after in pairwise(each)] for each in begins)
    return queries, keys


def _begins(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    begins = [0]
    for length in lengths:
        begins.append(begins[-1] + int(length))
    return torch.tensor(begins, dtype=torch.int32, device=device)


def _by_cutlass(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, dropout: float, scale: Any) -> Any:
    parts = [tensor.transpose(1, 2) for tensor in (query, key, value)]
    given = bias if isinstance(bias, torch.Tensor) else None
    if given is not None and given.dim() == 3:
        given = given.unflatten(0, (query.shape[0], -1))
    needs_grad = torch.is_grad_enabled() and any(part.requires_grad for part in parts)
    made = torch.ops.aten._scaled_dot_product_efficient_attention(*parts, given, needs_grad, dropout, _is_causal(bias), scale=scale)
    return made[0].transpose(1, 2)


class SwiGLU(torch.nn.Module):
    """Two linear layers, a product with SiLU, and a third one."""

    def __init__(
        self, in_features: int, hidden_features: int, out_features: int | None = None, bias: bool = True, **options: Any
    ) -> None:
        super().__init__()
        self.w12 = torch.nn.Linear(in_features, 2 * hidden_features, bias=bias)
        self.w3 = torch.nn.Linear(hidden_features, out_features or in_features, bias=bias)

    def forward(self, x: torch.Tensor) -> Any:
        gate, up = self.w12(x).chunk(2, dim=-1)
        return self.w3(torch.nn.functional.silu(gate) * up)


def unbind(x: torch.Tensor, dim: int = 0) -> Any:
    return x.unbind(dim)


def install(patches: Patches) -> None:
    """For the package that is installed: its kernels are compiled."""

    def replace(module: Any) -> None:
        if not is_stand_in(module):
            patches.replace(module, "memory_efficient_attention", memory_efficient_attention)

    for name in ("xformers.ops.fmha", "xformers.ops"):
        patches.when_imported(name, replace)


_BIASES = (AttentionBias, LowerTriangularMask, BlockDiagonalMask, BlockDiagonalCausalMask)

MODULES: dict[str, Fill] = {
    "xformers": lambda module: None,
    "xformers.ops": filling(memory_efficient_attention, SwiGLU, unbind, *_BIASES),
    "xformers.ops.fmha": filling(memory_efficient_attention, *_BIASES),
    "xformers.ops.fmha.attn_bias": filling(*_BIASES),
}
