"""What memfit knows about one operator on CUDA, and the registry in which every rule is found.

::

    a family's file ── RULES ──> Registry ──> get(operator)      one dict lookup, built once
                                    │
                                    └── a second rule for the same operator is an error
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.errors import ConfigError
from memfit.phantom.target import Target
from memfit.torch_compat.dispatch import OpOverload

Kernel = Callable[..., Any]
"""Takes an operator's arguments, and returns what the operator returns."""

Arguments = Sequence[Any]
"""An operator's positional arguments."""

MEASURED = "measured on an H200 (benchmarks/truth/kernel_memory.json)"
MEASURED_CUDNN = f"{MEASURED} with cuDNN 9.19"
"""Sources that several rules share."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """A block of memory that a library takes from the allocator once, and keeps until the process ends."""

    library: str
    size_bytes: Callable[[Target], int]
    """0 where this target's library keeps nothing."""
    is_per_thread_and_stream: bool
    """There is one for every pair of a host thread and a CUDA stream; otherwise there is one in a process."""


@dataclass(frozen=True)
class ResultPlace:
    """Among the blocks that an operator takes: here it allocates one of its results."""

    place: int
    """Of the result among the operator's."""


TakenBlocks = Sequence[int | ResultPlace]
"""What an operator does to the allocator, in order: a size takes a block of that many bytes; ``-k`` gives back the k-th block that
was taken, from 1; a ``ResultPlace`` allocates a result. Results that are not named come first, and what was not given back is
when the operator is done."""


@dataclass(frozen=True, kw_only=True)
class KernelTrial:
    """A library measures several kernels, once for each different call, to find the fastest one."""

    key: Hashable
    """What tells different calls apart."""
    sizes: tuple[int, ...]
    """Workspaces of the kernels. The largest that the GPU has room for is taken, and given back when all are measured."""
    is_known: bool = True
    """Sizes of calls like this one were measured; otherwise it may take much more."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Everything about one operator, or about several that have all of it in common. What it costs in time is in ``memfit.timing``,
    which knows no torch.

    The first sentences of the functions' docstrings are shown in docs/kernels.md.
    """

    operators: tuple[str, ...]
    """Names of ATen's overloads, as native_functions.yaml writes them: ``sum.dim_IntList``, and ``mm`` for ``mm.default``."""

    source: str
    """Where the facts are from: files of PyTorch's source, or a measurement."""

    runs: Callable[[Target], Kernel] | None = None
    """What CUDA runs in place of an operator that is composed of others. Autograd sees the operators which that kernel calls, and
    saves for backward what they save."""

    is_one_kernel: bool = False
    """CUDA has a kernel for this operator, although torch composes it of others for devices that have none."""

    returns: Kernel | None = None
    """Makes the result, where torch does not know its shape, or where CUDA lays it out differently. ``NotImplemented`` leaves the
    call to torch."""

    copies: Callable[[Arguments], Sequence[Any]] | None = None
    """The sizes in bytes of the copies of its inputs that it makes before its results, and frees when it is done.
    With ``by_output`` there are those of the whole call, those of all outputs but the last, then those of each output."""

    takes: Callable[[Target, Any, Any], Sequence[Any]] | None = None
    """The ``TakenBlocks`` that it takes from the allocator while it runs, from target, arguments and result."""

    by_output: bool = False
    """Each output has a kernel of its own, which takes and frees its own blocks: ``takes`` gives sizes for each output, which
    come after it."""

    tries: Callable[[Arguments, Any], Sequence[KernelTrial | None]] | None = None
    """What is measured for each output where ``torch.backends.cudnn.benchmark`` is set, from arguments and result."""

    keeps: Callable[[Arguments], Sequence[Kept]] | None = None
    """What a library keeps for good because of a call with these arguments."""

    assumption: str | Callable[[Target], str] | None = None
    """What a prediction that used ``takes`` tells the user, where the sizes are not known for sure."""

    def __post_init__(self) -> None:
        names = ", ".join(self.operators)
        if not self.operators or len(set(self.operators)) != len(self.operators):
            raise ConfigError(f"a rule names each of its operators once, and at least one: got ({names})")
        if any(name.endswith(".default") or "::" in name for name in self.operators):
            raise ConfigError(f"the rule for {names}: write `mm` for aten::mm.default")
        if not self.source.strip():
            raise ConfigError(f"the rule for {names} has no source: say where its facts are from")
        if not (self.runs or self.is_one_kernel or self.returns or self.copies or self.takes or self.keeps):
            raise ConfigError(f"the rule for {names} says nothing: give it `runs`, `returns`, `copies`, `takes` or `keeps`")
        if self.takes is None and (self.by_output or self.tries is not None or self.assumption is not None):
            raise ConfigError(
                f"the rule for {names}: `by_output`, `tries` and `assumption` are about `takes`, which it does not have"
            )


