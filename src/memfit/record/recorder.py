"""The dispatch mode: sees every operator, writes down new blocks.

This is the path that every operator of a training run pays for. It asks three questions, each answered by a lookup: does a backward
pass run (and whose), does this operator make new tensors at all, and is the storage of an output known?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from memfit.ledger import Category, LedgerBuilder, Phase
from memfit.record.listener import Listener, modes_reach_this_thread
from memfit.record.module_calls import ModuleCalls
from memfit.record.module_names import ModuleNames
from memfit.record.roles import Roles, tensors_in
from memfit.record.run_hooks import patch_loaded
from memfit.record.scopes import BackwardPass, ScopeStack
from memfit.record.storages import PLAIN_TYPES, StorageRef, StorageTable, plain_tensors
from memfit.torch_compat.autograd import (
    LEAF_SEQUENCE_NR,
    call_after_backward,
    called_by_the_engine,
    current_node,
    graph_task_id,
    held_by_the_engine_alone,
)
from memfit.torch_compat.cuda import raw_stream_getter
from memfit.torch_compat.dispatch import TorchDispatchMode
from memfit.torch_compat.fake_tensors import FakeTensor

Plan = Callable[[Any, Any, Any], None]
"""What to do with an operator's outputs: takes the operator, its arguments and its result."""

aten = torch.ops.aten
_DEVICE_QUERY = torch.ops.prim.device.default
"""Asking a fake tensor for its device is an operator, and the most frequent of all."""


class _Deferred(dict[Any, bool]):
    """Whether operators on these types are first left to a tensor subclass, whose inner operators we then see."""

    def __missing__(self, types: Any) -> bool:
        answer = self[types] = not all(issubclass(kind, FakeTensor) or kind in PLAIN_TYPES for kind in types)
        if answer:
            patch_loaded()  # DTensor, for one
        return answer


class _Plans(dict[Any, "Plan | None"]):
    """The plan of each operator, made when it is first seen."""

    def __init__(self, make: Callable[[Any], Plan | None]) -> None:
        self._make = make

    def __missing__(self, func: Any) -> Plan | None:
        plan = self[func] = self._make(func)
        return plan


