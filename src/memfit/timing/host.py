"""The host's own pace: what it spends on issuing an operator, and between operators.

An eager step of small kernels is as fast as Python. All figures are of the machine that the H200 was measured in (an Intel Xeon of
its fourth or fifth generation, a virtual machine, Python 3.12, torch 2.11), from ``host`` in
``benchmarks/truth/operator_times.json`` and, on another day, from ``benchmarks/truth/host_times.json``: one operator in a loop,
again and again. Hosts differ more than GPUs do, and the same one from day to day by up to a half: where a step waits for its host,
its time is good to a fifth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from memfit.timing.chips import MICRO
from memfit.timing.operators.calls import Call
from memfit.timing.operators.costs import Bound, Cost

LAUNCH_SECONDS: Final = 5 * MICRO
"""From the host's call until the kernel begins, where the GPU has nothing else to do."""

GAP_SECONDS: Final = 1.2 * MICRO
"""Between the end of a kernel and the beginning of the next on its stream: a step of 1,500 kernels whose host is far ahead takes
2.1 milliseconds longer than its kernels."""

IN_FORWARD: Final = 1.9
"""So many times as long as in a loop over one operator: a step does something else all the time, Python runs between its operators,
and the processor's caches hold less of what it needs. 37 kinds of operators in turn take 1.88 times what loops over each take, with
autograd, and 2.1 times without (``mixed`` in ``benchmarks/truth/host_times.json``)."""

IN_BACKWARD: Final = 1.4
"""The same of backward, where no Python runs: 1.28 times in turn. The ``small_*`` workloads, whose GPU waits for the host all the
time, leave 1.4 in the median of four runs on three days (``benchmarks/truth/step_times.json``), once forward is paid for."""

_OPERATORS: Final[Mapping[str, float]] = {
    "mm": 12.3,
    "bmm": 15.0,
    "addmm": 14.0,
    "baddbmm": 15.0,
    "_scaled_dot_product_cudnn_attention": 25.0,
    "_scaled_dot_product_cudnn_attention_backward": 40.0,
    "_scaled_dot_product_flash_attention": 22.0,
    "_scaled_dot_product_flash_attention_backward": 35.0,
    "_scaled_dot_product_efficient_attention": 22.0,
    "_scaled_dot_product_efficient_attention_backward": 35.0,
    "sum": 11.9,
    "_to_copy": 8.6,
    "native_dropout": 11.5,
    "constant_pad_nd": 16.0,
    "masked_fill": 13.0,
    "native_layer_norm": 10.9,
    "native_layer_norm_backward": 25.0,
    "native_group_norm": 22.0,
    "native_group_norm_backward": 45.0,
    "native_batch_norm": 22.0,
    "native_batch_norm_backward": 22.0,
    "_cudnn_rnn": 80.0,
    "_cudnn_rnn_backward": 800.0,
    "embedding": 14.0,
    "embedding_dense_backward": 30.0,
    "index_select": 14.0,
    "index_add": 16.0,
    "sort": 28.0,
    "topk": 20.0,
    "histc": 14.0,
    "nonzero": 24.0,
    "index_put": 60.0,
    "index": 12.0,
    "_local_scalar_dense": 9.6,
    "empty": 2.3,
    "empty_like": 2.3,
    "empty_strided": 2.3,
    "new_empty": 2.3,
    "_unsafe_view": 1.4,
    "_fused_adamw_": 60.0,
    "_fused_adam_": 60.0,
    "_fused_sgd_": 60.0,
}
"""Microseconds of a call, without autograd's."""

CONVOLUTION: Final = {"": 15.0, "by channel": 18.0, "bias": 20.0, "half": 35.0}
CONVOLUTION_BACKWARD: Final = {"": 70.0, "by channel": 27.0, "bias": 15.0, "half": 20.0}
"""Microseconds of a convolution; of one that treats each channel by itself, which is torch's own kernel; and more: with a bias,
which is added by an operator of its own; of half types, whose images cuDNN turns around first and again after."""

USUAL: Final = 7.1
"""Microseconds of any other: ``mul`` 7.0, ``silu`` 7.1, ``cat`` 7.8, ``clone`` 7.6, ``softmax`` 6.8."""

RECORDED: Final = 1.5
"""More where autograd notes down how to go back: ``mul`` 8.7 against 7.0, ``view`` 2.15 against 1.31."""

NODE: Final = 8.5
"""For a node of backward: ``backward mul scalar`` 16.9 and ``backward silu`` 17.2 with one kernel, ``backward view`` 8.9 with
none."""

SECOND_OF_NODE: Final = frozenset(("mm", "bmm", "mul", "sum", "t", "transpose", "div"))
"""Nodes issue these in pairs: half of a node is for each."""

LIST_BASE: Final = 16.0
LIST_ITEM: Final = 1.15
"""An operator on lists of tensors, and for each tensor: AdamW takes 260 microseconds for 10 parameters and 3580 for 300, in nine of
them, SGD 98 and 1075 in three; what the optimizer does in Python for each parameter is in it."""

HOST_USUAL: Final = 5.0
HOST_LIST_ITEM: Final = 1.2
"""An operator on tensors of the host (3.7 to 5.9 for 1,024 elements), and each tensor of a list of them, where no Python runs
between them."""

HOST_ITEM: Final = 0.3
"""A number of the host's own: optimizers ask two for each parameter, the number of its steps."""

FUSED_ITEM: Final = 2.5
"""The same of fused optimizers: 93 microseconds for 10 parameters and 1076 for 300, beside one list operator."""

