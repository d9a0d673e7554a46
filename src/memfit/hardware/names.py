"""Which GPU is meant: by a name as people, clouds and ``nvidia-smi`` write it, or by a description."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from memfit.errors import ConfigError
from memfit.hardware.described import describe
from memfit.hardware.gpu import Gpu, gpus, known_gpus

_SILENT: Final = ("nvidia", "amd", "geforce", "tesla", "instinct", "radeon", "rtx", "gtx", "rx", "generation", "gpu")
"""Words that tell no GPU from another; ``TITAN RTX`` alone is told apart by one of them."""
_SIZE: Final = re.compile(r"(\d+)(gi?b?)?")

HOW_TO_DESCRIBE: Final = (
    "describe any other: 24GiB (a card with that memory), RTX-4090=48GiB, A100-80GB=0.5 (a share of one), H100-80GB MIG 3g.40gb, "
    "or my-card.toml, which memfit calibrate makes on it"
)


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, forgivingly: ``h100``, ``A100 80GB``, ``v100-16``, ``rtx4090``, ``NVIDIA A100-SXM4-80GB``; or as it is
    described: ``24GiB``, ``RTX-4090=48GiB``, ``A100-80GB=0.5``, ``A100-80GB MIG 3g.40gb``, ``my-card.toml``.

    Raises ``ConfigError`` where none has the name, or several have it and none of them is usual.
    """
    for gpu in known_gpus():
        if gpu.name == name:
            return gpu
    return describe(name, find_known, known_gpus()) or find_known(name)


def find_known(name: str) -> Gpu:
    """The known GPU of that name."""
    words, sizes = _words(name)
    found = [gpu for gpu in known_gpus() if _model(gpu) <= words]
    longest = max((len(_model(gpu)) for gpu in found), default=0)
    found = [gpu for gpu in found if len(_model(gpu)) == longest]
    sized = _of_size(found, sizes) or [gpu for gpu in _that_could_be(words) if _words(gpu.name)[1] & sizes]
    usual = [gpu for gpu in sized if not sizes and gpu.is_usual]
    if len(sized) == 1 or usual:
        return (usual or sized)[0]
    if found or sized:
        raise ConfigError(f"{name!r} could be {' or '.join(gpu.name for gpu in sized or found)}: name one of them")
    if could_be := _that_could_be(words):
        raise ConfigError(f"{name!r} could be {' or '.join(gpu.name for gpu in could_be)}: name one of them")
    listed, others = ", ".join(gpu.name for gpu in gpus()), len(known_gpus()) - len(gpus())
    close = difflib.get_close_matches(name.lower(), {gpu.name.lower(): gpu.name for gpu in known_gpus()}, n=2, cutoff=0.6)
    close = [gpu.name for gpu in known_gpus() if gpu.name.lower() in close]
    advice = f"did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(
        f"unknown GPU {name!r}: {advice}memfit knows {listed}, and {others} older and smaller ones; {HOW_TO_DESCRIBE}"
    )


def _words(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words that tell GPUs apart, and sizes of memory. ``rtx4070tisuper`` is taken apart, ``A100`` is not."""
    text = re.sub(r"(rtx|gtx|rx|titan|quadro)(?=[a-z0-9])", r"\1 ", name.lower())
    text = re.sub(r"(?<=\d)(ti|super|ada|xtx?|nvl|pcie)(?![a-z0-9])", r" \1", text.replace("tisuper", "ti super"))
    words = [word for word in re.split(r"[^a-z0-9]+", text) if word]
    sizes = {match[1] for word in words[1:] if (match := _SIZE.fullmatch(word)) and (match[2] or len(word) <= 3)}
    silent = set(_SILENT) - ({"rtx"} if "titan" in words else set())
    return frozenset(word for word in words if word not in silent), frozenset(sizes)


@cache
def _model(gpu: Gpu) -> frozenset[str]:
    """``A100-80GB`` is an ``a100``: its words without those of its memory."""
    words, _ = _words(gpu.name)
    return frozenset(word for word in words if not re.fullmatch(r"\d+gb", word))


def _of_size(found: Sequence[Gpu], sizes: frozenset[str]) -> list[Gpu]:
    """Those that have one of the sizes in their name; if there are none, those that have no size in it."""
    if not sizes:
        return list(found)
    named = [gpu for gpu in found if _words(gpu.name)[1] & sizes]
    return named or [gpu for gpu in found if not _words(gpu.name)[1]]


def _that_could_be(words: frozenset[str]) -> list[Gpu]:
    """GPUs whose names have all words that were given: ``titan`` could be three."""
    asked = frozenset(word for word in words if not _SIZE.fullmatch(word) or (len(word) > 3 and word.isdigit()))
    return [gpu for gpu in known_gpus() if asked and asked <= _model(gpu)]
