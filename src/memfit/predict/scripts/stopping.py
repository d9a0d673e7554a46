"""How long a script is followed: to its end, if that comes soon enough.

A *training step* is over when every optimizer that trains has stepped since the one before.

::

    critic  critic  critic  critic  critic  generator │ critic ...      a GAN: six steps of optimizers, one training step
    backward  backward  backward  backward  AdamW │ backward ...        gradients are added up: one training step
    forward  forward  forward  forward                                  an evaluation: none
    gradients of inputs, or of gradients (``torch.autograd.grad``)      a look, or a part of the loss: none
    backward  (gradients taken away)  backward │ ...                    an optimizer that is not torch's: somebody took them

Bounds: what the user says (``Bounds``), and ``PATIENCE`` steps of one optimizer while another never steps. When time is up, the
epoch is cut short (``epochs.py``), so that what follows it is seen as well: evaluation, saving, for ``AFTERWARDS_SECONDS`` or a
share of the time there was. A run that ends at a bound says so among its assumptions.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from memfit.errors import ConfigError
from memfit.ledger import Coverage
from memfit.phantom.world import PhantomWorld
from memfit.predict.run.coverage import CoverageCounter, steps_in_all
from memfit.predict.run.known_calls import RUN_ALL, KnownCalls
from memfit.predict.run.known_steps import KnownSteps
from memfit.predict.scripts.epochs import Epochs
from memfit.record import run_hooks
from memfit.record.listener import ModuleListener
from memfit.record.sources.operators.recorder import Recorder
from memfit.torch_compat.attributes import LoaderIterator
from memfit.torch_compat.dispatch import tree_leaves
from memfit.torch_compat.dynamo import is_traced_by
from memfit.torch_compat.fsdp import holds_unsharded_gradients
from memfit.torch_compat.patches import Patches

MAX_SECONDS: Final = 300.0
PATIENCE: Final = 20
LONGEST_AFTER: Final = 2
"""Training steps: then the optimizer's state is there."""
AFTERWARDS_SECONDS: Final = 20.0
AFTERWARDS_SHARE: Final = 0.2
TELL_SECONDS: Final = 2.0


class RunIsOver(BaseException):
    """Ends the script from within; no script catches it by accident."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What the user says about when to stop."""

    steps: int | None = None
    """The exact number of training steps to run. ``None``: until the script ends."""
    max_seconds: float | None = MAX_SECONDS
    """No longer than this, whatever has been seen by then; ``None``: as long as it takes."""
    runs_all: bool = False
    """Is every call run, also those that are known?"""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"cannot predict {self.steps} steps: at least one")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ConfigError(f"cannot stop after {self.max_seconds} seconds: more than none")


def _came_while_ending(error: BaseException | None) -> bool:
    """Was the run over already? Lightning, for one, moves its model to the host on the way out, which may fail."""
    while error is not None and not isinstance(error, RunIsOver):
        error = error.__context__
    return error is not None


