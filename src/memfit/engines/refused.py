"""Engines that are not simulated yet: what a script calls first is refused, with advice. One that is simulated has a folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class RefusedEngine:
    """The function of a package that is refused, and what to do in place of it."""

    package: str
    function: str
    advice: str


DEEPSPEED: Final = RefusedEngine(
    package="deepspeed",
    function="initialize",
    advice="What DeepSpeed's ZeRO stages keep on a GPU, FSDP keeps too: predict the script with FSDP in place of it, as "
    "accelerate and the Trainer of transformers have it.",
)

REFUSED: Final = (DEEPSPEED,)
