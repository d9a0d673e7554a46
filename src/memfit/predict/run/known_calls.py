"""Calls that repeat: after some that were all alike, the next ones are written down, and not run.

A script's loop is Python code, which cannot be left out, but the calls in it are alike: of the model, of its backward, of the
optimizer's step. So the first ones are watched. A call that is like them in everything that could decide its memory is answered
with new outputs of the same shapes, while the ledger gets every block and scope that the watched calls had, in the same order: the
ledger is the one of the whole run.

::

    loss = model(x)     outputs that hang on one node, which has all that forward would have kept
    loss.backward()     the node writes down what backward did, and makes the gradients
    optimizer.step()    written down; counters go on

What is compared: the arguments' structure, shapes, types and plain values; values that were read; autocast and its kept casts;
which parameters are trained and have gradients; every module's plain attributes and number of hooks; and, of each watched call,
every event in the ledger. A call is always run that works on data of the host, keeps or frees anything but outputs, gradients and
what its graph holds, changes a plain attribute of a module, or takes or gives objects that are neither tensors nor plain values.
What Python code does that leaves no trace in any of these is not seen, so a prediction says how many calls were written down.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn

from memfit.phantom.torch_cuda.autocast import CastCache
from memfit.predict.clock import TimedBuilder
from memfit.predict.run.calls import Backward, WrittenCall
from memfit.predict.run.keys import (
    PLAIN,
    Key,
    gradients_of,
    kept_casts,
    modules_of,
    parameters_of,
    state_of_call,
    state_of_modules,
    state_of_surroundings,
)
from memfit.predict.run.lengths import LengthFamily
from memfit.predict.run.readings import Readings, ValueReading
from memfit.predict.run.stand_ins import HELD, HeldGraph, KeptCast, Made, Maker, WrittenDown, array_of
from memfit.predict.run.windows import LedgerWindow, NotRepeatableError, Place, RunReason, SubjectSpace, Tape, Written
from memfit.record.sources.operators.recorder import Recorder
from memfit.torch_compat.autograd import use_counts
from memfit.torch_compat.dispatch import tree_leaves, tree_map
from memfit.torch_compat.fake_tensors import FakeTensorMode

RUN_ALL: Final = "MEMFIT_RUN_ALL_CALLS"
"""With this variable set to 1, every call is run."""
MOST_FAILURES: Final = 20
"""After this many calls in a row that cannot be replaced, only those whose number is a power of two are watched: weights that are
still zero, for one, change what the first step's calls do."""
MOST_FAMILIES: Final = 64
MOST_KIN: Final = 4
FEWEST_EVENTS: Final = 30
"""A call that does less is run: a loss function, an activation."""


StorageSizes = dict[int, tuple[weakref.ref[torch.UntypedStorage], int]]
"""By block: its storage, and how large it is."""


class WrittenDownWronglyError(BaseException):
    """A call was written down, and then something came that only one that was run can serve. No script catches it by accident."""


@dataclass
class _History:
    """What is known of a module's calls."""

    families: dict[Any, LengthFamily] = field(default_factory=dict)
    kin: dict[Any, list[LengthFamily]] = field(default_factory=dict)
    num_failures: int = 0
    """Since the last call that can be replaced."""
    reasons: Counter[RunReason] = field(default_factory=Counter)
    is_small: bool = False
    num_calls: int = 0

    def family(self, key: Key) -> LengthFamily:
        family = self.families.get(key.family)
        if family is None:
            kin = self.kin.setdefault(key.kin, [])
            family = self.families[key.family] = LengthFamily(kin[-MOST_KIN:])
            kin.append(family)
            if len(self.families) > MOST_FAMILIES:
                del self.families[next(iter(self.families))]
        return family

    def is_hopeless(self) -> bool:
        """Counts a call, and says whether it is left alone."""
        self.num_calls += 1
        return self.num_failures > MOST_FAILURES and self.num_calls & (self.num_calls - 1) != 0

    def fail(self, reason: RunReason) -> None:
        self.num_failures += 1
        self.reasons[reason] += 1

    def learn(self, key: Key, call: WrittenCall) -> None:
        self.family(key).add(key.sizes, call)
        self.num_failures = 0

    @property
    def num_wrong(self) -> int:
        return sum(family.num_wrong for families in self.kin.values() for family in families)


