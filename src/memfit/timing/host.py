"""The host's own pace: what it spends on issuing an operator, and between operators.

An eager step of small kernels is as fast as Python. All figures are of the machine that the H200 was measured in (an Intel Xeon of
its fourth or fifth generation, a virtual machine, Python 3.12, torch 2.11), from ``host`` in
``benchmarks/truth/operator_times.json``. Hosts differ more than GPUs do: where a step waits for its host, its time is good to a
fifth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from memfit.timing.operators.calls import Call
from memfit.timing.operators.costs import Bound, Cost

MICRO: Final = 1e-6

LAUNCH_SECONDS: Final = 5 * MICRO
"""From the host's call until the kernel begins, where the GPU has nothing else to do."""

GAP_SECONDS: Final = 1.2 * MICRO
"""Between the end of a kernel and the beginning of the next on its stream: a step of 1,500 kernels whose host is far ahead takes
2.1 milliseconds longer than its kernels."""

IN_CONTEXT: Final = 1.3
"""So many times as long as in a loop over one operator: a step does something else all the time, and the processor's caches hold
less of what it needs. The ``small_*`` workloads, whose GPU waits for the host all the time, gave 1.23 in one run on the H200's
machine and 1.5 in another (medians; ``benchmarks/truth/step_times.json``); 1.3 was chosen between them with the zoo in view."""

_OPERATORS: Final[Mapping[str, float]] = {
    "mm": 12.3,
    "bmm": 15.0,
    "addmm": 14.0,
    "baddbmm": 15.0,
    "convolution": 28.0,
    "convolution_backward": 45.0,
    "_scaled_dot_product_cudnn_attention": 25.0,
    "_scaled_dot_product_cudnn_attention_backward": 40.0,
    "_scaled_dot_product_flash_attention": 22.0,
    "_scaled_dot_product_flash_attention_backward": 35.0,
    "_scaled_dot_product_efficient_attention": 22.0,
    "_scaled_dot_product_efficient_attention_backward": 35.0,
    "sum": 11.9,
    "mean": 11.9,
    "native_layer_norm": 10.9,
    "native_layer_norm_backward": 25.0,
    "native_batch_norm": 18.0,
    "native_batch_norm_backward": 22.0,
    "embedding_dense_backward": 30.0,
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

USUAL: Final = 7.1
"""Microseconds of any other: ``mul`` 7.0, ``silu`` 7.1, ``cat`` 7.8, ``clone`` 7.6, ``softmax`` 6.8."""

RECORDED: Final = 1.5
"""More where autograd notes down how to go back: ``mul`` 8.7 against 7.0, ``view`` 2.15 against 1.31."""

NODE: Final = 8.5
"""For a node of backward: ``backward mul scalar`` 16.9 and ``backward silu`` 17.2 with one kernel, ``backward view`` 8.9 with
none."""

SECOND_OF_NODE: Final = frozenset(("mm", "bmm", "mul", "sum", "t", "transpose", "div"))
"""Nodes issue these in pairs: half of a node is for each."""

LIST_BASE: Final = 11.0
LIST_ITEM: Final = 0.95
"""An operator on lists of tensors, and for each tensor: AdamW takes 260 microseconds for 10 parameters and 3580 for 300, in 13 of
them; what the optimizer does in Python for each parameter is in it."""

FUSED_ITEM: Final = 2.5
"""The same of fused optimizers: 93 microseconds for 10 parameters and 1076 for 300, beside one list operator."""

NORM_ITEM: Final = 3.0

DISTRIBUTED_BASE: Final = 26.0
DISTRIBUTED_ITEM: Final = 2.5
DISTRIBUTED_NORM_ITEM: Final = 10.0
"""More where the list is of distributed tensors: AdamW takes 6883 microseconds for 150 of them in place of 1806."""

DISTRIBUTED_OPERATOR: Final = 30 * MICRO
"""More for one operator on distributed tensors: 36.8 microseconds in place of 7."""


@dataclass(frozen=True, kw_only=True)
class HostPace:
    """What the host spends, in seconds."""

    view: float = (1.4 + 0.8) * MICRO * IN_CONTEXT
    """Looking at a tensor in another way."""
    node: float = NODE * MICRO * IN_CONTEXT
    """One node of backward that launches nothing."""
    kernel: float = 6 * MICRO
    """Launching a kernel of compiled code."""
    checkpoint: float = 245 * MICRO
    """Around a module that is computed again: 154 microseconds in forward, 277 with backward, less the operators."""
    scopes: Mapping[str, float] = field(
        default_factory=lambda: {
            "FORWARD": 5.8 * MICRO * IN_CONTEXT,
            "RECOMPUTE": 150 * MICRO,
            "FSDP_PRE_FORWARD": 620 * MICRO,
            "FSDP_POST_FORWARD": 620 * MICRO,
            "FSDP_PRE_BACKWARD": 620 * MICRO,
            "FSDP_POST_BACKWARD": 620 * MICRO,
        }
    )
    """Beginning a module's call, or one of FSDP's tasks: 12 sharded layers take 35 milliseconds longer than 12 others. Where a
    module is computed again, Python is called for each tensor that is saved and for each that is used: 72 modules of a Llama take
    22 to 28 milliseconds longer, half of it in their operators (``small_llama_amp_ckpt``)."""

    def operator(self, call: Call, cost: Cost, in_backward: bool, is_distributed: bool = False) -> float:
        """Issuing a call. ``is_distributed``: lists are of distributed tensors."""
        base = self._list_operator(call, is_distributed)
        if base is None:
            base = _OPERATORS.get(call.name, USUAL)
        if cost.bound is Bound.HOST:
            base = min(base, 5.0)
        if in_backward:
            base += NODE / 2 if call.name in SECOND_OF_NODE else NODE
        elif not call.name.endswith("_") and not call.name.startswith(("_foreach", "_fused", "empty")):
            base += RECORDED
        return base * MICRO * (IN_CONTEXT if not call.name.startswith(("_foreach_", "_fused_")) else 1.0)

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
        if is_distributed and call.name != "_foreach_copy_":  # which is how FSDP copies, and never on distributed tensors
            own += DISTRIBUTED_BASE + (DISTRIBUTED_NORM_ITEM if is_norm else DISTRIBUTED_ITEM) * count
        return own


PACE: Final = HostPace()