class Registry:
    """All rules, by family and by operator."""

    def __init__(self) -> None:
        self.families: dict[str, tuple[Rule, ...]] = {}
        self.missing: list[str] = []
        """Operators that have a rule, but that the installed torch does not have. Nothing can call them, so they are skipped."""
        self._places: dict[str, str] = {}
        self._rules: dict[OpOverload, Rule] = {}
        self._writing: dict[OpOverload, Rule] = {}
        """The same, for operators that write into a tensor they are given: ``torch.mm(a, b, out=c)``."""

    def register(self, family: str, rules: Sequence[Rule]) -> None:
        """Adds a family's rules; a second rule for an operator is refused, also where the installed torch does not have it."""
        for rule in rules:
            place = f"{family} ({rule.source})"
            for name in rule.operators:
                if name in self._places:
                    raise ConfigError(
                        f"two rules for the operator {name}: one in {self._places[name]}, one in {place}. Make them one"
                    )
                self._places[name] = place
                operator = find_operator(name)
                if operator is None:
                    self.missing.append(name)
                else:
                    self._rules[operator] = rule
                    if (writing := writing_form(operator)) is not None:
                        self._writing[writing] = rule
        self.families[family] = (*self.families.get(family, ()), *rules)

    def get(self, operator: OpOverload) -> Rule | None:
        """The rule for an operator, if it has one; also for its form with ``out=``, which runs the same kernel."""
        return self._rules.get(operator) or self._writing.get(operator)

    def items(self) -> Iterator[tuple[OpOverload, Rule]]:
        """Every operator that the installed torch has, with its rule."""
        return iter(self._rules.items())

    def returns_beside(self, answers: Mapping[OpOverload, Kernel]) -> dict[OpOverload, Kernel]:
        """What makes the results of operators: the rules' ``returns``, and other answers, of which none may be for the same one."""
        returns: dict[OpOverload, Kernel] = dict.fromkeys(self._writing, _written)
        returns |= {operator: rule.returns for operator, rule in self._rules.items() if rule.returns is not None}
        both = [str(operator) for operator in answers if operator in returns]
        if both:
            raise ConfigError(f"two answers for what {', '.join(both)} returns: one is in a rule of phantom/kernels/. Keep one")
        return {**returns, **answers}


def _written(*args: Any, out: Any = None, **kwargs: Any) -> Any:
    """What was written into: torch knows the shape functions of few operators in this form."""
    return out if isinstance(out, torch.Tensor) and out.numel() else NotImplemented


def find_operator(name: str) -> OpOverload | None:
    """``sum.dim_IntList`` of the installed torch; ``None`` where it has no such operator."""
    packet, _, overload = name.partition(".")
    found: OpOverload | None = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    return found


def writing_form(operator: OpOverload) -> OpOverload | None:
    """The overload with ``out=`` of an operator that returns a new tensor; ``None`` where there is none."""
    schema = operator._schema
    names = [argument.name for argument in schema.arguments]
    for overload in operator.overloadpacket.overloads():
        other = getattr(operator.overloadpacket, overload)
        given = [argument.name for argument in other._schema.arguments if not argument.is_out]
        if len(given) < len(other._schema.arguments) and given == names:
            found: OpOverload = other
            return found
    return None


def operator_name(operator: OpOverload) -> str:
    """How a rule writes it: ``sum.dim_IntList``, ``mm``."""
    name: str = operator.name()
    return name.removeprefix("aten::")


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
