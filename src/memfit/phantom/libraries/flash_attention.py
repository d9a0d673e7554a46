"""flash_attn 2 and 3: what their kernels take, and the packages' functions where they are not installed.

::

    flash_attn_func, flash_attn_varlen_func, ...qkvpacked, ...kvpacked ──> FlashAttention (autograd) ──> Kernels2 ── flash_attn 2
                                                                                               └──> Kernels3 ── flash_attn 3
        under torch.compile ──> flash_forward, flash_backward: operators that the compiler does not look into, as the real ones are
    flash_attn_2_cuda (compiled) ──> fwd, bwd, varlen_fwd, varlen_bwd, fwd_kvcache: the same kernels, below the real Python package

Facts for version 2, from csrc/flash_attn/flash_api.cpp and flash_attn/flash_attn_interface.py of 2.8: heads are padded to a
multiple of 8, the sums of the softmax have a row for each head and token (not padded), and backward takes the query's gradient in
float32, rounded up to 128 rows and to 32 (64 above 128) columns, a sum for each row, and gradients for each of grouped heads.
Facts for version 3, from hopper/flash_api.cpp and hopper/flash_attn_interface.py: rows are rounded up to the kernel's block,
columns to 64, 96, 128, 192 or 256, and gradients of grouped heads are summed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from memfit.phantom.clock.launches import launched_attention
from memfit.phantom.current import current
from memfit.phantom.kernels.attention import flash_splits, padded_dim, round_up
from memfit.phantom.libraries.stand_ins import Fill, filling, is_stand_in
from memfit.timing.operators.attention import deterministic_slowdown
from memfit.torch_compat.patches import Patches

ROWS = 128
"""Rows between two sequences in the backward of version 2."""


@dataclass(frozen=True, kw_only=True)
class FlashCall:
    """What a kernel is told beside its tensors."""

    lengths: tuple[torch.Tensor, torch.Tensor] | None = None
    """Where each sequence begins, for queries and for keys; without them a batch is a dimension of its own."""
    longest: tuple[int, int] = (0, 0)
    dropout: float = 0.0
    is_causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    is_deterministic: bool = False
    wants_probabilities: bool = False

    @property
    def num_seen(self) -> int:
        """How many keys a query sees in a window; 0 where there is none on one of its sides."""
        left, right = self.window[0], 0 if self.is_causal else self.window[1]
        return left + right + 1 if min(left, right) >= 0 else 0

    def batch(self, query: torch.Tensor) -> int:
        return len(self.lengths[0]) - 1 if self.lengths is not None else int(query.shape[0])

    def longest_query(self, query: torch.Tensor) -> int:
        return int(self.longest[0]) if self.lengths is not None else int(query.shape[1])

    def longest_key(self, key: torch.Tensor) -> int:
        return int(self.longest[1]) if self.lengths is not None else int(key.shape[1])


Forward = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]


class Kernels2:
    """Version 2."""

    like = "flash"
    """The kernel of torch that takes as long."""
    name = "flash"
    """In ``data/deterministic.toml``."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: FlashCall) -> Forward:
        """The output, the sums of the softmax, what dropout has left, the seed."""
        heads = query.shape[-2]
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        rows = (heads, query.shape[0]) if call.lengths is not None else (query.shape[0], heads, query.shape[1])
        sums = query.new_empty(rows, dtype=torch.float32)
        dropped = None
        if call.wants_probabilities and call.dropout:
            longest = round_up(call.longest_query(query), ROWS), round_up(call.longest_key(key), ROWS)
            dropped = query.new_empty((call.batch(query), heads, *longest))
        parts = self._parts(query, key, call)
        seed = query.new_empty(2, dtype=torch.int64)
        self._run(query, key, value, call, is_backward=False)
        del parts
        return out, sums, dropped, seed

    def _run(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: FlashCall, *, is_backward: bool) -> None:
        """Advances the clock."""
        launched_attention(
            self.like,
            (query, key, value),
            batch=call.batch(query) if call.lengths is not None else 0,
            is_causal=call.is_causal,
            window=call.num_seen,
            dropout=call.dropout,
            is_backward=is_backward,
            slowdown=deterministic_slowdown(self.name) if is_backward and call.is_deterministic else 1.0,
        )

    def _parts(self, query: torch.Tensor, key: torch.Tensor, call: FlashCall) -> list[torch.Tensor]:
        """Where queries alone leave the GPU idle, the keys are divided: the results of the parts, in float32."""
        if call.lengths is not None or call.dropout:
            return []
        batch, length, heads, dim = query.shape
        num_sms = current().target.gpu.num_sms
        splits = flash_splits(batch * heads * -(-length // 64), 2 * num_sms, int(key.shape[1]), dim)
        if splits == 1:
            return []
        rows = query.new_empty((splits, batch, heads, length), dtype=torch.float32)
        return [rows, query.new_empty((splits, batch, heads, length, padded_dim(dim)), dtype=torch.float32)]

    def backward(self, grads: Sequence[torch.Tensor], query: torch.Tensor, key: torch.Tensor, call: FlashCall) -> torch.Tensor:
        """Takes what it needs while it runs; the gradients are there already. Returns a sum for every row."""
        heads, dim, batch = query.shape[-2], query.shape[-1], call.batch(query)
        if call.lengths is not None:
            rows: tuple[int, ...] = (query.shape[0] + ROWS * batch,)
            sums = query.new_empty((heads, *rows), dtype=torch.float32)
        else:
            rows = (batch, round_up(query.shape[1], ROWS))
            sums = query.new_empty((batch, heads, rows[1]), dtype=torch.float32)
        splits = (-(-current().target.gpu.num_sms // (batch * heads)),) if call.is_deterministic else ()
        accumulated = query.new_empty((*splits, *rows, heads, padded_dim(dim)), dtype=torch.float32)
        expanded = [query.new_empty((*key.shape[:-2], heads, dim)) for _ in range(2)] if key.shape[-2] != heads else []
        self._run(query, key, key, call, is_backward=True)
        del accumulated, expanded
        return sums

    def pad(self, tensor: torch.Tensor) -> torch.Tensor:
        missing = -tensor.shape[-1] % 8
        return functional.pad(tensor, (0, missing)) if missing else tensor


class Kernels3(Kernels2):
    """Version 3, which is as fast as cuDNN's (arXiv 2407.08608, figure 5)."""

    like = "cudnn"
    name = "flash3"

    def _parts(self, query: torch.Tensor, key: torch.Tensor, call: FlashCall) -> list[torch.Tensor]:
        """What the scheduler counts with."""
        return [query.new_empty(1 + call.batch(query), dtype=torch.int32)]

    def backward(self, grads: Sequence[torch.Tensor], query: torch.Tensor, key: torch.Tensor, call: FlashCall) -> torch.Tensor:
        heads, batch = query.shape[-2], call.batch(query)
        dim = next(rounded for rounded in (64, 96, 128, 192, 256) if rounded >= query.shape[-1])
        rows, columns = _blocks(dim, call, current().target.capability)
        if call.lengths is not None:
            queries: tuple[int, ...] = (heads, round_up(query.shape[0] + batch * rows, rows))
            keys: tuple[int, ...] = (key.shape[-2], round_up(key.shape[0] + batch * columns, columns))
        else:
            queries = (batch, heads, round_up(query.shape[1], rows))
            keys = (batch, key.shape[-2], round_up(key.shape[1], columns))
        sums = query.new_empty(queries, dtype=torch.float32)
        taken = [query.new_empty(queries, dtype=torch.float32), query.new_empty((*queries, dim), dtype=torch.float32)]
        if key.shape[-2] != heads:
            taken += [query.new_empty((*keys, dim), dtype=torch.float32) for _ in range(2)]
        taken.append(query.new_empty((-(-call.longest_query(query) // rows), batch, heads), dtype=torch.int32))
        self._run(query, key, key, call, is_backward=True)
        taken.clear()
        return sums


def _blocks(dim: int, call: FlashCall, capability: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of version 3's backward kernel."""
    is_causal = call.is_causal and call.window[0] < 0
    is_special = call.is_causal or max(call.window) >= 0 or call.softcap > 0
    if capability >= (9, 0):
        rows = (96 if is_causal and call.softcap > 0 else 128) if dim <= 64 else 80 if dim == 128 and not is_special else 64
        return rows, 128 if dim <= 128 else 96 if dim <= 192 else 80
    if capability in ((8, 6), (8, 9)):
        return 64 if dim <= 192 else 32, 128 if dim <= 96 else 96 if dim <= 128 else 64
    return 128 if dim <= 64 else 64, 128 if dim <= 128 else 80 if dim <= 192 else 64


class FlashAttention(torch.autograd.Function):
    """Queries, keys and values come apart, or packed into one tensor, or keys and values into one."""

    @staticmethod
    def forward(ctx: Any, kernels: Kernels2, call: FlashCall, returns: int, *packed: torch.Tensor) -> Any:
        """``returns`` is how many of output, sums and probabilities the caller gets."""
        dim = packed[0].shape[-1]
        query, key, value = (kernels.pad(_with_last_dense(part.detach())) for part in _unpack(packed))
        out, sums, dropped, seed = kernels.forward(query, key, value, call)
        ctx.save_for_backward(query, key, value, out, sums, seed, *(call.lengths or ()))
        ctx.kernels, ctx.call, ctx.num_packed = kernels, call, len(packed)
        result = (out[..., :dim], sums, dropped)
        return result[0] if returns == 1 else result[:returns]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *others: Any) -> Any:
        query, key, value = ctx.saved_tensors[:3]
        grad = _with_last_dense(grad)
        shapes = _packed_shapes(query, key, value, ctx.num_packed)
        grads = [query.new_empty(shape) for shape in shapes]
        padded = ctx.kernels.pad(grad)
        ctx.kernels.backward(grads, query, key, ctx.call)
        del padded
        return None, None, None, *(made[..., : grad.shape[-1]] for made in grads)


def _with_last_dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _unpack(packed: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    if len(packed) == 3:
        return packed
    return (*packed[:-1], *packed[-1].unbind(-3))


def _packed_shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, num: int) -> Sequence[Sequence[int]]:
    if num == 3:
        return query.shape, key.shape, value.shape
    if num == 2:
        return query.shape, (*key.shape[:-2], 2, *key.shape[-2:])
    return ((*query.shape[:-2], 3, *query.shape[-2:]),)


def attend(kernels: Kernels2, packed: Sequence[torch.Tensor], call: FlashCall, returns: int = 1) -> Any:
    if torch.compiler.is_compiling():
        starts, longest, window = list(call.lengths or ()), list(call.longest), list(call.window)
        numbers = [call.dropout, call.softcap]
        flags = [int(kernels is _THREE), int(call.is_causal), int(call.is_deterministic), int(call.wants_probabilities)]
        result = flash_forward(list(packed), starts, longest, window, numbers, flags)
        return result[0] if returns == 1 else result[:returns]
    current()  # outside every prediction this is refused
    return FlashAttention.apply(kernels, call, returns, *packed)  # type: ignore[no-untyped-call]


# -- as operators, under torch.compile -----------------------------------------------------------------------------------------


def _as_call(
    starts: Sequence[torch.Tensor], longest: Sequence[int], window: Sequence[int], numbers: Sequence[float], flags: Sequence[int]
) -> tuple[Kernels2, FlashCall]:
    call = FlashCall(
        lengths=(starts[0], starts[1]) if starts else None,
        longest=(longest[0], longest[1]),
        window=(window[0], window[1]),
        dropout=numbers[0],
        softcap=numbers[1],
        is_causal=bool(flags[1]),
        is_deterministic=bool(flags[2]),
        wants_probabilities=bool(flags[3]),
    )
    return _THREE if flags[0] else _TWO, call


def run_forward(
    packed: Sequence[torch.Tensor],
    starts: Sequence[torch.Tensor],
    longest: Sequence[int],
    window: Sequence[int],
    numbers: Sequence[float],
    flags: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    kernels, call = _as_call(starts, longest, window, numbers, flags)
    query, key, value = (kernels.pad(_with_last_dense(part)) for part in _unpack(packed))
    out, sums, dropped, seed = kernels.forward(query, key, value, call)
    return out[..., : packed[0].shape[-1]], sums, dropped if dropped is not None else out.new_empty(0), seed


def run_backward(
    grad: torch.Tensor,
    packed: Sequence[torch.Tensor],
    starts: Sequence[torch.Tensor],
    longest: Sequence[int],
    window: Sequence[int],
    numbers: Sequence[float],
    flags: Sequence[int],
) -> list[torch.Tensor]:
    kernels, call = _as_call(starts, longest, window, numbers, flags)
    query, key, value = (kernels.pad(_with_last_dense(part)) for part in _unpack(packed))
    grads = [query.new_empty(shape) for shape in _packed_shapes(query, key, value, len(packed))]
    padded = kernels.pad(_with_last_dense(grad))
    kernels.backward(grads, query, key, call)
    del padded
    return [made[..., : grad.shape[-1]] for made in grads]


def _keep_for_backward(ctx: Any, inputs: Any, output: Any) -> None:
    packed, starts, *ctx.rest = inputs
    ctx.num_packed = len(packed)
    ctx.save_for_backward(*packed, *starts, *output[:2], output[3])


def _differentiate(ctx: Any, grad: torch.Tensor, *others: Any) -> Any:
    saved = ctx.saved_tensors
    num_starts = len(saved) - ctx.num_packed - 3
    packed, starts = saved[: ctx.num_packed], saved[ctx.num_packed : ctx.num_packed + num_starts]
    return flash_backward(grad, list(packed), list(starts), *ctx.rest), [None] * num_starts, None, None, None, None


flash_forward: Any = torch.library.custom_op("memfit::flash_forward", run_forward, mutates_args=())
flash_backward: Any = torch.library.custom_op("memfit::flash_backward", run_backward, mutates_args=())
flash_forward.register_fake(run_forward)
flash_backward.register_fake(run_backward)
flash_forward.register_autograd(_differentiate, setup_context=_keep_for_backward)


# -- version 2's functions -----------------------------------------------------------------------------------------------------

_TWO, _THREE = Kernels2(), Kernels3()


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    return _attend_2((q, k, v), None, (0, 0), dropout_p, causal, window_size, deterministic, return_attn_probs)


def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    return _attend_2((q, kv), None, (0, 0), dropout_p, causal, window_size, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    return _attend_2((qkv,), None, (0, 0), dropout_p, causal, window_size, deterministic, return_attn_probs)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    lengths, longest = (cu_seqlens_q, cu_seqlens_k), (int(max_seqlen_q), int(max_seqlen_k))
    return _attend_2((q, k, v), lengths, longest, dropout_p, causal, window_size, deterministic, return_attn_probs)


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    lengths, longest = (cu_seqlens_q, cu_seqlens_k), (int(max_seqlen_q), int(max_seqlen_k))
    return _attend_2((q, kv), lengths, longest, dropout_p, causal, window_size, deterministic, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    lengths, longest = (cu_seqlens, cu_seqlens), (int(max_seqlen), int(max_seqlen))
    return _attend_2((qkv,), lengths, longest, dropout_p, causal, window_size, deterministic, return_attn_probs)


def _attend_2(
    packed: Sequence[torch.Tensor],
    lengths: tuple[torch.Tensor, torch.Tensor] | None,
    longest: tuple[int, int],
    dropout: float,
    is_causal: bool,
    window: tuple[int, int],
    is_deterministic: bool,
    wants_probabilities: bool,
) -> Any:
    call = FlashCall(
        lengths=lengths,
        longest=longest,
        dropout=dropout,
        is_causal=is_causal,
        window=(int(window[0]), int(window[1])),
        is_deterministic=is_deterministic,
        wants_probabilities=wants_probabilities,
    )
    return attend(_TWO, packed, call, returns=3 if wants_probabilities else 1)


def flash_attn_with_kvcache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Writes into the cache, and has no backward."""
    current()
    with torch.no_grad():
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        sums = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
    return (out, sums) if kwargs.get("return_softmax_lse") else out


# -- version 3's ---------------------------------------------------------------------------------------------------------------


def flash_attn_func_3(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Any = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    call = FlashCall(is_causal=causal, window=window_size, softcap=softcap, is_deterministic=deterministic)
    return attend(_THREE, (q, k, v), call, returns=2 if return_attn_probs else 1)


def flash_attn_varlen_func_3(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Any = None,
    seqused_k: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Any = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    call = FlashCall(
        lengths=(cu_seqlens_q, cu_seqlens_k),
        longest=(int(max_seqlen_q), int(max_seqlen_k)),
        is_causal=causal,
        window=window_size,
        softcap=softcap,
        is_deterministic=deterministic,
    )
    return attend(_THREE, (q, k, v), call, returns=2 if return_attn_probs else 1)


def flash_attn_qkvpacked_func_3(
    qkv: torch.Tensor, softmax_scale: float | None = None, causal: bool = False, *args: Any, **kwargs: Any
) -> Any:
    call = FlashCall(is_causal=causal, is_deterministic=bool(kwargs.get("deterministic")))
    if qkv.dim() == 5:
        return attend(_THREE, (qkv,), call)
    heads = kwargs["num_heads_q"]
    grouped = (qkv.shape[2] - heads) // 2
    return attend(_THREE, qkv.split([heads, grouped, grouped], dim=-2), call)


# -- the compiled module below the real package --------------------------------------------------------------------------------


def _fwd(q: Any, k: Any, v: Any, out: Any, alibi: Any, dropout: float, scale: Any, causal: bool, *rest: Any) -> Any:
    wants = bool(rest[3]) if len(rest) > 3 else False
    call = FlashCall(dropout=dropout, is_causal=causal, window=_window(rest[:2]), wants_probabilities=wants)
    return _results(_TWO.forward(q, k, v, call))


def _varlen_fwd(q: Any, k: Any, v: Any, out: Any, cu_q: Any, cu_k: Any, *rest: Any) -> Any:
    call = FlashCall(
        lengths=(cu_q, cu_k),
        longest=(int(rest[4]), int(rest[5])),
        dropout=rest[6],
        is_causal=bool(rest[9]),
        window=_window(rest[10:12]),
        wants_probabilities=bool(rest[13]),
    )
    return _results(_TWO.forward(q, k, v, call))


def _window(sides: Sequence[Any]) -> tuple[int, int]:
    return (int(sides[0]), int(sides[1])) if len(sides) == 2 else (-1, -1)


def _results(made: Forward) -> Any:
    out, sums, dropped, seed = made
    return out, sums, dropped if dropped is not None else out.new_empty(0), seed


def _bwd(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dq: Any, dk: Any, dv: Any, *rest: Any) -> Any:
    call = FlashCall(dropout=rest[1], is_causal=bool(rest[3]), window=_window(rest[4:6]), is_deterministic=bool(rest[7]))
    return dq, dk, dv, _TWO.backward((dq, dk, dv), q, k, call)


def _varlen_bwd(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dq: Any, dk: Any, dv: Any, *rest: Any) -> Any:
    call = FlashCall(
        lengths=(rest[0], rest[1]),
        longest=(int(rest[3]), int(rest[4])),
        dropout=rest[5],
        is_causal=bool(rest[8]),
        window=_window(rest[9:11]),
        is_deterministic=bool(rest[12]),
    )
    return dq, dk, dv, _TWO.backward((dq, dk, dv), q, k, call)


def _fwd_kvcache(q: Any, k_cache: Any, v_cache: Any, *rest: Any) -> Any:
    return flash_attn_with_kvcache(q, k_cache, v_cache, return_softmax_lse=True)


COMPILED: dict[str, Callable[..., Any]] = {
    "fwd": _fwd,
    "varlen_fwd": _varlen_fwd,
    "bwd": _bwd,
    "varlen_bwd": _varlen_bwd,
    "fwd_kvcache": _fwd_kvcache,
}


def _flash_attn_forward(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, *args: Any, **options: Any
) -> Any:
    """What other packages call in place of the public functions: without autograd."""
    return _results(_TWO.forward(q, k, v, FlashCall(dropout=dropout_p, is_causal=causal, window=_window_of(args, options))))


def _window_of(args: Sequence[Any], options: Mapping[str, Any]) -> tuple[int, int]:
    """They have a pair in older versions, and two numbers in newer ones."""
    if "window_size" in options:
        return _window(options["window_size"])
    if args and isinstance(args[0], (tuple, list)):
        return _window(args[0])
    return _window(args[:2] or (options.get("window_size_left", -1), options.get("window_size_right", -1)))


def _flash_attn_varlen_forward(
    q: Any,
    k: Any,
    v: Any,
    cu_q: Any,
    cu_k: Any,
    longest_q: int,
    longest_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Any = None,
    causal: bool = False,
    *args: Any,
    **options: Any,
) -> Any:
    call = FlashCall(
        lengths=(cu_q, cu_k),
        longest=(int(longest_q), int(longest_k)),
        dropout=dropout_p,
        is_causal=causal,
        window=_window_of(args, options),
    )
    return _results(_TWO.forward(q, k, v, call))


def _flash_attn_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    dropout_p: float = 0.0,
    softmax_scale: Any = None,
    causal: bool = False,
    *args: Any,
    deterministic: bool = False,
    **options: Any,
) -> Any:
    call = FlashCall(dropout=dropout_p, is_causal=causal, window=_window_of(args, options), is_deterministic=deterministic)
    return _TWO.backward((dq, dk, dv), q, k, call)


def _flash_attn_varlen_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    cu_q: Any,
    cu_k: Any,
    longest_q: int,
    longest_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Any = None,
    causal: bool = False,
    *args: Any,
    deterministic: bool = False,
    **options: Any,
) -> Any:
    call = FlashCall(
        lengths=(cu_q, cu_k),
        longest=(int(longest_q), int(longest_k)),
        dropout=dropout_p,
        is_causal=causal,
        window=_window_of(args, options),
        is_deterministic=deterministic,
    )
    return _TWO.backward((dq, dk, dv), q, k, call)


def install(patches: Patches) -> None:
    """For the compiled module, if it was imported before."""

    def replace(module: Any) -> None:
        if not is_stand_in(module):
            for name, function in COMPILED.items():
                patches.replace(module, name, function)

    patches.when_imported("flash_attn_2_cuda", replace)


# -- the packages --------------------------------------------------------------------------------------------------------------


FUNCTIONS_2 = {
    function.__name__: function
    for function in (
        flash_attn_func,
        flash_attn_kvpacked_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
        flash_attn_varlen_kvpacked_func,
        flash_attn_varlen_qkvpacked_func,
        flash_attn_with_kvcache,
    )
}
BELOW_AUTOGRAD = {
    function.__name__: function
    for function in (_flash_attn_forward, _flash_attn_varlen_forward, _flash_attn_backward, _flash_attn_varlen_backward)
}
FUNCTIONS_3 = {
    "flash_attn_func": flash_attn_func_3,
    "flash_attn_varlen_func": flash_attn_varlen_func_3,
    "flash_attn_qkvpacked_func": flash_attn_qkvpacked_func_3,
    "flash_attn_with_kvcache": flash_attn_with_kvcache,
}

MODULES: dict[str, Fill] = {
    "flash_attn_2_cuda": filling(**COMPILED),
    "flash_attn_interface": filling(**FUNCTIONS_3),
}