NORM_ITEM: Final = 3.0

DISTRIBUTED_BASE: Final = 26.0
DISTRIBUTED_ITEM: Final = 2.5
DISTRIBUTED_NORM_ITEM: Final = 10.0
"""More where the list is of distributed tensors: AdamW takes 6883 microseconds for 150 of them in place of 1806."""

DISTRIBUTED_OPERATOR: Final = 22 * MICRO
"""More for one operator on distributed tensors: 8 for a transposition, 20 for a view or a product, 20 to 40 to multiply."""

DISTRIBUTED_BACKWARD: Final = 40 * MICRO
"""The same in backward: 15 to 57, by chains of one operator that are gone through forward and backward."""

REDISTRIBUTED: Final = 50 * MICRO
REDISTRIBUTED_BACKWARD: Final = 380 * MICRO
"""More where a distributed tensor is laid out anew, beside the operators and collectives that it takes: 193 microseconds forward,
and 693 with backward and the addition of the gradient."""

LOCAL: Final = 20 * MICRO
LOCAL_BACKWARD: Final = 50 * MICRO
"""From a distributed tensor to this rank's part of it, or back: Python of torch's, forward and backward. 113 microseconds with the
addition of the gradient."""

POLICY_OPERATOR: Final = 16 * MICRO
"""More for each operator that the modes of selective checkpointing see: 57.4 microseconds in place of 41.3."""


@dataclass(frozen=True, kw_only=True)
class HostPace:
    """What the host spends, in seconds."""

    view: float = (1.4 + 0.8) * MICRO * IN_FORWARD
    """Looking at a tensor in another way."""
    node: float = NODE * MICRO * IN_BACKWARD
    """One node of backward that launches nothing."""
    kernel: float = 6 * MICRO
    """Launching a kernel of compiled code."""
    checkpoint: float = 245 * MICRO
    """Around a module that is computed again: 154 microseconds in forward, 277 with backward, less the operators."""
    module: float = 5.8 * MICRO
    """Calling a module of ``torch.nn``."""
    own_module: float = 27 * MICRO
    """Calling any other, whose forward is Python: layers of Llama, BERT and GPT-2 of transformers, so small that only Python is
    left, take 27 to 45 microseconds for each of them beside their operators, on a day when operators took 1.27 times as long."""
    recompute: float = 150 * MICRO
    """Beginning a module that is computed again: Python is called for each tensor that is saved and for each that is used. 72
    modules of a Llama take 22 to 28 milliseconds longer, half of it in their operators (``small_llama_amp_ckpt``)."""

    def operator(self, call: Call, cost: Cost, in_backward: bool, is_distributed: bool = False) -> float:
        """Issuing a call. ``is_distributed``: lists are of distributed tensors."""
        if cost.bound is Bound.HOST:
            return self._on_host(call)
        of_list = self._list_operator(call, is_distributed)
        if of_list is not None:
            return of_list * MICRO
        base = _OPERATORS.get(call.name, USUAL)
        if call.name in ("convolution", "convolution_backward"):
            base = self._convolution(call)
        elif cost.looks_first and cost.num_kernels > 1:
            base *= cost.num_kernels  # it issues one operator after the other
        if in_backward:
            return (base + (NODE / 2 if call.name in SECOND_OF_NODE else NODE)) * MICRO * IN_BACKWARD
        if not call.name.endswith("_") and not call.name.startswith("empty"):
            base += RECORDED
        return base * MICRO * IN_FORWARD

    def _on_host(self, call: Call) -> float:
        first = call.arguments[0] if call.arguments else None
        if call.name == "_local_scalar_dense":
            return HOST_ITEM * MICRO
        if isinstance(first, tuple):
            return (HOST_USUAL + HOST_LIST_ITEM * len(first)) * MICRO
        return min(HOST_USUAL, _OPERATORS.get(call.name, USUAL)) * MICRO * IN_FORWARD

    def _convolution(self, call: Call) -> float:
        is_backward = call.name.endswith("backward")
        parts = CONVOLUTION_BACKWARD if is_backward else CONVOLUTION
        given, weight = call.operand(1 if is_backward else 0), call.operand(2 if is_backward else 1)
        has_bias = call.arguments[3 if is_backward else 2] is not None
        if weight.shape[1] == 1 and len(given.shape) > 1 and given.shape[1] > 1:
            return parts["by channel"]
        return parts[""] + (parts["bias"] if has_bias else 0.0) + (parts["half"] if given.dtype in ("bf16", "f16") else 0.0)

    def _list_operator(self, call: Call, is_distributed: bool) -> float | None:
        first = call.arguments[0] if call.arguments else None
        if not call.name.startswith(("_foreach_", "_fused_")) or not isinstance(first, tuple):
            return None
        count = len(first)
        if call.name.startswith("_fused_"):
            return (
                _OPERATORS.get(call.name, 60.0) + FUSED_ITEM * count + (DISTRIBUTED_BASE + 23.0 * count if is_distributed else 0.0)
            )
        is_norm = call.name == "_foreach_norm"
        own = LIST_BASE + (NORM_ITEM if is_norm else LIST_ITEM) * count
        if is_distributed and call.name != "_foreach_copy_":  # which is how FSDP2 copies, and never on distributed tensors
            own += DISTRIBUTED_BASE + (DISTRIBUTED_NORM_ITEM if is_norm else DISTRIBUTED_ITEM) * count
        return own


PACE: Final = HostPace()
