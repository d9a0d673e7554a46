"""``ModTracker``, with PyTorch's methods: which modules run, forward or backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from memfit.ledger import LedgerBuilder
from memfit.record import run_hooks
from memfit.record.listener import ModuleListener
from memfit.record.module_calls import Chain, ModuleCalls
from memfit.record.module_names import ModuleNames
from memfit.record.tensors import tensors_in
from memfit.torch_compat.autograd import LEAF_SEQUENCE_NR, current_node, graph_task_id, queue_callback
from memfit.torch_compat.dynamo import is_in_compiled_module

GLOBAL = "Global"


class ModTracker:
    """Knows, at any moment inside its context, the modules whose forward or backward is running.

    ::

        with ModTracker() as tracker:
            loss = model(batch)     # anywhere inside: tracker.parents == {"Global", "Model", "Model.layers", ...}
            loss.backward()         # the same, from autograd's own record of which module made each node

    Compiled modules are passed over, as in PyTorch: what they call cannot be seen.
    """

    def __init__(self) -> None:
        self._calls = _Calls()

    @property
    def is_bw(self) -> bool:
        """Does a backward pass run in this thread?"""
        return graph_task_id() != -1

    @property
    def parents(self) -> set[str]:
        """The names of the modules that run now, and ``"Global"``. What a caller adds or takes away stays so for a while."""
        return self._calls.parents()

    @parents.setter
    def parents(self, names: set[str]) -> None:
        self._calls.replace_parents(names)

    @property
    def _computes_shapes(self) -> bool:
        """Do operators run that no device ever sees? Distributed tensors find out shapes so."""
        return self._calls.num_silenced > 0

    def get_known_fqn(self, mod: nn.Module) -> str | None:
        """A module's name with its root's class in front, ``None`` if it was never seen."""
        return self._calls.name_of(mod)

    def register_user_hooks(
        self,
        pre_fw_hook: Callable[..., Any] | None = None,
        post_fw_hook: Callable[..., Any] | None = None,
        pre_bw_hook: Callable[..., Any] | None = None,
        post_bw_hook: Callable[..., Any] | None = None,
    ) -> None:
        """Functions to call around forward (module, inputs[, outputs]) and backward (module, gradients).

        These four from now on, and no others: a hook of an earlier call that is not given again is gone, as in PyTorch.
        """
        given = {"pre_fw": pre_fw_hook, "post_fw": post_fw_hook, "pre_bw": pre_bw_hook, "post_bw": post_bw_hook}
        for name, hook in given.items():
            if hook is not None and self._calls.hooks.get(name) is not None:
                raise AssertionError(f"Only one {name}_hook can be registered at a time: call clear_user_hooks first")
        self._calls.hooks = given

    def clear_user_hooks(self) -> None:
        self._calls.hooks = {}

    def __enter__(self) -> Self:
        self._calls.begin()
        return self

    def __exit__(self, *error: Any) -> None:
        self._calls.end()


class _Calls(ModuleListener):
    """What a tracker is told of module calls, and what it makes of it."""

    def __init__(self) -> None:
        self.hooks: dict[str, Callable[..., Any] | None] = {}
        self._names = ModuleNames(LedgerBuilder())
        self._calls = ModuleCalls()
        self._num_calls = 0
        self._passed_over: list[int] = []
        self.num_silenced = 0
        self._backward_chain: Chain = ()
        self._backward_table = self._calls.latest
        self._pass = -1
        self._in_hook_of: set[str] = set()
        self._late_hooks: list[tuple[Chain, Callable[[], None]]] = []
        self._depth = 0
        self._parents = {GLOBAL}
        self._running = {GLOBAL}
        """What ``_parents`` would be without outside changes."""
        self._was_in_backward = False

    def begin(self) -> None:
        if self._depth == 0:
            run_hooks.attach(self)
        self._depth += 1

    def end(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            run_hooks.detach(self)
            self._calls.clear()
            self._passed_over.clear()

    # -- names ---------------------------------------------------------------------------------------------------------------

    def name_of(self, module: nn.Module) -> str | None:
        number = self._names.number(module)
        return None if number is None else self._names.class_name(number)

    def parents(self) -> set[str]:
        """One set, in which names come and go as modules do; the end of a backward pass takes away what others added."""
        in_backward = graph_task_id() != -1
        chain = self._calls.chain
        if in_backward:
            chain = (*self._chain_in_backward(), *chain)
        running = {GLOBAL, *(self._names.class_name(number) for _, number in chain), *self._in_hook_of}
        if self._was_in_backward and not in_backward:
            self._parents = set(running)
        else:
            self._parents -= self._running - running
            self._parents |= running - self._running
        self._running, self._was_in_backward = running, in_backward
        return self._parents

    def replace_parents(self, names: set[str]) -> None:
        self.parents()
        self._parents = names

    # -- what run_hooks.py tells -----------------------------------------------------------------------------------------------

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if is_in_compiled_module():
            self._passed_over.append(id(module))
            return
        if self._names.number(module) is None:
            self._names.name_tree(module)
        number = self._names.number(module)
        assert number is not None
        self._num_calls += 1
        self._calls.enter(id(module), self._num_calls, number, 0)
        self.parents()
        try:
            self._call_hook("pre_fw", module, args)
        except BaseException:
            self._calls.exit(id(module))  # the module itself will not run
            raise
        if graph_task_id() == -1 and not self._hook_gradients("post_bw", module, (args, kwargs), "all"):
            self._hook_end_of_backward("post_bw", module)

    def exit_module(self, module: nn.Module, args: Any, result: Any) -> None:
        if self._passed_over and self._passed_over[-1] == id(module):
            self._passed_over.pop()
            return
        try:
            self._call_hook("post_fw", module, args, result)
        finally:
            self._calls.exit(id(module))
            self.parents()
        if graph_task_id() == -1:
            self._hook_gradients("pre_bw", module, result, "any")

    def silence(self, by: int) -> None:
        self.num_silenced += by

    def fail(self, error: BaseException) -> None:
        """What raises here is a user's hook, and its error the user's to see."""
        raise error

    def _call_hook(self, name: str, *args: Any) -> None:
        hook = self.hooks.get(name)
        if hook is not None:
            hook(*args)

    def _hook_gradients(self, name: str, module: nn.Module, value: Any, mode: Any) -> bool:
        """Calls the user's hook when gradients reach these tensors; false where none ever will."""
        tensors = [tensor for tensor in tensors_in(value) if tensor.requires_grad]
        if tensors and (self.hooks.get(name) is not None or self._late_hooks):
            register_multi_grad_hook(tensors, self._backward_hook(name, module), mode=mode)
        return bool(tensors)

    def _hook_end_of_backward(self, name: str, module: nn.Module) -> None:
        """A module none of whose inputs needs a gradient is done when backward is; the innermost first."""
        if self.hooks.get(name) is not None and torch.is_grad_enabled():
            self._late_hooks.append((self._calls.chain, self._backward_hook(name, module)))

    def _backward_hook(self, name: str, module: nn.Module) -> Callable[..., None]:
        reference, module_name = weakref.ref(module), self.name_of(module)
        assert module_name is not None

        def hook(*gradients: torch.Tensor | None) -> None:
            if not self._depth:
                return
            self._run_late_hooks_after_backward()
            self._in_hook_of = {module_name}
            try:
                self._call_hook(name, reference(), gradients)
            finally:
                self._in_hook_of = set()

        return hook

    def _run_late_hooks_after_backward(self) -> None:
        late, self._late_hooks = self._late_hooks, []
        if late and graph_task_id() != -1:

            def run() -> None:
                for chain, hook in reversed(late):
                    self._pass, self._backward_chain = graph_task_id(), chain
                    hook()

            queue_callback(run)

    def _chain_in_backward(self) -> Chain:
        if graph_task_id() != self._pass:
            self._pass, self._backward_chain, self._backward_table = graph_task_id(), (), self._calls.latest
        node = current_node()
        sequence_nr = node._sequence_nr() if node is not None else LEAF_SEQUENCE_NR
        if sequence_nr != LEAF_SEQUENCE_NR:
            self._backward_chain = self._backward_table.find(sequence_nr)
        return self._backward_chain
