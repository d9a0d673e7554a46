"""Which rates stand for a GPU, and how sure they are: measured, published, or assumed to be those of the GPU that was measured."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from memfit.data import FOLDER
from memfit.hardware import Gpu, find_gpu
from memfit.timing.rates import Rates
from memfit.timing.shares import on_multiprocessors, published_shares, with_old_instructions, with_shares

MEASURED: Final = "measured"
USUAL: Final = "H200"
"""The GPU whose rates stand for those that were not measured."""


def rates_of(gpu: Gpu) -> Rates:
    """The rates that were measured on a GPU; or those of the usual one, with the shares that were published of this one."""
    if gpu.file:
        return _load_file(gpu.file, Path(gpu.file).stat().st_mtime_ns)
    return _load(gpu.name) if is_measured(gpu) else _published(gpu)


@cache
def is_measured(gpu: Gpu) -> bool:
    """Whether operators were timed on it: by its owner, or a file of ``data/rates`` has its name."""
    return bool(gpu.file) or _path(gpu.name).exists()


def basis_of(gpu: Gpu) -> str:
    """How sure prices for it are, in words."""
    if is_measured(gpu):
        return MEASURED
    shares = published_shares(gpu)
    if shares is None:
        return f"published peaks, with the shares of them that an {USUAL} reaches"
    of_products = f"of products {shares.product:.0%} of them ({shares.source})"
    return f"published peaks; {of_products}, of all else the shares that an {USUAL} reaches"


def what_times_are_from(gpu: Gpu, world_size: int) -> str:
    """A sentence for a time that is shown beside other figures."""
    links = "; links between GPUs were never measured" if world_size > 1 else ""
    if is_measured(gpu):
        return f"times are those of a clock that was read off an {gpu.name}{links}"
    return f"no operator was timed on {gpu.name}: times are from {basis_of(gpu)}{links}"


@cache
def _published(gpu: Gpu) -> Rates:
    shares, usual = published_shares(gpu), with_old_instructions(_load(USUAL), gpu)
    return on_multiprocessors(usual if shares is None else with_shares(usual, shares), find_gpu(USUAL), gpu)


@cache
def _load(name: str) -> Rates:
    return Rates.load(_path(name))


@cache
def _load_file(path: str, changed: int) -> Rates:
    return Rates.of_card(Path(path), _path(USUAL))


def _path(name: str) -> Path:
    return FOLDER / "rates" / f"{name.lower()}.toml"
