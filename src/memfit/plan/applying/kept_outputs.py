"""Which outputs a unit keeps: two dispatch modes, one around its forward, one around its computing again.

Calls are counted for each operator that is chosen at all: the n-th call in forward is the n-th when it is computed again. An
operator that is not chosen costs one lookup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from memfit.errors import ConfigError
from memfit.phantom.current import find_world
from memfit.plan.applying.host_copies import HostCopy, HostLink, UnitCopies
from memfit.plan.policy import Action, OperatorChoice
from memfit.record.tensors import PLAIN_TYPES
from memfit.torch_compat.dispatch import TorchDispatchMode, detached, tree_leaves, tree_map
from memfit.torch_compat.fake_tensors import FakeTensor

Actions = dict[int, Action]
"""What is done with each call of an operator, by its number."""


OPERATOR_SECONDS: Final = 11.4e-6
"""What a dispatch mode in Python costs the host for each operator: the forward of a small Llama layer of 81 operators took 0.84
milliseconds without one and 1.76 with one that keeps nothing, on the machine of an H200 with one thread; 0.60 and 1.30 with all
threads (benchmarks/plans/plan_mode_cost.py)."""


class _Deferred(dict[Any, bool]):
    """Are some of these types made of others?"""

    def __missing__(self, types: Any) -> bool:
        answer = self[types] = not all(kind in PLAIN_TYPES or issubclass(kind, FakeTensor) for kind in types)
        return answer


_deferred = _Deferred()


class Choices(dict[Any, Actions | None]):
    """What a unit does with an operator's calls; ``None`` where they are all computed again. Shared by all calls of the unit."""

    def __init__(self, choices: Iterable[OperatorChoice]) -> None:
        super().__init__()
        self._choices = tuple(choices)
        self._most_calls: dict[str, int] = {}
        self._is_known_to_run = not self._choices
        self._by_name: dict[str, Actions] = {}
        for choice in self._choices:
            self._by_name.setdefault(choice.operator, {})[choice.call] = choice.action

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the operators that were looked up: they cannot be saved, and a model can."""
        return Choices, (self._choices,)

    def __missing__(self, operator: Any) -> Actions | None:
        found = self[operator] = self._by_name.get(str(operator))
        return found

    def note_forward(self, counts: dict[Any, int]) -> None:
        """A unit's forward has called the operators that are chosen this often."""
        if not self._is_known_to_run:
            for operator, count in counts.items():
                self._most_calls[str(operator)] = max(count, self._most_calls.get(str(operator), 0))

    def refuse_what_never_ran(self) -> None:
        """Raises ``ConfigError`` for choices that no forward of any of the units has met; looks until there are none.

        Call it in backward, when all units of the step have run: how often one of them calls an operator may depend on its data.
        """
        if self._is_known_to_run:
            return
        _refuse_what_never_ran(((choice.operator, choice.call) for choice in self._choices), self._most_calls)
        self._is_known_to_run = True


def _refuse_what_never_ran(calls: Iterable[tuple[str, int]], counts: Mapping[str, int]) -> None:
    never = [f"{operator} (call {call})" for operator, call in calls if call >= counts.get(operator, 0)]
    if never:
        raise ConfigError(
            f"the plan keeps outputs of {', '.join(never[:3])}{' and more' if len(never) > 3 else ''}, which its units never "
            "ran: it is a plan for another model, or for another device. Make one for this model, with memfit plan"
        )


