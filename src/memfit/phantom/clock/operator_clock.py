"""The clock of a phantom GPU: every operator advances the host and its stream.

::

    operator, shapes, strides, types ──> Cost     priced once for each different call, then cached
    Cost ──> Timeline                             the host issues it, its stream runs it, some make the host wait
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import is_grad_enabled

from memfit.hardware import Gpu
from memfit.phantom.clock.communication import Communication
from memfit.phantom.clock.describe import describe
from memfit.phantom.device.streams import current_stream_number
from memfit.phantom.target import Target
from memfit.timing.basis import rates_of
from memfit.timing.host import HostPace
from memfit.timing.links import Interconnect, parse_interconnect, usual_interconnect
from memfit.timing.operators.calls import Bound, Call, Cost
from memfit.timing.operators.prices import MAY_LOOK, UNPRICED, KernelSettings, price
from memfit.timing.rates import Rates
from memfit.timing.timeline import Timeline
from memfit.torch_compat.autograd import graph_task_id
from memfit.torch_compat.fake_tensors import FakeTensor

Tick = Callable[[Any, Any, Any, int], None]
"""Takes an operator, its arguments, its result and the scope that it ran in."""

_WAITING: Final = frozenset(
    ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2", "unique_consecutive")
)
"""Operators whose result the host needs, and waits for."""

_MAY_LOOK: Final = frozenset(f"aten::{name}" for name in MAY_LOOK)

_TURNING: Final = frozenset(("aten::t", "aten::transpose"))
"""Views that a backward node makes besides its matrix products."""

MOST_NAMES: Final = 8
"""Most operators named in one assumption."""

_COLLECTIVES: Final = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class FollowedRun(Protocol):
    """The recorder of the run, as the clock sees it."""

    @property
    def num_deferred(self) -> int:
        """Number of operators on tensors that consist of others, such as distributed tensors."""

    @property
    def running_scope(self) -> int:
        """The innermost open scope, -1 if there is none."""


class _NoRun:
    num_deferred, running_scope = 0, -1


class OperatorClock:
    """Prices operators and advances a timeline by them."""

    def __init__(self, chip: Gpu, rates: Rates, links: Interconnect) -> None:
        self.chip, self.rates, self.links = chip, rates, links
        self.pace = HostPace(rates.host)
        self.timeline = Timeline(self.pace.launch, self.pace.gap, links.slowdown_beside)
        self.costs: list[Cost] = []
        self.communication = Communication(self.timeline, links, self._number, self.pace.collective)
        self._numbers: dict[Cost, int] = {}
        self._run: FollowedRun = _NoRun()
        self.num_recomputing = 0
        """Depth of nested recomputation; operators inside count as forward although backward runs."""
        self._assumed: dict[str, None] = {}
        self._unpriced: dict[str, None] = {}

    @classmethod
    def of(cls, target: Target, interconnect: str = "") -> OperatorClock:
        """The clock of a target's GPU; ``interconnect`` as ``8xH100-NVLink+400G``, empty for what such GPUs usually have."""
        links = parse_interconnect(interconnect) if interconnect else usual_interconnect(target.gpu)
        return cls(target.gpu, rates_of(target.gpu), links)

    def follow(self, run: FollowedRun) -> None:
        """Uses ``run`` from now on to find the current scope and the number of operators on distributed tensors."""
        self._run = run

    @property
    def num_distributed(self) -> int:
        """Number of operators on distributed tensors so far."""
        return self._run.num_deferred

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions behind the prices."""
        return (*self._assumed, *self._guesses())

    def _guesses(self) -> Iterator[str]:
        """One sentence about all operators without a price rule: which, how often they ran in the last step, and their share of its
        time on the GPU."""
        if not self._unpriced:
            return
        spans, steps = self.timeline.spans(), self.timeline.steps
        first = max(0, steps[-1].span - self.timeline.num_dropped) if steps else 0
        seconds = spans.seconds[first:]
        guessed = np.isin(spans.cost[first:], [number for number, cost in enumerate(self.costs) if cost.assumption == UNPRICED])
        share = seconds[guessed].sum() / max(seconds.sum(), 1e-12)
        names = sorted(self._unpriced)
        told = ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} others" if len(names) > MOST_NAMES else "")
        yield (
            f"no rule prices {told}: each call is timed as one pass over its tensors, which may be far too little "
            f"({guessed.sum()} calls in the last step, {share:.1%} of its time on the GPU as it is counted)"
        )

    def give_up_on(self, func: Any, error: Exception) -> None:
        """Notes that a call could not be priced: its time is missing, but not its memory."""
        self._assumed[f"the time of {func} is not counted: it could not be priced ({type(error).__name__}: {error})"] = None

    def tick_of(self, func: Any) -> Tick | None:
        """The function that advances the clock for an operator; ``None`` if it takes no time. Called once per operator."""
        schema = getattr(func, "_schema", None)
        if schema is None:
            return None
        if func.namespace in _COLLECTIVES:
            return self.communication.tick_of(func)
        if func.namespace in ("prim", "profiler"):
            return None
        if _is_view(schema):
            return self._view_tick(schema)
        return self._looking_tick() if schema.name in _MAY_LOOK else self._pricing_tick()

    def launch(self, cost: Cost, host_seconds: float) -> None:
        """Advances the clock by a kernel that is not an operator, such as one of compiled code."""
        self.timeline.spend(host_seconds)
        self.timeline.run(current_stream_number(), cost.seconds, self._number(cost), self._run.running_scope)

    def launch_as(self, func: Any, args: Any, result: Any) -> None:
        """Advances the clock by a kernel of another library that does what an operator of torch does."""
        host_seconds, seconds, number, _ = self._price(func, args, result, graph_task_id() != -1 and not self.num_recomputing)
        self.timeline.spend(host_seconds)
        self.timeline.run(current_stream_number(), seconds, number, self._run.running_scope)

    def wait_for_ranks(self, seconds: float) -> None:
        """The current stream waits for other ranks, which counts as exposed communication."""
        self.communication.wait_for_ranks(seconds, self._run.running_scope)

    def _view_tick(self, schema: Any) -> Tick:
        """The tick of an operator that only makes views, as half of all operators do."""
        timeline, view, unrecorded = self.timeline, self.pace.view, self.pace.unrecorded_view
        in_backward = view if schema.name in _TURNING else self.pace.node

        def tick(func: Any, args: Any, result: Any, scope: int) -> None:
            if graph_task_id() == -1 or self.num_recomputing:
                timeline.host += view if is_grad_enabled() else unrecorded
            else:
                timeline.host += in_backward

        return tick

    def _pricing_tick(self) -> Tick:
        """The tick of an operator, which runs after each of its calls and must be short."""
        timeline, run = self.timeline, self.timeline.run
        known_forward: dict[Any, tuple[float, float, int, bool]] = {}
        known_unrecorded: dict[Any, tuple[float, float, int, bool]] = {}
        known_backward: dict[Any, tuple[float, float, int, bool]] = {}

        def tick(func: Any, args: Any, result: Any, scope: int) -> None:
            parts: list[Any] = []
            for value in args:
                if type(value) is FakeTensor:
                    parts += (value.shape, value.stride(), value.dtype, value.fake_device)
                else:
                    _add(value, parts)
            key = tuple(parts)
            in_backward = graph_task_id() != -1 and not self.num_recomputing
            prices = known_backward if in_backward else known_forward if is_grad_enabled() else known_unrecorded
            known = prices.get(key)
            if known is None:
                known = prices[key] = self._price(func, args, result, in_backward)
            host_seconds, seconds, number, waits = known
            timeline.host += host_seconds
            if seconds:
                stream = current_stream_number()
                run(stream, seconds, number, scope)
                if waits:
                    timeline.wait_on_host(timeline.arrival(stream))

        return tick

    def _looking_tick(self) -> Tick:
        """The tick of the few operators whose host code may read values from the GPU before it launches kernels."""
        timeline = self.timeline
        prices: dict[Any, tuple[float, float, int, bool]] = {}

        def tick(func: Any, args: Any, result: Any, scope: int) -> None:
            in_backward, stream = graph_task_id() != -1 and not self.num_recomputing, current_stream_number()
            parts: list[Any] = [in_backward, is_grad_enabled()]
            _add(args, parts)
            key = tuple(parts)
            known = prices.get(key)
            if known is None:
                known = prices[key] = self._price(func, args, result, in_backward)
            host_seconds, seconds, number, waits = known
            if waits:
                timeline.wait_on_host(timeline.arrival(stream))
            timeline.spend(host_seconds)
            if seconds:
                timeline.run(stream, seconds, number, scope)

        return tick

    def _price(self, func: Any, args: Any, result: Any, in_backward: bool) -> tuple[float, float, int, bool]:
        call = describe(func, args, result)
        settings = KernelSettings(
            allow_tf32=bool(torch.backends.cuda.matmul.allow_tf32), convolution_tf32=bool(torch.backends.cudnn.allow_tf32)
        )
        cost = price(call, self.chip, settings, self.rates)
        if cost.assumption == UNPRICED:
            self._unpriced[call.name] = None
        elif cost.assumption:
            self._assumed[cost.assumption] = None
        host_seconds = self.pace.operator(call, cost, in_backward, self.num_distributed > 0, is_grad_enabled())
        if cost.bound is Bound.HOST:
            return host_seconds + cost.seconds, 0.0, 0, False
        return host_seconds, cost.seconds, self._number(cost), cost.looks_first or _waits(func, call)

    def _number(self, cost: Cost) -> int:
        number = self._numbers.get(cost)
        if number is None:
            number = self._numbers[cost] = len(self.costs)
            self.costs.append(cost)
        return number


def _is_view(schema: Any) -> bool:
    """True for operators that only make views."""
    returns = schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def _waits(func: Any, call: Call) -> bool:
    """True if the host waits for the call, as for a copy from the host or to it that is not told to be ``non_blocking``.

    ``_to_copy`` is not seen to be told: a copy to the host that was is in pinned memory, and one from pinned memory is taken to be.
    """
    if call.name in _WAITING:
        return True
    if call.name not in ("_to_copy", "copy_"):
        return False
    given, made = call.inputs[-1:], call.outputs
    if {bool(tensor.device_kind) for tensor in (*given, *made)} != {False, True}:
        return False
    if call.name == "copy_":
        return True not in call.arguments[2:3]
    return not any(tensor.device_kind == "p" for tensor in (*given, *made))


def _add(value: Any, parts: list[Any]) -> None:
    kind = type(value)
    if kind is FakeTensor:
        parts += (value.shape, value.stride(), value.dtype, value.fake_device)
    elif isinstance(value, torch.Tensor):
        parts += (value.shape, value.dtype)
    elif kind is list or kind is tuple:
        parts.append(len(value))
        for item in value:
            _add(item, parts)
    elif kind in (int, float, bool, str, type(None)):
        parts.append(value)
