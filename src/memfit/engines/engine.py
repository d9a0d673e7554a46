"""What an engine says of itself, and what it is given while a run is recorded. Nothing in here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from memfit.ledger import Category, Phase

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from memfit.torch_compat.patches import Patches


@dataclass(frozen=True, kw_only=True)
class HostTask:
    """What the host spends, in seconds, on one task that an engine does around a unit. The engine's file has the source."""

    seconds: float
    idle_seconds: float | None = None
    """Where the task finds nothing to do; ``None`` where that costs the same."""


class Learner(Protocol):
    """One recorder of the run, as an engine's hooks see it."""

    def learn_tensor(self, tensor: torch.Tensor, category: Category, module: nn.Module, name: str) -> None:
        """The block behind ``tensor`` has this category; ``name`` is within ``module``."""

    def learn_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor) -> None:
        """``gradient`` is that of ``parameter``."""

    def learn_shards(self, shards: Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]]) -> None:
        """The gradients of a unit were reduced: ``shards`` gives each reduced gradient with its parameter. They stay until the
        optimizer's step, so that a recorder which looks at them there need not ask."""


Learn = Callable[[Learner], None]


class Reporter(Protocol):
    """Tells every recorder of the run what an engine does. A failure in a recorder never reaches the run."""

    def in_task(
        self, engine: Engine | None, phase: Phase, modules: Sequence[Any], work: Callable[[], Any], learn: Learn | None = None
    ) -> Any:
        """Runs ``work`` as a scope of ``phase`` that belongs to the first known of ``modules``, then has each recorder ``learn``
        what it left. Returns what ``work`` returns and raises what it raises."""

    def tell_whole_parameters(
        self,
        unit: object,
        tensors: Sequence[torch.Tensor],
        described: Callable[[], Iterable[tuple[torch.Tensor, nn.Module, str]]],
    ) -> None:
        """A unit's parameters are whole now; ``described`` gives the same tensors with their modules and names."""

    def tell_whole_gradients(self, unit: object, gradients: Callable[[], Sequence[tuple[torch.Tensor, torch.Tensor]]]) -> None:
        """A unit is about to reduce its whole gradients, each given with the parameter that it is for."""


class WrapConfig(Protocol):
    """How a model is to be sharded, as an engine reads it: ``memfit.fsdp.ShardConfig``, whose words equal torch's own."""

    @property
    def strategy(self) -> Any: ...
    @property
    def mixed_precision(self) -> Any: ...
    @property
    def precision_words(self) -> Any:
        """``mixed_precision`` in the words of FSDP1, also where it is FSDP2's policy."""

    @property
    def backward_prefetch(self) -> Any: ...
    @property
    def cpu_offload(self) -> Any: ...
    @property
    def engine_options(self) -> Mapping[str, Any]: ...


Hook = Callable[[Any, "Patches", Reporter], None]
"""Takes a module of torch that the run has imported, and patches in it what the reporter must hear of."""


@dataclass(frozen=True)
class UnitTensor:
    """A parameter that an engine keeps for a whole unit, in place of the parameters of its modules."""

    tensor: torch.Tensor
    category: Category
    unit: nn.Module
    name: str


class Engine:
    """What one engine puts around a model. The methods here do nothing: an engine overrides those that it needs.

    Modules of engines are imported without torch; methods that need torch import it.
    """

    name: str
    """As people write it after ``--engine``."""
    title: str
    """As it is called in sentences."""

    is_applied = True
    """Does memfit apply it to a model (``--engine``)? Otherwise scripts alone do."""

    # -- what bounds a search ----------------------------------------------------------------------------------------------------

    shards = True
    """Can it split parameters, gradients and optimizer state?"""
    gathers_units = False
    """Does it gather the weights of each unit when they are used, and keep those of the root until backward is over?"""
    goes_with_others = False
    """Can tensor, pipeline, context and expert parallelism and float8 be applied together with it?"""
    repeats_steps = False
    """Does every step after the first do exactly the same?"""
    has_mixed_precision = True
    """Does it cast parameters itself? Otherwise a recipe in mixed precision uses autocast."""
    wraps_meta_models = True
    """Can it wrap a model on the meta device? Otherwise parameters get their memory first."""

    # -- recording ---------------------------------------------------------------------------------------------------------------

    tasks: Mapping[Phase, HostTask] = {}
    """The phases in which it works around a unit, each with what the host spends on it."""
    categories: tuple[Category, ...] = ()
    """What it teaches the recorder of blocks, beside what follows from the phase that they are made in."""
    wrapper_level = ""
    """The level that it adds to the names of modules: parameters keep the names that they have without it."""

    def hooks(self) -> Mapping[str, Hook]:
        """By the name of a module of torch: what is patched in it while a run that has imported it is recorded."""
        return {}

    def is_wrapper(self, root: nn.Module) -> bool:
        """Is ``root`` what it puts around a model, which is then its ``module``? Parameters keep the names of that."""
        return False

    def sharded_parameters(self, root: nn.Module) -> Iterator[torch.Tensor]:
        """The parameters below ``root`` that it keeps sharded."""
        return iter(())

    def unit_tensors(self, root: nn.Module) -> Iterator[UnitTensor]:
        """Parameters below ``root`` that belong to a unit and not to one of its modules."""
        return iter(())

    # -- the phantom world -------------------------------------------------------------------------------------------------------

    def install(self, patches: Patches) -> None:
        """Replaces what the engine does in C++ or asks of ranks that are not there."""

    # -- applying it -------------------------------------------------------------------------------------------------------------

    def refused(self, config: WrapConfig) -> Iterator[str]:
        """What it cannot do of a configuration, each with an engine that can."""
        return iter(())

    def options_giving_memory(self, give: Callable[[nn.Module], None]) -> Mapping[str, Any]:
        """Options with which it calls ``give`` on each module of a meta model while it wraps the model. Empty where it does not:
        parameters get their memory afterwards."""
        return {}

    def without_reduction(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Around the backward passes of a step that are not its last: gradients stay whole on their GPU. By default they are
        reduced after every pass."""
        return nullcontext()

    def wrap(self, config: WrapConfig, model: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh) -> nn.Module:
        """The model, sharded over ``mesh`` as the configuration says; ``units`` are what is gathered together."""
        raise NotImplementedError(f"{self.title} is not applied by memfit.fsdp.shard")
