"""GPUs that users describe.

::

    24GiB                      a card with that memory; all else is that of the known card whose memory is nearest
    RTX-4090=48GiB             a known card with other memory; any other name: as above, under that name
    sm_90=64GiB                the same, of an architecture
    A100-80GB=0.5              half of a card: memory, multiprocessors, rates
    A100-80GB MIG 3g.40gb      a slice of one, as nvidia-smi names it
    my-card.toml               a file that memfit calibrate made, or a table like those of data/gpus.toml
    its-name=/path/card.toml   the same: how such a card is called from then on
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from memfit.data import read_toml
from memfit.errors import ConfigError
from memfit.hardware.gpu import KEPT_BYTES, Gpu
from memfit.units import GIB, MIB, format_bytes, parse_bytes

_SLICE: Final = re.compile(r"(?P<card>.+?)[\s:_-]*(?:mig)?[\s:_-]*(?P<compute>\d)g\.(?P<memory>\d+)gb(?:\+\S+)?", re.IGNORECASE)
_AMOUNT: Final = re.compile(r"\d+(?:\.\d+)?\s*[KMGT]i?B", re.IGNORECASE)
_SHARE: Final = re.compile(r"0?\.\d+|1(?:\.0*)?|\d+(?:\.\d+)?%")

COMPUTE_SLICES: Final = 8
"""Of a card, seven of which can be had: 14 of an A100's 108 multiprocessors, 16 to 18 of an H100's 132 and a B200's 148 (NVIDIA's
MIG user guide, and nvidia-smi in github.com/NVIDIA/gpu-operator pull request 1303)."""
SLICE_LEAVES: Final = 256 * MIB
"""Kept of each quarter of 40 GiB of memory that a slice has: 4.75, 9.75 and 19.5 GiB are left of 5, 10 and 20 (the same guide, and
nvidia-smi in github.com/XuehaiPan/nvitop pull request 8)."""


def describe(text: str, find_known: Callable[[str], Gpu], known: Sequence[Gpu]) -> Gpu | None:
    """The GPU that is described; ``None`` where the text is a name. Raises ``ConfigError`` for a description that cannot be."""
    if text.lower().endswith(".toml"):
        name, _, path = text.rpartition("=")
        return _from_file(path, name)
    if match := _SLICE.fullmatch(text.strip()):
        return _slice(find_known(match["card"]), int(match["compute"]), int(match["memory"]))
    if _AMOUNT.fullmatch(text.strip()):
        return _with_memory("", text.strip(), known)
    name, equals, value = (part.strip() for part in text.rpartition("="))
    if not equals:
        return None
    if not name:
        raise ConfigError(f"{text!r} describes no GPU: write a name before the =")
    if _SHARE.fullmatch(value):
        return _share(find_known(name), value)
    if not _AMOUNT.fullmatch(value):
        raise ConfigError(
            f"{text!r} describes no GPU: after the = stands its memory (48GiB), a share of it (0.5) or a file (card.toml)"
        )
    return _with_memory(name, value, known, find_known)


def _from_file(text: str, name: str) -> Gpu:
    path = Path(text).expanduser().resolve()
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise ConfigError(f"cannot read the GPU of {text}: {error.strerror}") from None
    return _read_file(str(path), name, changed)


@lru_cache(maxsize=64)
def _read_file(path: str, name: str, changed: int) -> Gpu:
    tables, where = read_toml(Path(path)), Path(path).name
    if "gpu" in tables:  # what memfit calibrate makes: rates beside it
        table = dict(tables["gpu"])
        gpu = Gpu.from_table(table.pop("name", ""), table, f"{where}, gpu")
        has_rates = "products" in tables
    elif len(tables) == 1:
        gpu, has_rates = Gpu.load(Path(path)), False
    else:
        raise ConfigError(
            f"{where} has no GPU: write one table like those of memfit's data/gpus.toml, or make it with memfit calibrate"
        )
    called = f"{name.strip() or gpu.name}={path}"
    return replace(gpu, name=called, file=path if has_rates else "")


def _with_memory(name: str, amount: str, known: Sequence[Gpu], find_known: Callable[[str], Gpu] | None = None) -> Gpu:
    total = _bytes(amount)
    if total <= 2 * KEPT_BYTES:
        raise ConfigError(f"{amount}: a GPU has more memory than {format_bytes(2 * KEPT_BYTES)}")
    like, is_that_card = _like(name, total, known, find_known)
    says = f"only its memory was said: the driver keeps {format_bytes(KEPT_BYTES)} of it, as of others"
    return replace(
        like,
        name=f"{name}={amount}" if name else amount,
        total_bytes=total,
        usable_bytes=total - KEPT_BYTES,
        usable_source="as described",
        caveat=says if is_that_card else f"{says}, and it is as fast as an {like.name}, which has about as much",
        is_usual=False,
        is_offered=False,
    )


def _like(name: str, total: int, known: Sequence[Gpu], find_known: Callable[[str], Gpu] | None) -> tuple[Gpu, bool]:
    """The known card that lends what was not said, and whether it was named."""
    of_arch = [gpu for gpu in known if gpu.arch == name.lower()]
    if name and not of_arch and find_known is not None:
        try:
            return find_known(name), True
        except ConfigError as error:
            if "could be" in str(error):
                raise
    offered = [gpu for gpu in known if gpu.is_offered]
    return min(of_arch or offered, key=lambda gpu: (abs(gpu.total_bytes - total), gpu.name)), False


def _share(gpu: Gpu, value: str) -> Gpu:
    share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    if not 0 < share <= 1:
        raise ConfigError(f"{gpu.name}={value}: a share of a GPU is more than 0 and at most 1")
    shared = _part(gpu, share, share, f"{gpu.name}={value}")
    return replace(shared, caveat="memory, multiprocessors and rates in proportion to its share are assumed")


def _slice(gpu: Gpu, compute: int, memory_gigabytes: int) -> Gpu:
    """``3g.40gb``: of eight parts of the multiprocessors three, and 40 of its gigabytes."""
    parts = gpu.total_bytes / GIB
    memory = next((share for share in (1 / 8, 1 / 4, 1 / 2, 1.0) if abs(parts * share / memory_gigabytes - 1) < 0.2), 0.0)
    if not memory or not 0 < compute < COMPUTE_SLICES:
        raise ConfigError(
            f"{gpu.name} has no slice {compute}g.{memory_gigabytes}gb: slices have one to seven parts of the multiprocessors, "
            "and an eighth, a quarter, a half or all of the memory"
        )
    share = compute / (4 if gpu.name.startswith(("A30", "RTX")) else COMPUTE_SLICES)
    name = f"{gpu.name} MIG {compute}g.{memory_gigabytes}gb"
    kept = round(SLICE_LEAVES * gpu.total_bytes / (40 * GIB) * math.ceil(4 * memory))
    sliced = _part(gpu, memory, share, name)
    return replace(
        sliced,
        usable_bytes=round(gpu.total_bytes * memory) - kept,
        usable_source="what slices of an A100 have",
        caveat="what a slice has was seen on an A100; rates in proportion to its parts are assumed",
    )


def _part(gpu: Gpu, memory: float, compute: float, name: str) -> Gpu:
    """Memory and its bandwidth by one share, multiprocessors and peaks by the other. Processes take what they take on the whole."""
    peaks = ("bf16_flops", "f16_flops", "tf32_flops", "f8_flops", "f32_flops", "f64_flops")
    return replace(
        gpu,
        name=name,
        num_sms=max(1, math.floor(gpu.num_sms * compute)),
        total_bytes=round(gpu.total_bytes * memory),
        usable_bytes=round(gpu.usable_bytes * memory),
        memory_bandwidth=gpu.memory_bandwidth * memory,
        l2_cache_bytes=round(gpu.l2_cache_bytes * memory),
        last_level_cache_bytes=round(gpu.last_level_cache_bytes * memory),
        is_usual=False,
        is_offered=False,
        **{peak: getattr(gpu, peak) * compute for peak in peaks},
    )


def _bytes(amount: str) -> int:
    """``24GiB``, and ``24gb`` as people write it: of a card's memory it means the same."""
    number, unit = re.fullmatch(r"([\d.]+)\s*([KMGT])i?B", amount, re.IGNORECASE).groups()  # type: ignore[union-attr]
    return parse_bytes(f"{number}{unit.upper()}iB")
