"""The interface of an engine, and of what it is given while a run is recorded. Imports no torch."""

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
    """Host seconds of one task of an engine around a unit. The engine's file names the source."""

    seconds: float
    idle_seconds: float | None = None
    """Seconds if the task finds nothing to do; ``None`` if that costs the same."""


class Learner(Protocol):
    """One recorder of the run, as an engine's hooks see it."""

    def learn_tensor(self, tensor: torch.Tensor, category: Category, module: nn.Module, name: str) -> None:
        """The block behind ``tensor`` has this category; ``name`` is within ``module``."""

    def learn_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor) -> None:
        """``gradient`` is the gradient of ``parameter``."""

    def learn_shards(self, shards: Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]]) -> None:
        """The gradients of a unit were reduced: ``shards`` gives each reduced gradient with its parameter. They stay until the
        optimizer's step, so a recorder that inspects them there may ignore this."""


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
"""Patches an imported module of torch so that the reporter hears of the engine's work."""


@dataclass(frozen=True)
class UnitTensor:
    """A parameter that an engine keeps for a whole unit, in place of the parameters of its modules."""

    tensor: torch.Tensor
    category: Category
    unit: nn.Module
    name: str


class Engine:
    """What wraps a model. The methods here do nothing: an engine overrides those that it needs.

    Modules of engines are imported without torch; methods that need torch import it.
    """

    name: str
    """Its name on the command line, after ``--engine``."""
    title: str
    """Its name in sentences."""

    is_applied = True
    """True if memfit can apply it to a model (``--engine``); otherwise only scripts do."""

    # -- what bounds a search ----------------------------------------------------------------------------------------------------

    shards = True
    """True if it can shard parameters, gradients and optimizer state."""
    gathers_units = False
    """True if it gathers each unit's weights when they are used, and keeps those of the root until backward is over."""
    goes_with_others = False
    """True if it can be combined with tensor, pipeline, context and expert parallelism and float8."""
    repeats_steps = False
    """True if every step after the first does exactly the same."""
    has_mixed_precision = True
    """True if it casts parameters itself; otherwise a recipe in mixed precision uses autocast."""
    wraps_meta_models = True
    """True if it can wrap a model on the meta device; otherwise parameters are allocated first."""

    # -- recording ---------------------------------------------------------------------------------------------------------------

    tasks: Mapping[Phase, HostTask] = {}
    """The phases of its work around a unit, each with its host time."""
    categories: tuple[Category, ...] = ()
    """The categories that it reports to the recorder, besides those that follow from phases."""
    wrapper_level = ""
    """The level that it adds to module names; recorded names omit it."""

    def hooks(self) -> Mapping[str, Hook]:
        """Maps names of torch's modules to hooks, which run once the recorded run has imported the module."""
        return {}

    def is_wrapper(self, root: nn.Module) -> bool:
        """True if ``root`` is its wrapper around a model, ``root.module``. Recorded names are those of that model."""
        return False

    def sharded_parameters(self, root: nn.Module) -> Iterator[torch.Tensor]:
        """The parameters below ``root`` that it keeps sharded."""
        return iter(())

    def unit_tensors(self, root: nn.Module) -> Iterator[UnitTensor]:
        """Parameters below ``root`` that belong to a unit and not to one of its modules."""
        return iter(())

    def axis_groups(self, modules: Sequence[nn.Module]) -> Mapping[str, Sequence[int]]:
        """The ranks that this one shares each axis of the job with, by the axis's name (``pp``: stages of a pipeline), where the
        engine has arranged them itself, without a mesh of torch's."""
        return {}

    # -- the phantom world -------------------------------------------------------------------------------------------------------

    def install(self, patches: Patches) -> None:
        """Replaces what the engine does in C++ or asks of ranks that are not there."""

    # -- applying it -------------------------------------------------------------------------------------------------------------

    def refused(self, config: WrapConfig) -> Iterator[str]:
        """What it cannot do of a configuration, in sentences that name an engine that can."""
        return iter(())

    def options_giving_memory(self, give: Callable[[nn.Module], None]) -> Mapping[str, Any]:
        """Options with which it calls ``give`` on each module of a meta model while it wraps the model. Empty if it does not:
        parameters are allocated afterwards."""
        return {}

    def without_reduction(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A context for all backward passes of a step but the last, in which gradients are not reduced. By default they are
        reduced after every pass."""
        return nullcontext()

    def wrap(self, config: WrapConfig, model: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh) -> nn.Module:
        """Returns the model, sharded over ``mesh`` as configured; ``units`` are gathered as wholes."""
        raise NotImplementedError(f"{self.title} is not applied by memfit.fsdp.shard")
