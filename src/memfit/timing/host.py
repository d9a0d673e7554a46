"""The host's pace: the time to issue an operator, and the time between operators.

An eager step of small kernels is as fast as Python. The figures are in the GPU's rates and were measured on that GPU's machine.
"""

from __future__ import annotations

from typing import Final

from memfit.timing.operators.calls import Bound, Call, Cost
from memfit.timing.rates import MICRO, HostRates

SECOND_OF_NODE: Final = frozenset(("mm", "bmm", "mul", "sum", "t", "transpose", "div"))
"""Backward nodes issue these in pairs, so each costs half a node."""


class HostPace:
    """Host times, in seconds."""

    def __init__(self, rates: HostRates) -> None:
        self._rates = rates
        self.launch = rates.launch * MICRO
        self.gap = rates.gap * MICRO
        self.view = rates.view * MICRO * rates.in_forward
        self.unrecorded_view = rates.view * MICRO * rates.in_inference
        """A view where autograd notes nothing down."""
        self.node = rates.node * MICRO * rates.in_backward
        """A backward node that launches nothing."""
        self.kernel = rates.kernel * MICRO
        self.graph = rates.graph * MICRO
        self.collective = rates.collective * MICRO
        self.checkpoint = rates.checkpoint * MICRO
        self.module = rates.module * MICRO
        self.own_module = rates.own_module * MICRO
        self.policy_operator = rates.policy_operator * MICRO
        self.recompute = rates.recompute * MICRO
        more = rates.distributed
        self.distributed_operator = more.operator * MICRO, more.operator_backward * MICRO
        self.redistributed = more.redistributed * MICRO, more.redistributed_backward * MICRO
        self.local = more.local * MICRO, more.local_backward * MICRO
        """The additional cost of distributed tensors, in forward and in backward."""

    def operator(self, call: Call, cost: Cost, in_backward: bool, is_distributed: bool = False, is_recorded: bool = True) -> float:
        """Seconds to issue a call. ``is_distributed``: its lists hold distributed tensors; ``is_recorded``: autograd may note it
        down."""
        rates = self._rates
        if cost.bound is Bound.HOST:
            return self._on_host(call)
        of_list = self._list_operator(call, is_distributed)
        if of_list is not None:
            return of_list * MICRO
        base = rates.operators.get(call.name, rates.usual)
        if call.name in ("convolution", "convolution_backward"):
            base = self._convolution(call)
        elif cost.looks_first and cost.num_kernels > 1:
            base *= cost.num_kernels  # it issues one operator after the other
        if in_backward:
            return (base + (rates.node / 2 if call.name in SECOND_OF_NODE else rates.node)) * MICRO * rates.in_backward
        if not is_recorded:
            return base * MICRO * rates.in_inference
        if not call.name.endswith("_") and not call.name.startswith("empty"):
            base += rates.recorded
        return base * MICRO * rates.in_forward

    def _on_host(self, call: Call) -> float:
        rates, first = self._rates, call.arguments[0] if call.arguments else None
        if call.name == "_local_scalar_dense":
            return rates.host_item * MICRO
        if isinstance(first, tuple):
            return (rates.host_usual + rates.host_list_item * len(first)) * MICRO
        return min(rates.host_usual, rates.operators.get(call.name, rates.usual)) * MICRO * rates.in_forward

    def _convolution(self, call: Call) -> float:
        is_backward = call.name.endswith("backward")
        own = self._rates.convolution[is_backward]
        given, weight = call.operand(1 if is_backward else 0), call.operand(2 if is_backward else 1)
        has_bias = call.arguments[3 if is_backward else 2] is not None
        if weight.shape[1] == 1 and len(given.shape) > 1 and given.shape[1] > 1:
            return own.by_channel
        return own.usual + (own.bias if has_bias else 0.0) + (own.half if given.dtype in ("bf16", "f16") else 0.0)

    def _list_operator(self, call: Call, is_distributed: bool) -> float | None:
        first = call.arguments[0] if call.arguments else None
        if not call.name.startswith(("_foreach_", "_fused_")) or not isinstance(first, tuple):
            return None
        rates, more, count = self._rates, self._rates.distributed, len(first)
        if call.name.startswith("_fused_"):
            own = rates.operators.get(call.name, rates.fused_base) + rates.fused_item * count
            return own + (more.list_base + more.fused_item * count if is_distributed else 0.0)
        is_norm = call.name == "_foreach_norm"
        own = rates.list_base + (rates.norm_item if is_norm else rates.list_item) * count
        if is_distributed and call.name != "_foreach_copy_":  # which is how FSDP2 copies, and never on distributed tensors
            own += more.list_base + (more.norm_item if is_norm else more.list_item) * count
        return own