class Recorder(Listener, TorchDispatchMode):
    """Writes what it sees, and what ``patches.py`` tells it, to a builder."""

    supports_higher_order_operators = True

    def __init__(self, builder: LedgerBuilder) -> None:
        super().__init__()
        self.builder = builder
        self._silenced = 0
        self._table = StorageTable(builder)
        self._refs = self._table.refs
        self._names = ModuleNames(builder)
        self.roles = Roles(builder, self._table, self._names, self._adopt)
        self.scopes = ScopeStack(builder)
        self._deferred = _Deferred()
        self._plans = _Plans(self._plan)
        self._ops: dict[Any, int] = {}
        self._devices: dict[torch.device, tuple[int, Callable[[], int] | None]] = {}
        self._calls = ModuleCalls()
        self._passes: list[BackwardPass] = []
        self._task = -1
        self._pinned = 0
        """How many scopes are open that backward's modules must not close: recomputation, optimizers, FSDP."""
        self._at_leaf = False
        self._optimizers: list[tuple[int, int]] = []
        self._learned_roots: set[int] = set()
        self._step_is_due = True
        self.marks_steps = True
        self.out_of_memory: tuple[int, int, str] | None = None
        """The last error of an operator that ran out: its identity (to hold it is to hold tensors), when, and the operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would otherwise wrap the method below in two more calls an operator."""
        return False

    # -- every operator ------------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and self._deferred[types]:
            return NotImplemented
        if self._silenced or func is _DEVICE_QUERY:
            return func(*args, **kwargs) if kwargs else func(*args)
        task = graph_task_id()
        if task != -1 or self._task != -1:
            try:
                self._follow_backward(task)
            except Exception as error:
                self.fail(error)
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except torch.OutOfMemoryError as error:
            self.out_of_memory = (id(error), self.builder.elapsed_ns(), str(func))
            raise
        plan = self._plans[func]
        if plan is not None:
            try:
                plan(func, args, result)
            except Exception as error:
                self.fail(error)
        return result

    def _follow_backward(self, task: int) -> None:
        """Keeps scopes in step with the autograd engine."""
        if task != self._task:
            self._switch_pass(task)
        if task == -1 or self._pinned:
            return
        node = current_node()
        if node is None:
            return
        sequence_nr = node._sequence_nr()
        self._at_leaf = sequence_nr == LEAF_SEQUENCE_NR
        if not self._at_leaf:  # a leaf's gradient is part of the module whose node made it
            self._passes[-1].move_to(sequence_nr)

    def _switch_pass(self, task: int) -> None:
        while self._passes and self._passes[-1].task != task and (task == -1 or any(p.task == task for p in self._passes)):
            ended = self._passes.pop()
            self.scopes.pop_to(ended.outer_depth)
            self._pinned = ended.outer_pinned
        if task != -1 and (not self._passes or self._passes[-1].task != task):
            self._passes.append(BackwardPass(task, self.scopes, self._calls.latest, self._pinned))
            self._pinned = 0
            call_after_backward(partial(self._end_pass, task))
        self._task = task
        if task == -1:
            self.roles.learn_gradients()

    def _end_pass(self, task: int) -> None:
        """The engine is done with a pass: what dies from here on did not die in backward."""
        if self._task == task and self._passes and not self.failed:
            try:
                self._switch_pass(self._passes[-2].task if len(self._passes) > 1 else -1)
            except Exception as error:
                self.fail(error)

    def _plan(self, func: Any) -> Plan | None:
        """What an operator's outputs need, from its schema."""
        if func is aten.add.Tensor:
            return self._on_add
        if func in (aten.detach.default, aten.clone.default):
            return self._on_detach_or_clone
        schema = getattr(func, "_schema", None)
        if schema is None or func is aten.lift_fresh.default:
            return self._on_new  # a higher-order operator; or torch.tensor(...), whose storage was made out of sight
        if func.namespace == "c10d":
            return self._on_collective
        if schema.name in ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"):
            return self._on_wait
        if any(returned.alias_info is None for returned in schema.returns):
            return self._on_new
        if "resize" in schema.name or schema.name == "aten::set_" or any(argument.is_out for argument in schema.arguments):
            return self._on_resize
        return None

    def _on_new(self, func: Any, args: Any, result: Any) -> None:
        if type(result) in PLAIN_TYPES and result.layout is torch.strided:
            storage = result.untyped_storage()
            if id(storage) not in self._refs:
                self._new_block(result, storage, self._op(func), before=False)
        elif isinstance(result, torch.Tensor):
            for plain in plain_tensors(result):
                self._adopt(plain, before=False, op=self._op(func))
        elif isinstance(result, (tuple, list)):
            for item in result:
                self._on_new(func, args, item)

    def _op(self, func: Any) -> int:
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = self.builder.string(str(func))
        return op

    def _new_block(self, plain: torch.Tensor, storage: torch.UntypedStorage, op: int, *, before: bool) -> StorageRef | None:
        """Writes a block for a storage that is not known; none for the meta device, which has no memory."""
        device = plain.device
        known = self._devices.get(device)
        if known is None:
            if device.type == "meta":
                return None
            known = self._devices[device] = (self.builder.device(str(device)), raw_stream_getter(device))
        number, get_stream = known
        stream = get_stream() if get_stream is not None else 0
        size, scope = int(storage.nbytes()), self.scopes.top
        if before:
            return self._table.add(storage, self.builder.alloc_before(size, number, op, stream), -1, size, stream, get_stream)
        return self._table.add(storage, self.builder.alloc(size, number, op, scope, stream), scope, size, stream, get_stream)

    def _adopt(self, plain: torch.Tensor, before: bool, op: int | None = None) -> StorageRef | None:
        """The reference of a storage that we may be meeting for the first time."""
        storage = plain.untyped_storage()
        ref = self._table.find(storage)
        if ref is None:
            if op is None:
                op = self.builder.string("before the recording" if before else "outside the recording")
            ref = self._new_block(plain, storage, op, before=before)
        return ref

    def _on_add(self, func: Any, args: Any, result: Any) -> None:
        # With a dispatch mode active, autograd sums gradients into a new tensor; without one, into the first if nobody else holds
        # it. The ledger says what the run does without us: the sum takes over the block.
        if (
            self._task != -1
            and not self._pinned
            and isinstance(args[0], torch.Tensor)
            and held_by_the_engine_alone(args[0])
            and called_by_the_engine(frames_above=3)
            and args[0].untyped_storage().nbytes() == result.untyped_storage().nbytes()
            and (ref := self._table.find(args[0].untyped_storage())) is not None
        ):
            self._table.share(result.untyped_storage(), ref)
        else:
            self._on_new(func, args, result)

    def _on_detach_or_clone(self, func: Any, args: Any, result: Any) -> None:
        if func is aten.clone.default:
            self._on_new(func, args, result)
        # Autograd takes a gradient by detaching it, or by cloning it where it cannot be taken.
        if self._task != -1 and self._at_leaf and not self._pinned and called_by_the_engine(frames_above=3):
            self.roles.learn_gradient(result, getattr(current_node(), "variable", None))

    def _on_resize(self, func: Any, args: Any, result: Any) -> None:
        for tensor in tensors_in(result):
            self._table.resized(tensor.untyped_storage())

    def _on_collective(self, func: Any, args: Any, result: Any) -> None:
        # Buffers may be met here for the first time: DDP makes its own in C++, before we look.
        name = func._schema.name
        if "reduce_scatter" in name:
            self._assign_all(args, Category.REDUCE_SCATTER)
        elif "allgather" in name:
            self._assign_all(args[:1], Category.ALL_GATHER)
        elif "allreduce" in name:
            self._assign_all(args[:1], Category.ALL_REDUCE)

    def _assign_all(self, values: Any, role: Category) -> None:
        for tensor in tensors_in(values):
            self.roles.assign(tensor, role, before=True)

    def _on_wait(self, func: Any, args: Any, result: Any) -> None:
        # Waiting, now or later, gives back what it was given; on fake tensors it gives a copy that no real run makes.
        ref = self._table.find(args[0].untyped_storage())
        if ref is not None and id(result.untyped_storage()) not in self._refs:
            self._table.share(result.untyped_storage(), ref)

    # -- what patches.py tells -----------------------------------------------------------------------------------------------

    def listening(self) -> bool:
        return not self.failed and not self._silenced and modes_reach_this_thread()

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        task = graph_task_id()
        if task != -1 or self._task != -1:  # a recomputation belongs to the module whose node asks for it
            self._follow_backward(task)
        if not self._calls and task == -1:
            self._enter_root(module, (args, kwargs))
        number = self._names.number(module)
        if number is None:
            self.roles.learn_model(module)
            number = self._names.number(module)
            assert number is not None
        depth = self.scopes.depth
        scope = self.scopes.push(Phase.FORWARD if task == -1 else Phase.RECOMPUTE, number, _bytes_of((args, kwargs)))
        self._pinned += task != -1
        self._calls.enter(id(module), scope, number, depth)

    def exit_module(self, module: nn.Module, args: Any, result: Any) -> None:
        task = graph_task_id()
        if task != self._task:
            self._follow_backward(task)
        depths = self._calls.exit(id(module))
        if depths:
            self.scopes.pop_to(depths[-1], _bytes_of(result))
            self._pinned = max(0, self._pinned - (len(depths) if task != -1 else 0))
        if not self._calls:
            self.builder.flush_if_due()

    def _enter_root(self, module: nn.Module, arguments: Any) -> None:
        if self._step_is_due and self.marks_steps:
            self.mark_step()
            self.roles.relearn_parameters()
        if id(module) not in self._learned_roots or self._names.number(module) is None:
            patch_loaded()  # FSDP, for one
            self.roles.learn_model(module)
            self._learned_roots.add(id(module))
        self.roles.learn_inputs(arguments)

    def mark_step(self) -> None:
        self._step_is_due = False
        self.builder.step()

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._follow_backward(graph_task_id())
        if self._task == -1:  # a step inside backward sees only gradients that were learned as they came
            self.roles.learn_gradients()
        self._leave_optimizer(optimizer)  # a step that raised never told us that it ended
        self._optimizers.append((id(optimizer), self.scopes.depth))
        self.scopes.push(Phase.OPTIMIZER)
        self._pinned += 1

    def exit_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self.roles.learn_optimizer(optimizer)
        self._leave_optimizer(optimizer)
        self._step_is_due = True
        self.builder.flush_if_due()

    def _leave_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if any(identity == id(optimizer) for identity, _ in self._optimizers):
            while self._optimizers:
                identity, depth = self._optimizers.pop()
                self._pinned = max(0, self._pinned - 1)
                if identity == id(optimizer):
                    self.scopes.pop_to(depth)
                    break

    def enter_fsdp(self, phase: Phase, modules: Any) -> int:
        self._follow_backward(graph_task_id())
        depth = self.scopes.depth
        numbers = [number for module in modules if (number := self._names.number(module)) is not None]
        self.scopes.push(phase, numbers[0] if numbers else -1)
        self._pinned += 1
        return depth

    def exit_fsdp(self, depth: int) -> None:
        self._pinned = max(0, self._pinned - 1)
        self.scopes.pop_to(depth)

    def learn_unsharded(self, tensor: torch.Tensor, module: nn.Module, name: str) -> None:
        number = self._names.number(module)
        prefix = self._names.path(number) if number is not None else ""
        self.roles.learn_parameter(tensor, Category.UNSHARDED_PARAMETER, f"{prefix}.{name}" if prefix else name)

    def learn_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor) -> None:
        self.roles.learn_gradient(gradient, parameter)

    def resized(self, storage: torch.UntypedStorage) -> None:
        self._table.resized(storage)

    def emptied_cache(self) -> None:
        for device, (number, _) in self._devices.items():
            if device.type == "cuda":
                self.builder.empty_cache(number)

    def silence(self, by: int) -> None:
        self._silenced += by

    def modules(self) -> Iterator[tuple[nn.Module, int]]:
        return self._names.living()

    # -- failure and the end -------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        self._silenced += not self.failed  # operators from here on only pass through
        super().fail(error)

    def describe_failure(self, error: BaseException) -> str:
        problem = f"the recorder failed and detached: {type(error).__name__}: {error}"
        self.builder.mark_incomplete(problem)
        return problem

    def catch_up(self) -> None:
        """Closes what is over but has not been noticed, so that a ledger read now is up to date."""
        if not self.failed:
            self._follow_backward(graph_task_id())

    def close_scopes(self) -> None:
        """At the end, and after an exception that went past us."""
        self.scopes.pop_to(0)
        self._calls.clear()
        self._passes.clear()
        self._optimizers.clear()
        self._task, self._pinned = -1, 0


def _bytes_of(value: Any) -> int:
    """The bytes of the distinct storages behind the tensors in ``value``."""
    sizes = {}
    for tensor in tensors_in(value):
        for plain in plain_tensors(tensor):
            storage = plain.untyped_storage()
            sizes[id(storage)] = int(storage.nbytes())
    return sum(sizes.values())
