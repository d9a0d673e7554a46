"""``torch.cuda._compile_kernel``: CUDA C that a script compiles when it runs, with NVRTC.

A kernel returns nothing: what it works on the script has allocated, and that is all the memory there is to it. A launch is passed
over, and what was known of its arguments is known no longer. How long it takes nobody can tell from outside.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from memfit.phantom.current import current
from memfit.phantom.tensors.tensor_annotations import forget_data
from memfit.torch_compat.patches import Patches

COMPILE: Final = "_compile_kernel"


def install(patches: Patches) -> None:
    if hasattr(torch.cuda, COMPILE):
        patches.replace(torch.cuda, COMPILE, _compile_kernel)


def _compile_kernel(kernel_source: str, kernel_name: str, *args: Any, **kwargs: Any) -> RuntimeKernel:
    return RuntimeKernel(kernel_name)


class RuntimeKernel:
    """Is launched, and does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), args: Any = None, *more: Any, **kwargs: Any) -> None:
        current().say(f"the kernel {self.name}, which the script compiles itself, was not run, and takes no time here")
        forget_data(*(args or ()))

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None: ...
