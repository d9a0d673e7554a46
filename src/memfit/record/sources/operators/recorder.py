"""The dispatch mode: sees every operator, writes down new blocks.

This is the path that every operator of a training run pays for. It asks three questions, each answered by a lookup: does a backward
pass run (and whose), does this operator make new tensors at all, and is the storage of an output known?
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from memfit.engines import Engine
from memfit.ledger import Category, LedgerBuilder, Phase
from memfit.record.listener import ModuleListener, StorageListener
from memfit.record.module_names import ModuleNames
from memfit.record.position import ScopeOwner
from memfit.record.roles import ModelCalls
from memfit.record.run_hooks import patch_loaded
from memfit.record.sources.operators.blocks import BlockWriter
from memfit.record.sources.operators.handlers import OperatorObserver, OutputHandlers
from memfit.record.sources.operators.live_position import LivePosition
from memfit.record.sources.operators.roles import StorageRoles
from memfit.record.tensors import PLAIN_TYPES, plain_tensors, tensors_in
from memfit.torch_compat.autograd import graph_task_id
from memfit.torch_compat.dispatch import TorchDispatchMode, modes_of_this_thread
from memfit.torch_compat.fake_tensors import FakeTensor, device_handlers, device_query


class DeferredTypes(dict[Any, bool]):
    """Whether operators on these types are first left to a tensor subclass, whose inner operators we then see."""

    def __missing__(self, types: Any) -> bool:
        answer = self[types] = not all(issubclass(kind, FakeTensor) or kind in PLAIN_TYPES for kind in types)
        if answer:
            patch_loaded()  # DTensor, for one
        return answer


class Recorder(ModuleListener, StorageListener, TorchDispatchMode):
    """Writes what it sees, and what ``run_hooks.py`` tells it, to a builder."""

    supports_higher_order_operators = True
    looks_into_compiled_graphs = True

    def __init__(self, builder: LedgerBuilder, observers: Sequence[OperatorObserver] = ()) -> None:
        super().__init__()
        self.builder = builder
        self._silenced, self._counting = 0, threading.Lock()
        self._turn: Any = None
        """With several recording threads: the lock that a thread holds during an operator or during our own inspection."""
        self._thread = 0
        self._positions: dict[int, LivePosition] = {}
        """With several recording threads: the position of each. Blocks, roles and names are shared."""
        self._owner = ScopeOwner()
        self.position = LivePosition(builder, self._owner, self._after_backward, self._end_pass)
        self._blocks = BlockWriter(builder, self.position.scopes)
        self._names = ModuleNames(builder)
        self.roles = StorageRoles(builder, self._blocks, self._names)
        self.models = ModelCalls(self._names, self.roles, self.mark_step)
        self._deferred = DeferredTypes()
        self._handlers = OutputHandlers(self.position, self._blocks, self.roles, observers, type(self).__torch_dispatch__.__code__)
        self.makes_nothing = False
        """Whether the step of an optimizer that is under way is known to leave its state as it is."""
        self.num_deferred = 0
        """Number of operators left to tensor subclasses."""
        self.out_of_memory: tuple[int, int, str] | None = None
        """The last error of an operator that ran out: its identity (to hold it is to hold tensors), when, and the operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would otherwise wrap the method below in two more calls for each operator."""
        return False

    # -- every operator ------------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        turn = self._turn
        if turn is not None:
            self._take_turn(turn)
        try:
            if types and self._deferred[types]:
                self.num_deferred += 1
                return NotImplemented
            if self._silenced or func is device_query:  # asking a fake tensor for its device: the most frequent operator of all
                if func is device_query and type(args[0]) is FakeTensor:
                    return device_handlers[device_query](args)  # no other mode need be asked
                return func(*args, **kwargs) if kwargs else func(*args)
            task, position = graph_task_id(), self.position
            if task != -1 or position.task != -1:
                try:
                    position.follow(task)
                except Exception as error:
                    self.fail(error)
            try:
                result = func(*args, **kwargs) if kwargs else func(*args)
            except torch.OutOfMemoryError as error:
                self.out_of_memory = (id(error), self.builder.elapsed_ns(), str(func))
                raise
            try:
                handle = self._handlers[func]
                if handle is not None:
                    handle(func, args, kwargs.get("out") if result is None and kwargs else result)
            except Exception as error:
                self.fail(error)
            return result
        finally:
            if turn is not None:
                turn.release()

    # -- what run_hooks.py tells ---------------------------------------------------------------------------------------------

    def listening(self) -> bool:
        if self._turn is None:
            return not self.failed and not self._silenced and self in modes_of_this_thread()
        with self._turn:  # another thread may be looking for itself
            return not self.failed and not self._silenced and self in modes_of_this_thread()

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.position.catch_up()  # a recomputation belongs to the module whose node asks for it
        if not self.position.calls and graph_task_id() == -1:
            self.models.enter_root(module, (args, kwargs))
        number = self._names.number(module)
        if number is None:
            number = self.models.number_of(module)
        self.position.enter_module(id(module), number, _bytes_of((args, kwargs)))

    def exit_module(self, module: nn.Module, args: Any, result: Any) -> None:
        position, task = self.position, graph_task_id()
        if task != position.task:
            position.follow(task)
        position.exit_module(id(module), _bytes_of(result))
        if not position.calls:
            self.builder.flush_if_due()

    # -- calls of modules that are written down without being run ----------------------------------------------------------------

    def is_at_rest(self) -> bool:
        """True while no thread is inside a module, a backward pass or an optimizer step."""
        if not self.listening():
            return False
        self.catch_up()
        position = self.position
        return not position.calls and not position.scopes.depth and self._owner.stack is None and graph_task_id() == -1

    def begin_root(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Called before a model's forward."""
        with self.quiet():
            self.models.enter_root(module, (args, kwargs))

    def block_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the block behind a tensor, ``None`` if it is unknown."""
        ref = self._blocks.table.find(tensor.untyped_storage())
        return None if ref is None else ref.block

    def sizes(self) -> dict[int, tuple[weakref.ref[torch.UntypedStorage], int]]:
        """Maps each block to its storage and the storage's current size."""
        return {ref.block: (ref, ref.size) for ref in list(self._blocks.table.refs.values())}

    def blocks_of_other_streams(self, tensor: torch.Tensor, stream: int) -> list[int]:
        """The known GPU blocks behind a tensor that were allocated on another stream."""
        refs = [self._blocks.table.find(plain.untyped_storage()) for plain in plain_tensors(tensor)]
        return [ref.block for ref in refs if ref is not None and ref.get_stream is not None and ref.stream != stream]

    def adopt_block(
        self,
        tensor: torch.Tensor,
        device: torch.device,
        block: int,
        scope: int,
        size: int,
        stream: int = 0,
        roles: Sequence[Category] = (),
    ) -> None:
        """Maps the tensor's storage to a block that is already in the ledger, and gives that block these roles."""
        self._blocks.stand_for(tensor.untyped_storage(), device, block, scope, size, stream)
        for role in roles:
            self.roles.is_known(block, role)

    def disown(self, tensor: torch.Tensor) -> int | None:
        """Forgets a tensor whose block is freed elsewhere. Returns the block, ``None`` if it is unknown or shared with other
        tensors."""
        return self._blocks.table.disown(tensor.untyped_storage())

    def mark_step(self, number: int | None = None) -> None:
        """Starts a training step: the one with this number, by default the next."""
        self.models.step_is_due = False
        self.builder.step(number)

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self.position.follow(graph_task_id())
        if self.position.task == -1:  # a step inside backward sees only gradients that were learned as they came
            self.roles.learn_gradients()
        self.position.enter_optimizer(id(optimizer))

    def exit_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.makes_nothing:
            self.roles.learn_optimizer(optimizer)
        self.makes_nothing = False
        self.position.exit_optimizer(id(optimizer))
        self.models.step_is_due = True
        self.builder.flush_if_due()

    def enter_task(self, engine: Engine | None, phase: Phase, modules: Any) -> int:
        self.position.follow(graph_task_id())
        return self.position.enter_pinned(phase, self.models.first_number(modules))

    def exit_task(self, depth: int) -> None:
        self.position.exit_pinned(depth)

    def learn_tensor(self, tensor: torch.Tensor, category: Category, module: nn.Module, name: str) -> None:
        self.roles.learn_tensor(tensor, category, module, name)

    def learn_cached(self, tensor: torch.Tensor) -> None:
        self.roles.say(tensor, Category.KEY_VALUE_CACHE)

    def learn_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor) -> None:
        self.roles.learn_gradient(gradient, parameter)

    def resized(self, storage: torch.UntypedStorage) -> None:
        self._blocks.table.resized(storage)

    def emptied_cache(self) -> None:
        self._blocks.empty_caches()

    def silence(self, by: int) -> None:
        """Blocks other threads while we inspect tensors: their operators would not be recorded."""
        if by > 0 and self._turn is not None:
            self._take_turn(self._turn)
        with self._counting:  # another thread may give up or fail at the same time
            self._silenced += by
        if by < 0 and self._turn is not None:
            self._turn.release()

    def _silence_for_good(self) -> None:
        """From here on, operators of all threads only pass through. Does not wait for the lock."""
        with self._counting:
            self._silenced += 1

    @property
    def running_scope(self) -> int:
        """The number of the innermost open scope, -1 if none is open."""
        return self.position.scopes.top

    def module_inside(self, path: str) -> int:
        """The number of the module at a path relative to the running one, -1 if there is none."""
        running = self.position.module
        outer = self._names.path(running) if running >= 0 else ""
        return self._names.number_for_path(f"{outer}.{path}" if outer and path else outer or path)

    def modules(self) -> Iterator[tuple[nn.Module, int]]:
        """The recorded modules that still exist, each with its number in the ledger."""
        return self._names.living()

    # -- backward's end, failure and the end -----------------------------------------------------------------------------------

    def _after_backward(self) -> None:
        self.roles.learn_gradients()

    def _end_pass(self, task: int) -> None:
        """Called by the autograd engine, under our own dispatch mode."""
        if not self.failed:
            try:
                with self.quiet():
                    self.position.end_pass(task)
            except Exception as error:
                self.fail(error)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keeps our own inspection of tensors out of the recording."""
        self.silence(+1)
        try:
            yield
        finally:
            self.silence(-1)

    def catch_up(self) -> None:
        """Closes scopes that have ended unnoticed, so that a ledger read now is up to date."""
        if not self.failed:
            try:
                with self.quiet():
                    self.position.follow(graph_task_id())
            except Exception as error:
                self.fail(error)

    def end(self) -> None:
        """Closes all open scopes."""
        with self._turn or nullcontext():
            try:
                for position in self._positions.values() or (self.position,):
                    position.close()
            except Exception as error:
                self.fail(error)
            if self._turn is not None:
                self._silence_for_good()  # threads that go on are no part of the recording

    def let_compile(self) -> None:
        """Lets torch compile while this recorder is active. Records what compiled code does, not the compilation."""
        self.ignore_compile_internals = lambda: True  # type: ignore[method-assign]

    def share(self, turn: Any) -> None:
        """Prepares for operators of several threads, each of which takes the lock ``turn``. This thread keeps its position."""
        self._thread = threading.get_ident()
        self._positions = {self._thread: self.position}
        self._turn = turn

    def _take_turn(self, turn: Any) -> None:
        """Acquires the lock and switches to this thread's position."""
        turn.acquire()
        thread = threading.get_ident()
        if thread == self._thread:
            return
        position = self._positions.get(thread)
        if position is None:
            position = self._positions[thread] = LivePosition(self.builder, self._owner, self._after_backward, self._end_pass)
        self._thread, self.position = thread, position
        self._handlers.move_to(position)

    def give_up(self) -> None:
        """Stops recording silently: the recording belongs to another process."""
        if not self.failed:
            self._silence_for_good()
        self.failed = True

    def fail(self, error: BaseException) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            try:
                raise error  # a phantom GPU's memory has run out: that is the run's to know
            finally:
                del error  # this frame is in its traceback: together they would keep the run's tensors alive
        if not self.failed:
            self._silence_for_good()
        super().fail(error)

    def describe_failure(self, error: BaseException) -> str:
        problem = f"the recorder failed and detached: {type(error).__name__}: {error}"
        self.builder.mark_incomplete(problem)
        return problem


def _bytes_of(value: Any) -> int:
    """The bytes of the distinct storages behind the tensors in ``value``."""
    sizes = {}
    for tensor in tensors_in(value):
        for plain in plain_tensors(tensor):
            storage = plain.untyped_storage()
            sizes[id(storage)] = int(storage.nbytes())
    return sum(sizes.values())
