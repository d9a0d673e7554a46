"""What memfit finds on this machine: versions, torch's private parts, the engine, and what it replaces in torch while it works."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import platform
from dataclasses import asdict, dataclass
from typing import Any

from memfit import __version__
from memfit.allocator.engine import native
from memfit.errors import MemfitError, UnsupportedTorchError

NEEDED = ("torch", "numpy", "safetensors", "rich", "scipy")
OPTIONAL = ("nvidia-cudnn-cu13", "transformers", "accelerate", "lightning", "triton", "tabulate", "pytest")


@dataclass(frozen=True, kw_only=True)
class PrivateParts:
    """The private parts of torch that one file of ``torch_compat`` needs."""

    file: str
    found: tuple[str, ...]
    missing: str = ""
    """The first that is not where memfit knows it."""


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """One thing that is replaced while memfit works."""

    place: str
    who: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What people paste into a bug report."""

    memfit: str
    python: str
    platform: str
    packages: dict[str, str | None]
    """By name: the version, ``None`` where it is not installed."""
    supported_torch: tuple[str, str]
    """The oldest and the newest release that memfit is tested with."""
    is_supported: bool
    gpus: tuple[str, ...]
    engine: str
    """Which engine simulates the allocator: ``C`` or ``Python``."""
    parts: tuple[PrivateParts, ...]
    replaced: tuple[Replaced, ...]
    """While a run is predicted; the recorder's are in place while one is tracked, too."""
    problem: str = ""
    """Why a prediction cannot be made here, empty if it can."""

    @property
    def is_well(self) -> bool:
        return self.is_supported and not self.problem and not any(part.missing for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"is_well": self.is_well}


def diagnose() -> Diagnosis:
    """Looks at everything once. Nothing stays replaced."""
    import torch

    from memfit.torch_compat import versions

    parts = tuple(_look_for_parts())
    replaced: tuple[Replaced, ...] = ()
    problem = ""
    try:
        replaced = _list_patches()
    except MemfitError as error:
        problem = str(error)
    return Diagnosis(
        memfit=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        packages={name: _version_of(name) for name in (*NEEDED, *OPTIONAL)} | {"torch": torch.__version__},
        supported_torch=(_dotted(versions.OLDEST), _dotted(versions.NEWEST)),
        is_supported=versions.is_supported(),
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())),
        engine="Python" if native.library() is None else "C",
        parts=parts,
        replaced=replaced,
        problem=problem,
    )


def _look_for_parts() -> list[PrivateParts]:
    """Imports every file that needs private parts; one that lacks some of them is told apart from the others."""
    from memfit import torch_compat
    from memfit.torch_compat.versions import PARTS

    missing = {}
    names = [f"{torch_compat.__name__}.{module.name}" for module in pkgutil.iter_modules(torch_compat.__path__)]
    for name in names:
        try:
            getattr(importlib.import_module(name), "need_everything", lambda: None)()
        except UnsupportedTorchError as error:
            missing[name] = error.what
    found = {name: tuple(sorted(part for part, asked_by in PARTS.items() if asked_by == name)) for name in names}
    return [
        PrivateParts(file=name.rpartition(".")[2], found=found[name], missing=missing.get(name, ""))
        for name in names
        if found[name] or name in missing
    ]


def _list_patches() -> tuple[Replaced, ...]:
    from memfit.job import PredictOptions
    from memfit.phantom.distributed.environment import RankInfo
    from memfit.predict.session import PhantomSession
    from memfit.torch_compat.patches import active_patches

    session = PhantomSession.prepare(PredictOptions(), RankInfo())
    with session.running():
        return tuple(Replaced(place=patch.place, who=patch.who, why=patch.why) for patch in active_patches())


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