class StopWatch(ModuleListener):
    """Follows a run's forward and backward passes and its optimizers, and ends it by raising ``RunIsOver``."""

    def __init__(
        self,
        recorder: Recorder,
        bounds: Bounds,
        world: PhantomWorld,
        progress: Callable[[str], None] = lambda line: None,
        at_step: Callable[[], None] = lambda: None,
        longest: int = 0,
    ) -> None:
        """``at_step`` is called at the end of every training step, while the model is there. ``longest``: the tokens that a batch
        of the training data is padded to; 0 for none."""
        self._recorder, self._bounds, self._tell, self._at_step = recorder, bounds, progress, at_step
        self._known = KnownCalls(recorder, world.mode, world.casts, self._count_replaced, is_wanted=not bounds.runs_all)
        self._known_steps = KnownSteps(recorder, is_wanted=not bounds.runs_all)
        self._patches = Patches("the stop watch")
        self._epochs = Epochs(longest)
        self._longest = longest
        self._coverage = CoverageCounter(recorder.builder)
        self._is_whole = True
        """Did the script come to its own end?"""
        self._steps_in_all = 0
        """What a trainer says; 0 where none does."""
        self._end_of_afterwards: float | None = None
        """When to stop at the latest, once memory has settled."""
        self._optimizers = _Optimizers()
        self._gradients = _Gradients(recorder)
        self._thread = threading.get_ident()
        self._depth = self._backward_depth = 0
        self._is_asked = False
        """For gradients: modes of torch's functions, a compiler's among them, call the same function once more from within."""
        self._num_stepping = 0
        self.num_forwards = self.num_backwards = self.num_steps = 0
        self.notes: list[str] = []
        """What the end of the run leaves open."""
        self._start = self._told = time.monotonic()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The block ends early when the run is over."""
        patches = self._patches.because("which optimizers there are, and when backward runs")
        patches.wrap(torch.optim.Optimizer, "__init__", self._optimizer_made)
        patches.wrap(torch.autograd, "backward", self._backward)
        patches.wrap(torch.autograd, "grad", self._gradients_asked_for)
        run_hooks.attach(self)
        self._coverage.begin(patches)
        patches.because("forward passes without gradients that repeat are not run again")
        patches.wrap(nn.Module, "__call__", self._known.around)
        patches.because("an epoch is cut short when memory has settled")
        patches.wrap(torch.autograd, "backward", self._known.around_backward)
        patches.wrap(LoaderIterator, "__next__", self._epochs.around)
        try:
            try:
                with _ended_by_signals(self._stop):
                    yield
                self._count_last_step()
            except RunIsOver:
                self._is_whole = False
        except Exception as error:
            if _came_while_ending(error):
                self._is_whole = False
                return
            if self._end_of_afterwards is None:
                raise
            self.notes.append(
                f"when memory had settled, the epoch was cut short to see what follows it, and that failed "
                f"({_in_short(error)}): an evaluation after an epoch is not in these figures"
            )
        finally:
            patches.undo()
            run_hooks.detach(self)
            if self._known.num_replaced or self._known_steps.num_replaced:
                self.notes.append(
                    f"{_count(self._known.num_replaced, 'call of a model', 'calls of models')} and "
                    f"{_count(self._known_steps.num_replaced, 'step of an optimizer', 'steps of optimizers')} were like others "
                    f"before: what they do to memory was written down, without running them ({RUN_ALL}=1 runs all)"
                )

    def _stop(self) -> None:
        """The user has had enough, or a scheduler."""
        self.notes.append(
            f"the run was stopped after {_count(self.num_steps, 'training step', 'training steps')}: a longer run may need more"
        )
        raise RunIsOver

    def missing(self) -> str:
        """What was not seen of a training run, empty where a training step was. Asked when the run is over."""
        if not self._epochs.was_lengthened:
            return (
                f"no batch of {self._longest:,} tokens was seen: an early batch of the training data is padded to them where a "
                "data loader of torch gives whole numbers, a row for each sequence"
            )
        is_waiting = not self._optimizers.num_steps and bool(self._optimizers.waiting())  # what came before it was a warm-up
        if not is_waiting and self.num_steps:
            return ""
        if self._is_whole and self.num_forwards and not self.num_backwards and not self._optimizers.were_made:
            return ""  # no training at all: a generation, an evaluation, features of data
        seen = [
            _count(self.num_forwards, "forward pass", "forward passes"),
            _count(self.num_backwards, "backward pass", "backward passes"),
        ]
        return f"no training step was seen: {', '.join(seen)}, and no optimizer's step"

    def _count_last_step(self) -> None:
        """Without an optimizer of torch a step is seen to be over when the next backward begins: the last one has none."""
        if self._optimizers.num_steps or not self.num_backwards or self._optimizers.waiting() or not self._gradients.are_taken():
            return
        self.num_steps += 1
        self._coverage.step()

    # -- what happens --------------------------------------------------------------------------------------------------------------

    def listening(self) -> bool:
        return threading.get_ident() == self._thread

    def fail(self, error: BaseException) -> None:
        raise error  # nothing else would end the run

    def covered(self) -> Coverage:
        """What was seen. Asked when the run is over."""
        return self._coverage.coverage(is_whole=self._is_whole, batches=self._epochs.where_it_was_cut, steps=self._steps_in_all)

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._depth == 0:
            self._look_at_the_clock()
            if not self._backward_depth:
                self._coverage.call(args, kwargs, is_entered=True)
        self._depth += 1

    def exit_module(self, module: nn.Module, args: Any, result: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth == 0 and not self._backward_depth:
            self.num_forwards += 1

    def _count_replaced(self, args: Any, kwargs: Any) -> None:
        self.num_forwards += 1
        self._coverage.call(args, kwargs, is_entered=False)
        self._look_at_the_clock()

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._num_stepping += 1  # with a closure, it runs backward itself

    def exit_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._num_stepping = max(self._num_stepping - 1, 0)
        self._optimizers.step(optimizer)
        if self._optimizers.num_steps == 1:
            self.num_steps = 0
            self._coverage.begin_training()
        if self._num_stepping:
            return  # an optimizer of optimizers: its own step ends with the last of theirs
        waiting = self._optimizers.waiting()
        if waiting and self._optimizers.most_steps >= max(PATIENCE, self._bounds.steps or 0):
            self._give_up_on(waiting)
            waiting = []
        if not waiting:
            self._end_step()
        self._look_at_the_clock()

    def _optimizer_made(self, original: Callable[..., None]) -> Callable[..., None]:
        def make(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._optimizers.add(optimizer)
            self._known_steps.watch(optimizer, self._patches)

        return make

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self.listening() or self._backward_depth:
                return original(*args, **kwargs)
            self._before_backward()
            self._backward_depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._backward_depth -= 1
                self.num_backwards += 1
                if not self._optimizers.num_steps:
                    self._gradients.watch()

        return backward

    def _gradients_asked_for(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Gradients of weights that are handed out are a backward pass too; beside passes of the usual kind they are a part of the
        loss."""

        def grad(*args: Any, **kwargs: Any) -> Any:
            if not self.listening() or self._is_asked:
                return original(*args, **kwargs)
            if (
                not is_traced_by(sys._getframe(1))
                and not self._backward_depth
                and (not self.num_backwards or self._gradients.are_handed_out)
                and self._gradients.train_weights(*args, **kwargs)
            ):
                self._gradients.are_handed_out = True
                self._before_backward()
                self.num_backwards += 1
            self._is_asked = True
            try:
                return original(*args, **kwargs)
            finally:
                self._is_asked = False

        return grad

    def _before_backward(self) -> None:
        self._look_at_the_clock()
        if self._num_stepping or self._optimizers.num_steps or not self.num_backwards or not self._gradients.are_taken():
            return
        waiting = self._optimizers.waiting()
        if not waiting:
            self._end_step()
            self._recorder.models.step_is_due = True  # no optimizer of torch says so: the next forward begins a step
            return
        self._gradients.num_taken += 1
        if self._gradients.num_taken >= PATIENCE:
            self._give_up_on(waiting)
            self._end_step()

    # -- the rule ------------------------------------------------------------------------------------------------------------------

    def _end_step(self) -> None:
        self.num_steps += 1
        self._coverage.step()
        self._optimizers.begin_step()
        self._at_step()
        if self.num_steps >= LONGEST_AFTER:
            self._epochs.lengthen_next()
        if self._bounds.steps is not None and self.num_steps >= self._bounds.steps:
            self._steps_in_all = steps_in_all(sys._getframe())
            raise RunIsOver
        if self._end_of_afterwards is not None and self._epochs.is_over_after_step():
            raise RunIsOver
        self._look_at_the_clock()

    def _give_up_on(self, waiting: Sequence[torch.optim.Optimizer]) -> None:
        self.notes.extend(
            f"an optimizer ({type(optimizer).__name__} of {len(_parameters(optimizer))} parameters) did not step "
            f"while others stepped {PATIENCE} times: what its step would take is not counted"
            for optimizer in waiting
        )
        self._optimizers.give_up(waiting)

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if self._end_of_afterwards is not None:
            if now > self._end_of_afterwards:
                self.notes.append(
                    "what follows an epoch (evaluation, saving) was not followed to its end: it may need more (--max-seconds)"
                )
                raise RunIsOver
        elif self._bounds.max_seconds is not None and now - self._start > self._bounds.max_seconds:
            self.notes.append(
                f"the run was stopped after {self._bounds.max_seconds:g} seconds and "
                f"{_count(self.num_steps, 'training step', 'training steps')}: a longer run may need more (--max-seconds)"
            )
            self._is_whole = False
            self._steps_in_all = steps_in_all(sys._getframe())
            if self._bounds.steps is not None or not self._epochs.cut_short():
                raise RunIsOver
            self._end_of_afterwards = now + max(AFTERWARDS_SECONDS, AFTERWARDS_SHARE * self._bounds.max_seconds)
        if now - self._told > TELL_SECONDS:
            self._report()

    def _report(self) -> None:
        self._told = time.monotonic()
        in_all = steps_in_all(sys._getframe())
        given, batches = self._epochs.progress()
        done = [
            f"{self.num_steps:,} of {in_all:,} training steps"
            if in_all
            else _count(self.num_steps, "training step", "training steps")
        ]
        done += [f"{given:,} of {batches:,} batches of this epoch"] if batches and not in_all else []
        done += [
            _count(self.num_forwards, "forward pass", "forward passes"),
            _count(self.num_backwards, "backward pass", "backward passes"),
        ]
        if not (self.num_steps or self.num_forwards or given):
            done = ["the script is getting ready"]
        spent = self._told - self._start
        share = self.num_steps / in_all if in_all else given / batches if batches else 0
        left = f", about {spent / share - spent:.0f} s left" if 0 < share < 1 else ""
        self._tell(f"{', '.join(done)}, {spent:.0f} s{left}")