class KnownCalls:
    """Watches and replaces calls of models and their backward passes."""

    def __init__(
        self,
        recorder: Recorder,
        mode: FakeTensorMode,
        casts: CastCache,
        passed: Callable[[Any, Any], None],
        *,
        is_wanted: bool = True,
    ) -> None:
        """``passed`` is called before each call that is replaced."""
        self._recorder, self._casts, self._passed = recorder, casts, passed
        builder = recorder.builder
        self._are_wanted = is_wanted and isinstance(builder, TimedBuilder) and are_wanted()
        if isinstance(builder, TimedBuilder):
            self._tape, self._builder = Tape(builder), builder
        self._maker = Maker(recorder, mode)
        self._histories: weakref.WeakKeyDictionary[nn.Module, _History] = weakref.WeakKeyDictionary()
        self._reasons: list[tuple[str, Counter[RunReason]]] = []
        self._is_inside = False
        self._pending: dict[int, _Pending] = {}
        """Calls that were run and wait for their backward, by their scope."""
        self._running: _Pending | None = None
        self._num_unfinished: int = 0
        self._in_backward = False
        self._anchor: torch.Tensor | None = None
        self._graphs: weakref.WeakSet[_WrittenGraph] = weakref.WeakSet()
        """Of calls that were written down, and whose backward has not come."""
        self.num_replaced = 0

    def reasons(self) -> list[tuple[str, Counter[RunReason]]]:
        """Of each module whose calls were run: its class, and why."""
        return [(name, reasons) for name, reasons in self._reasons if reasons]

    # -- forward -------------------------------------------------------------------------------------------------------------------

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In the place of ``nn.Module.__call__``; calls inside a call are part of it."""
        calls = self

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # torch's profiler takes the module from ``self``
            if calls._is_inside or not calls._may_watch():
                return original(self, *args, **kwargs)
            calls._is_inside = True
            try:
                return calls._answer(original, self, args, kwargs)
            finally:
                calls._is_inside = False

        return call

    def _may_watch(self) -> bool:
        return self._are_wanted and not self._builder.follows_returns and self._recorder.is_at_rest()

    def _answer(self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        history = self._histories.get(module)
        if history is None:
            history = self._histories[module] = _History()
            self._reasons.append((type(module).__name__, history.reasons))
        if history.is_small or history.is_hopeless():
            return original(module, *args, **kwargs)
        modules = modules_of(module)
        parameters = parameters_of(modules)
        key: Key | None = None
        try:
            key = Key.of(state_of_call(modules, args, kwargs), (kept_casts(self._casts), gradients_of(parameters)))
        except NotRepeatableError as error:
            history.fail(error.reason)
        if key is None:  # here, so that an error of the script's own has no other one before it
            return original(module, *args, **kwargs)
        is_waiting = any(graph.module() is module for graph in self._graphs)  # its gradients would have to be added up
        known = None if is_waiting else history.family(key).find(key.sizes, _tensors((args, kwargs)))
        if known is not None:
            return self._write(known, module, parameters, args, kwargs)
        return self._watch(original, history, key, module, parameters, args, kwargs)

    # -- watching ------------------------------------------------------------------------------------------------------------------

    def _watch(
        self,
        original: Callable[..., Any],
        history: _History,
        key: Key,
        module: nn.Module,
        parameters: list[torch.Tensor],
        args: Any,
        kwargs: Any,
    ) -> Any:
        self._recorder.begin_root(module, args, kwargs)
        casts = set(self._casts.entries)
        inputs = _tensors((args, kwargs))
        counts = [use_counts(tensor) for tensor in inputs]
        sizes = self._recorder.sizes()
        start, surroundings = self._tape.place(), state_of_surroundings(modules_of(module))
        with Readings(inputs) as readings:
            result = original(module, *args, **kwargs)
        stretch = self._tape.stretch_since(start)
        end = self._tape.place()
        if end.num_events - start.num_events < FEWEST_EVENTS:
            history.is_small = True
            return result
        try:
            if readings.are_unclear or state_of_surroundings(modules_of(module)) != surroundings:
                raise NotRepeatableError(RunReason.VALUES)
            state = state_of_call(modules_of(module), args, kwargs)
            held = frozenset(i for i, tensor in enumerate(inputs) if use_counts(tensor) != counts[i])
            window = self._tape.window(start, end, stretch)
            call = self._read(window, start, result, casts, held, tuple(readings.found))
            has_graph = any(made.requires_grad for made in call.outputs)
            if state[:-1] != key.state[:-1] or (state[-1] != key.state[-1] and not has_graph):
                raise NotRepeatableError(RunReason.CHANGES)
        except NotRepeatableError as error:
            history.fail(error.reason)
            return result
        if has_graph:
            self._await_backward(
                _Pending(
                    call,
                    history,
                    key,
                    module,
                    parameters,
                    sizes,
                    start,
                    end,
                    [self._recorder.block_of(inputs[place]) for place in sorted(held)],
                ),
                result,
            )
        else:
            self._finish(history, key, call, sizes)
        return result

    def _read(
        self,
        window: LedgerWindow,
        start: Place,
        result: Any,
        casts: set[int],
        held: frozenset[int],
        readings: tuple[ValueReading, ...],
    ) -> WrittenCall:
        numbers: list[int] = []
        first = start.num_blocks

        def describe(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return self._maker.describe(leaf, first, window, numbers)
            if not isinstance(leaf, PLAIN):
                raise NotRepeatableError(RunReason.RESULT)
            return leaf

        skeleton = tree_map(describe, result)
        kept = [(owner, cast) for key, (owner, cast) in self._casts.entries.items() if key not in casts]
        made = tuple(
            (owner, self._maker.describe(cast, first, window, numbers, with_values=False))  # few ask what a cast of weights holds
            for owner, cast in kept
            if isinstance(cast, torch.Tensor)
        )
        return WrittenCall(window, array_of(numbers), skeleton, made, readings, held)

    def _finish(self, history: _History, key: Key, call: WrittenCall, sizes: StorageSizes) -> None:
        """Of a call without a graph: what it left must be its outputs and the kept casts."""
        made = {leaf.block for leaf in (*call.outputs, *(cast for _, cast in call.casts))}
        try:
            if call.forward.survivors() != made or call.held:
                raise NotRepeatableError(RunReason.KEEPS)
            history.learn(key, replace(call, lasting=_lasting(sizes, call.forward)))
        except NotRepeatableError as error:
            history.fail(error.reason)

    # -- backward that is run ------------------------------------------------------------------------------------------------------

    def _await_backward(self, pending: _Pending, result: Any) -> None:
        nodes: dict[Any, list[tuple[int, int]]] = {}
        for place, tensor in enumerate(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)):
            if tensor.requires_grad and tensor.grad_fn is not None:
                nodes.setdefault(tensor.grad_fn, []).append((place, tensor.output_nr))
        for node, outputs in nodes.items():
            node.register_prehook(pending.note_gradients(outputs, self._recorder))
        self._pending[pending.start.num_scopes] = pending
        self._recorder.position.on_root = self._move_to

    def _move_to(self, scope: int) -> None:
        """Backward goes on in the nodes of another call."""
        pending = self._pending.get(scope)
        if pending is None and self._running is None:
            return
        place = self._tape.place()
        if self._running is not None:
            self._running.segments[-1].end(place, self._tape.stretch_since(self._running.segments[-1].start))
        self._running = pending
        if pending is not None:
            pending.segments.append(_Segment(place, self._recorder.position.pass_scope, gradients_of(pending.parameters)))

    def around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In the place of ``torch.autograd.backward``."""

        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._in_backward or not self._pending:
                return original(*args, **kwargs)
            self._in_backward = True
            is_plain = not any((*args[2:], *(value for name, value in kwargs.items() if name not in ("tensors", "grad_tensors"))))
            try:
                original(*args, **kwargs)
            except BaseException:
                is_plain = False
                raise
            finally:
                self._in_backward = False
                self._recorder.catch_up()
                self._after_backward(is_plain)

        return backward

    def _after_backward(self, is_plain: bool) -> None:
        self._running = None
        reached = {scope: pending for scope, pending in self._pending.items() if pending.segments}
        times = Counter(id(parameter) for pending in reached.values() for parameter in pending.parameters)
        for scope, pending in reached.items():
            del self._pending[scope]
            try:
                if not is_plain or any(times[id(parameter)] > 1 for parameter in pending.parameters):
                    raise NotRepeatableError(RunReason.BACKWARD)  # autograd adds up the gradients of several calls
                pending.history.learn(pending.key, self._with_backward(pending))
            except NotRepeatableError as error:
                pending.history.fail(error.reason)
        while len(self._pending) > 64:
            scope, pending = next(iter(self._pending.items()))
            del self._pending[scope]
            pending.history.fail(RunReason.BACKWARD)

    def _with_backward(self, pending: _Pending) -> WrittenCall:
        segment, call = pending.segments[0], pending.call
        if len(pending.segments) != 1 or segment.stop is None:
            raise NotRepeatableError(RunReason.BACKWARD)
        if state_of_modules(modules_of(pending.module)) != pending.key.state[-1]:
            raise NotRepeatableError(RunReason.CHANGES)
        stop, stretch = segment.stop
        first, last = pending.start.num_blocks, pending.end.num_blocks
        given = {block: place for place, block in pending.incoming.items()}
        given |= {block: len(call.outputs) + place for place, block in enumerate(pending.inputs) if block is not None}
        window = self._tape.window(
            segment.start, stop, stretch, outer_scope=segment.outer_scope, earlier=range(first, last), given=given
        )
        freed, left = window.frees(SubjectSpace.EARLIER), call.forward.survivors()
        of_outputs, of_casts = {made.block for made in call.outputs}, {cast.block for _, cast in call.casts}
        before = [block - first for block in self._tape.freed(pending.end, segment.start) if first <= block < last]
        if left - set(freed) - set(before) - of_outputs - of_casts:
            raise NotRepeatableError(RunReason.KEEPS)  # what it keeps is not its graph's
        with_output = _gone_with_outputs([block for block in before if block not in of_casts], call)
        numbers: list[int] = []
        gradients = []
        for place, (had, parameter) in enumerate(zip(segment.gradients, pending.parameters, strict=True)):
            if not had & 1 and parameter.grad is not None:
                gradients.append((place, self._maker.describe(parameter.grad, segment.start.num_blocks, window, numbers)))
        if window.survivors() != {made.block for _, made in gradients}:
            raise NotRepeatableError(RunReason.KEEPS)
        incoming = tuple(place in pending.incoming for place in range(len(call.outputs)))
        backward = Backward(window, array_of(numbers), incoming, segment.gradients, tuple(gradients))
        return replace(call, backward=backward, with_output=with_output, lasting=_lasting(pending.sizes, call.forward, window))

    # -- writing -------------------------------------------------------------------------------------------------------------------

    def _write(self, call: WrittenCall, module: nn.Module, parameters: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        recorder.begin_root(module, args, kwargs)
        self._passed(args, kwargs)
        with recorder.quiet():
            written = self._tape.write(call.forward, call.forward.size)
            made: dict[int, torch.Tensor] = {}

            def make() -> list[torch.Tensor]:
                return self._maker.make(call.outputs, call.numbers, call.forward, written, made)

            graph: _WrittenGraph | None = None
            if call.backward is None:
                tensors = make()
            else:
                graph = _WrittenGraph(self, call, module, written, parameters, _tensors((args, kwargs)))
                tensors = self._with_node(call, graph, make, made)
            for place, block in reversed(call.with_output):  # a list lets go of its last first
                held = self._maker.hold(block, call.outputs[place].device, call.forward, written)
                vars(tensors[place]).setdefault(HELD, []).append(held)
            self._keep_casts(call, written, graph)
        self.num_replaced += 1
        following = iter(tensors)
        return tree_map(lambda leaf: next(following) if isinstance(leaf, Made) else leaf, call.result)

    def _with_node(
        self, call: WrittenCall, graph: _WrittenGraph, make: Callable[[], list[torch.Tensor]], made: dict[int, torch.Tensor]
    ) -> list[torch.Tensor]:
        if self._anchor is None:
            self._anchor = torch.zeros((), device="cpu", requires_grad=True)
        self._graphs.add(graph)

        def make_outputs() -> tuple[torch.Tensor, ...]:
            tensors = make()
            for block, tensor in made.items():
                graph.hold(block, tensor.untyped_storage())
            made.clear()
            return tuple(tensors)

        flags = [leaf.requires_grad for leaf in call.outputs]
        outputs: Any = WrittenDown.apply(  # type: ignore[no-untyped-call, unused-ignore]
            HeldGraph(flags, graph.release, graph.backward), make_outputs, self._anchor
        )
        return list(outputs)

    def _keep_casts(self, call: WrittenCall, written: Written, graph: _WrittenGraph | None) -> None:
        """Autocast keeps casts of weights: few calls ask for one that an earlier call has made."""
        made = _MadeCasts(self, call, written, None if graph is None else weakref.ref(graph))
        for owner, cast in call.casts:
            leaf = owner()
            assert leaf is not None  # the module has it, or its state would be another one
            self._casts.keep(leaf, KeptCast(made, cast, is_in_graph=graph is not None and graph.frees(cast.block)))


class _MadeCasts:
    """The casts that a call, which was written down, left for later calls."""

    def __init__(self, calls: KnownCalls, call: WrittenCall, written: Written, graph: weakref.ref[_WrittenGraph] | None) -> None:
        self._calls, self._call, self._written, self._graph = calls, call, written, graph

    def make(self, cast: Made, *, is_in_graph: bool) -> torch.Tensor | None:
        """The tensor of a cast; ``None`` where it was the graph's and is gone with it."""
        graph = None if self._graph is None else self._graph()
        if is_in_graph and (graph is None or graph.is_done):
            return None
        with self._calls._recorder.quiet():
            (tensor,) = self._calls._maker.make([cast], self._call.numbers, self._call.forward, self._written, {})
        if graph is not None:
            graph.hold(cast.block, tensor.untyped_storage())
        return tensor

    def release(self, cast: Made) -> None:
        """A cast that is not the graph's is let go, and never was made."""
        self._calls._builder.free(self._written.first_block + cast.block)


class _WrittenGraph:
    """The graph of a call that was written down: what it holds, and what its backward does."""

    def __init__(
        self,
        calls: KnownCalls,
        call: WrittenCall,
        module: nn.Module,
        written: Written,
        parameters: list[torch.Tensor],
        inputs: list[torch.Tensor],
    ) -> None:
        assert call.backward is not None
        self._calls, self._call, self._written, self._backward = calls, call, written, call.backward
        self.module = weakref.ref(module)
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        self._inputs: list[torch.UntypedStorage | None] = [inputs[place].untyped_storage() for place in sorted(call.held)]
        self._frees = self._backward.window.frees(SubjectSpace.EARLIER)
        self._storages: dict[int, torch.UntypedStorage] = {}
        self.is_done = False

    def frees(self, block: int) -> bool:
        """Does its backward free this block?"""
        return block in self._frees

    def hold(self, block: int, storage: torch.UntypedStorage) -> None:
        """A tensor stands for a block: where backward frees it, its storage is held until then."""
        if block in self._frees:
            self._storages[block] = storage

    def release(self) -> None:
        """The graph is given up, and backward never ran."""
        self.is_done = True
        for block in self._frees:
            if block not in self._storages:
                self._calls._builder.free(self._written.first_block + block)

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> None:
        calls, backward = self._calls, self._backward
        recorder = calls._recorder
        parameters = [parameter for parameter in (ref() for ref in self._parameters) if parameter is not None]
        incoming = tuple(gradient is not None for gradient in gradients)
        recorder.catch_up()
        if incoming != backward.incoming or gradients_of(parameters) != backward.before:
            raise WrittenDownWronglyError
        with recorder.quiet():
            given = [-1] * (len(gradients) + len(self._inputs))
            pauses = [(self._frees[block], self._dropper(block)) for block in self._storages]
            for place, event in backward.window.frees(SubjectSpace.GIVEN).items():
                if place >= len(gradients):
                    pauses.append((event, self._input_dropper(place - len(gradients))))
                    continue
                gradient = gradients[place]
                block = None if gradient is None else recorder.disown(gradient)
                if block is None:
                    raise WrittenDownWronglyError
                given[place] = block
            written = calls._tape.write(
                backward.window,
                backward.window.size,
                outer_scope=recorder.position.scopes.top,
                first_earlier=self._written.first_block,
                given=given,
                pauses=sorted(pauses, key=lambda item: item[0]),
            )
            described = [made for _, made in backward.gradients]
            made = calls._maker.make(described, backward.numbers, backward.window, written, {})
            for (place, _), gradient in zip(backward.gradients, made, strict=True):
                parameters[place].grad = gradient
        self._inputs.clear()
        self.is_done = True
        calls._graphs.discard(self)

    def _dropper(self, block: int) -> Callable[[], None]:
        def drop() -> None:
            del self._storages[block]

        return drop

    def _input_dropper(self, place: int) -> Callable[[], None]:
        def drop() -> None:
            self._inputs[place] = None

        return drop


@dataclass
class _Segment:
    """A stretch of backward in the nodes of one call."""

    start: Place
    outer_scope: int
    gradients: bytes
    stop: tuple[Place, Any] | None = None

    def end(self, place: Place, stretch: Any) -> None:
        self.stop = (place, stretch)


@dataclass
class _Pending:
    """A call that was run, whose backward is to come."""

    call: WrittenCall
    history: _History
    key: Key
    module: nn.Module
    parameters: list[torch.Tensor]
    sizes: StorageSizes
    """Of all storages, before the call."""
    start: Place
    end: Place
    inputs: list[int | None]
    """The blocks of the arguments that the graph holds."""
    segments: list[_Segment] = field(default_factory=list)
    num_blocks: int | None = None
    """How many blocks there were when backward reached the first of the outputs."""
    incoming: dict[int, int] = field(default_factory=dict)
    """Of outputs for which a gradient came in: its block."""

    def note_gradients(self, outputs: list[tuple[int, int]], recorder: Recorder) -> Callable[[Any], None]:
        """A hook for the node of some outputs."""

        def hook(gradients: Any) -> None:
            if self.num_blocks is None:
                self.num_blocks = recorder.builder.num_blocks
            for place, number in outputs:
                block = None if gradients[number] is None else recorder.block_of(gradients[number])
                if block is not None and block < self.num_blocks and block not in self.incoming.values():
                    self.incoming[place] = block  # others come from inside the call

        return hook


def _gone_with_outputs(freed: Sequence[int], call: WrittenCall) -> tuple[tuple[int, int], ...]:
    """Of blocks that were freed before backward came, in their order: with which output each went. A tensor lets go of its graph
    first."""
    places: dict[int, list[int]] = {}
    for place, made in enumerate(call.outputs):
        places.setdefault(made.block, []).append(place)
    found: list[tuple[int, int]] = []
    waiting: list[int] = []
    for block in freed:
        if block not in places:
            waiting.append(block)
            continue
        if waiting and len(places[block]) > 1:
            raise NotRepeatableError(RunReason.KEEPS)
        found += ((places[block][0], each) for each in waiting)
        waiting.clear()
    if waiting:
        raise NotRepeatableError(RunReason.KEEPS)
    return tuple(found)


def _lasting(sizes: StorageSizes, *windows: LedgerWindow) -> tuple[tuple[weakref.ref[torch.UntypedStorage], int], ...]:
    """The storages that windows resize, which must end as they began."""
    found = []
    for block, size in {block: size for window in windows for block, size in window.lasting().items()}.items():
        storage, before = sizes[block][0](), sizes[block][1]
        if storage is None or before != size:
            raise NotRepeatableError(RunReason.KEEPS)
        found.append((weakref.ref(storage), size))
    return tuple(found)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def are_wanted() -> bool:
    return os.environ.get(RUN_ALL, "") in ("", "0")