class _Kept:
    """A tensor that stays on the GPU."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = detached(tensor)  # without the graph that led to it, which would never die
        self._versions: tuple[int, ...] = (tensor._version,)

    def follow(self, changed: _Kept) -> bool:
        """Another operator that is kept has changed a tensor in place; was it this one? Then it is kept as it is now."""
        if self._tensor.untyped_storage() is not changed._tensor.untyped_storage():
            return False
        # Autograd counts the change when the operator is done, and below autograd it is not counted.
        self._versions = changed._versions = (changed._tensor._version, changed._tensor._version + 1)
        return True

    def trust(self) -> None:
        """It outlives the unit, as the counter of a batch norm does, and others may change it."""
        self._versions = ()

    def take(self) -> Tensor:
        if self._versions and self._tensor._version not in self._versions:
            raise RuntimeError(
                "memfit: an output that a plan keeps was changed in place after its operator ran. Make the plan again, with the "
                "model as it is now"
            )
        return self._tensor


class _Taken:
    """What is left when a kept output was used."""


_TAKEN = _Taken()


class _Mode(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, choices: Choices, kept: dict[tuple[Any, int], Any], copies: UnitCopies) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._choices, self._kept, self._copies = choices, kept, copies
        self._world = find_world()
        self._counts: dict[Any, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would otherwise wrap the method below in two more calls for each operator."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Torch compiles what is inside."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and _deferred[types]:
            return NotImplemented  # a tensor made of others: its operators on them are what we count
        if self._world is not None:
            self._world.spend_on_mode(OPERATOR_SECONDS)
        actions = self._choices[func]
        if actions is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        call = self._counts.get(func, 0)
        self._counts[func] = call + 1
        return self._run(func, call, actions.get(call), args, kwargs or {})

    def _run(self, func: Any, call: int, action: Action | None, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError


class _Keeping(_Mode):
    """Around forward."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if error is None:
            self._choices.note_forward(self._counts)

    def _run(self, func: Any, call: int, action: Action | None, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if action is not None:
            keep: Callable[[Tensor], Any] = self._copies.add if action is Action.OFFLOAD else _Kept
            kept = tree_map(lambda leaf: keep(leaf) if isinstance(leaf, Tensor) else leaf, result)
            if isinstance(kept, _Kept) and func._schema.is_mutable:
                earlier = [leaf for leaf in tree_leaves(list(self._kept.values())) if isinstance(leaf, _Kept)]
                if not [one for one in earlier if one.follow(kept)]:
                    kept.trust()
            self._kept[func, call] = kept
        return result


class _Taking(_Mode):
    """Around computing again."""

    def __enter__(self) -> Any:
        self._counts.clear()
        entered = super().__enter__()  # type: ignore[no-untyped-call]
        self._copies.fetch()
        return entered

    def _run(self, func: Any, call: int, action: Action | None, args: Any, kwargs: Any) -> Any:
        found = self._kept.get((func, call))
        if found is None:
            return func(*args, **kwargs)
        if found is _TAKEN:
            raise RuntimeError(
                "memfit: backward went through a unit a second time, and what its plan keeps is gone after the first. Use the "
                "plan without retain_graph=True"
            )
        self._kept[func, call] = _TAKEN
        return tree_map(lambda leaf: leaf.take() if isinstance(leaf, _Kept | HostCopy) else leaf, found)


def contexts(choices: Choices, link: HostLink) -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """For one forward of a unit: what ``torch.utils.checkpoint`` takes."""
    kept: dict[tuple[Any, int], Any] = {}
    copies = UnitCopies(link)
    return _Keeping(choices, kept, copies), _Taking(choices, kept, copies)


def compiled_contexts(actions: tuple[tuple[str, int, str], ...], is_training: bool) -> Any:
    """The same for the compiler, in the form that it knows. Outputs are kept or computed again there, and none is offloaded.

    A training unit that lacks some of the calls raises ``ConfigError`` while it is compiled: the compiler has all of its calls.
    """
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    keeps = {(name, call) for name, call, action in actions if action == Action.KEEP}
    counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        name, counted = str(operator), counts[context.is_recompute]
        counted[name] += 1
        return CheckpointPolicy.MUST_SAVE if (name, counted[name] - 1) in keeps else CheckpointPolicy.PREFER_RECOMPUTE

    def forward_is_over() -> None:
        if is_training and torch.is_grad_enabled():
            _refuse_what_never_ran(((name, call) for name, call, _ in actions), counts[False])

    forward, again = create_selective_checkpoint_contexts(policy)
    return _telling(forward, forward_is_over), again


def _telling(mode: TorchDispatchMode, is_over: Callable[[], None]) -> TorchDispatchMode:
    """The same mode, which says when it is left."""
    kind: Any = type(mode)

    class Telling(kind):  # type: ignore[misc]
        def __exit__(self, error_kind: Any, error: Any, trace: Any) -> None:
            super().__exit__(error_kind, error, trace)
            if error is None:
                is_over()

    mode.__class__ = Telling
    return mode