@contextmanager
def _ended_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM call ``stop``, once, in this process alone: its children end as usual. A script that has handlers of its
    own keeps them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    here, signals = os.getpid(), (signal.SIGINT, signal.SIGTERM)

    def handle(number: int, frame: object) -> None:
        if os.getpid() != here:
            raise KeyboardInterrupt
        for each in signals:
            signal.signal(each, signal.SIG_IGN)  # until what was seen is told
        stop()

    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)


class _Optimizers:
    """Those that the script has made, and who has stepped in this training step. None is kept alive."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._given_up: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.were_made = False
        self._counts: Counter[int] = Counter()
        self._trained: set[int] = set()
        self.num_steps = 0

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        self._made.add(optimizer)
        self.were_made = True

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.num_steps += 1
        self._counts[id(optimizer)] += 1
        self._trained.update(map(id, _parameters(optimizer)))

    def begin_step(self) -> None:
        self._counts.clear()
        self._trained.clear()

    def give_up(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._given_up.update(optimizers)

    @property
    def most_steps(self) -> int:
        """Of one optimizer in this training step."""
        return max(self._counts.values(), default=0)

    def waiting(self) -> list[torch.optim.Optimizer]:
        """Those with something to train that no other optimizer has trained in this training step."""
        return [
            optimizer
            for optimizer in self._made
            if id(optimizer) not in self._counts
            and optimizer not in self._given_up
            and any(id(parameter) not in self._trained for parameter in _parameters(optimizer))
        ]


class _Gradients:
    """True if the gradients of the last backward pass were cleared, replaced or changed in place."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._watched: tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor], int] | None = None
        self.are_handed_out = False
        """Does the script ask for gradients, in place of having them accumulated?"""
        self._are_hidden = False
        """Are they whole, with FSDP2, which shares them out when the last pass is done?"""
        self.num_taken = 0

    def train_weights(self, outputs: Any, inputs: Any, *args: Any, create_graph: bool = False, **kwargs: Any) -> bool:
        """True if these arguments of ``torch.autograd.grad`` ask for gradients that change weights: of parameters, of tensors that
        stand in for them (``functional_call``), or of a script's own where no module trains. Those of inputs are only looked at,
        and those that are differentiated again are a part of the loss."""
        if create_graph or any(args[2:3]):
            return False
        leaves = [tensor for tensor in tree_leaves(inputs) if isinstance(tensor, torch.Tensor) and tensor.is_leaf]
        shapes = {parameter.shape for parameter in self._parameters() if parameter.requires_grad}
        return any(isinstance(leaf, nn.Parameter) or not shapes or leaf.shape in shapes for leaf in leaves)

    def _parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for module, _ in self._recorder.modules() for parameter in module.parameters(recurse=False))

    def watch(self) -> None:
        """One of them tells for all."""
        found = next((parameter for parameter in self._parameters() if parameter.grad is not None), None)
        gradient = None if found is None else found.grad
        self._are_hidden = found is None and holds_unsharded_gradients(module for module, _ in self._recorder.modules())
        self._watched = (
            None if found is None or gradient is None else (weakref.ref(found), weakref.ref(gradient), gradient._version)
        )

    def are_taken(self) -> bool:
        """Also where nothing is known of them."""
        if self._watched is None:
            return not self._are_hidden
        parameter, gradient = self._watched[0](), self._watched[1]()
        return gradient is None or parameter is None or parameter.grad is not gradient or gradient._version != self._watched[2]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What it trains."""
    return [tensor for group in optimizer.param_groups for tensor in group["params"] if tensor.requires_grad]


def _in_short(error: BaseException) -> str:
    reason = error.__cause__ or error
    return f"{type(reason).__name__}: {reason}".splitlines()[0][:200]


def _count(number: int, one: str, many: str) -> str:
    return f"{number or 'no'} {one if number == 1 else many}"
