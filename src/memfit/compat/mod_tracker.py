"""``ModTracker``, with PyTorch's methods: which modules run, forward or backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from memfit.ledger import LedgerBuilder
from memfit.record import run_hooks
from memfit.record.listener import Listener
from memfit.record.module_calls import Chain, ModuleCalls
from memfit.record.module_names import ModuleNames
from memfit.record.roles import tensors_in
from memfit.torch_compat.autograd import LEAF_SEQUENCE_NR, current_node, graph_task_id, queue_callback

GLOBAL = "Global"


class ModTracker(Listener):
    """Knows, at any moment inside its context, the modules whose forward or backward is running.

    ::

        with ModTracker() as tracker:
            loss = model(batch)     # anywhere inside: tracker.parents == {"Global", "Model", "Model.layers", ...}
            loss.backward()         # the same, from autograd's own record of which module made each node
    """

    def __init__(self) -> None:
        self._names = ModuleNames(LedgerBuilder())
        self._calls = ModuleCalls()
        self._num_calls = 0
        self._backward_chain: Chain = ()
        self._backward_table = self._calls.latest
        self._pass = -1
        self._in_hook_of: set[str] = set()
        self._late_hooks: list[tuple[Chain, Callable[[], None]]] = []
        self._hooks: dict[str, Callable[..., Any] | None] = {}
        self._depth = 0

    @property
    def is_bw(self) -> bool:
        """Does a backward pass run in this thread?"""
        return graph_task_id() != -1

    @property
    def parents(self) -> set[str]:
        """The names of the modules that run now, and ``"Global"``."""
        chain = self._calls.chain
        if self.is_bw:
            chain = (*self._chain_in_backward(), *chain)
        return {GLOBAL, *(self._names.class_name(number) for _, number in chain), *self._in_hook_of}

    def get_known_fqn(self, mod: nn.Module) -> str | None:
        """A module's name with its root's class in front, ``None`` if it was never seen."""
        number = self._names.number(mod)
        return None if number is None else self._names.class_name(number)

    def register_user_hooks(
        self,
        pre_fw_hook: Callable[..., Any] | None = None,
        post_fw_hook: Callable[..., Any] | None = None,
        pre_bw_hook: Callable[..., Any] | None = None,
        post_bw_hook: Callable[..., Any] | None = None,
    ) -> None:
        """Functions to call around forward (module, inputs[, outputs]) and backward (module, gradients); one of each at a time."""
        given = {"pre_fw": pre_fw_hook, "post_fw": post_fw_hook, "pre_bw": pre_bw_hook, "post_bw": post_bw_hook}
        for name, hook in given.items():
            if hook is not None and self._hooks.get(name) is not None:
                raise AssertionError(f"Only one {name}_hook can be registered at a time: call clear_user_hooks first")
        self._hooks |= {name: hook for name, hook in given.items() if hook is not None}

    def clear_user_hooks(self) -> None:
        self._hooks.clear()

    # -- what patches.py tells -----------------------------------------------------------------------------------------------

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._names.number(module) is None:
            self._names.name_tree(module)
        number = self._names.number(module)
        assert number is not None
        self._num_calls += 1
        self._calls.enter(id(module), self._num_calls, number, 0)
        try:
            self._call_hook("pre_fw", module, args)
        except BaseException:
            self._calls.exit(id(module))  # the module itself will not run
            raise
        if not self.is_bw and not self._hook_gradients("post_bw", module, (args, kwargs), "all"):
            self._hook_end_of_backward("post_bw", module)

    def exit_module(self, module: nn.Module, args: Any, result: Any) -> None:
        try:
            self._call_hook("post_fw", module, args, result)
        finally:
            self._calls.exit(id(module))
        if not self.is_bw:
            self._hook_gradients("pre_bw", module, result, "any")

    def fail(self, error: BaseException) -> None:
        """What raises here is a user's hook, and its error the user's to see."""
        raise error

    def _call_hook(self, name: str, *args: Any) -> None:
        hook = self._hooks.get(name)
        if hook is not None:
            hook(*args)

    def _hook_gradients(self, name: str, module: nn.Module, value: Any, mode: Any) -> bool:
        """Calls the user's hook when gradients reach these tensors; false where none ever will."""
        tensors = [tensor for tensor in tensors_in(value) if tensor.requires_grad]
        if tensors and (self._hooks.get(name) is not None or self._late_hooks):
            register_multi_grad_hook(tensors, self._backward_hook(name, module), mode=mode)
        return bool(tensors)

    def _hook_end_of_backward(self, name: str, module: nn.Module) -> None:
        """A module none of whose inputs needs a gradient is done when backward is; the innermost first."""
        if self._hooks.get(name) is not None and torch.is_grad_enabled():
            self._late_hooks.append((self._calls.chain, self._backward_hook(name, module)))

    def _backward_hook(self, name: str, module: nn.Module) -> Callable[..., None]:
        reference, module_name = weakref.ref(module), self.get_known_fqn(module)
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
        if late and self.is_bw:

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

    # -- context -------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._depth == 0:
            run_hooks.attach(self)
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._depth -= 1
        if self._depth == 0:
            run_hooks.detach(self)
            self._calls.clear()
