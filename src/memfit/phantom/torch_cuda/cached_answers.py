"""Answers that torch and its friends keep: those about the machine hold inside the world or outside it, not both."""

from __future__ import annotations

import sys

from memfit.torch_compat.cuda import REMEMBER_THE_GPU
from memfit.torch_compat.defaults import factory_functions
from memfit.torch_compat.fake_tensors import forget_fake_answers
from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
    # Kept for good: which functions a default device concerns. Asked for later, it would be our stand-ins.
    factory_functions()
    _forget()
    patches.finally_call(_forget)


def _forget() -> None:
    # What fake tensors remember of their operators depends on the current device, and on our kernels.
    forget_fake_answers()
    for name in REMEMBER_THE_GPU:
        for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
            if hasattr(value, "cache_clear") and hasattr(value, "cache_info"):
                value.cache_clear()
