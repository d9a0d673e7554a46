"""``kernels.get_kernel``: compiled kernels from Hugging Face's hub.

A build is for one version of torch and CUDA, and is loaded from a network: neither is there. Repositories that hold flash_attn are
answered by what is known of flash_attn. Others are loaded as modules whose functions are refused by name when they are called,
since what they return is not known.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from memfit.phantom.current import current
from memfit.phantom.libraries.brought.extensions import Extension
from memfit.phantom.libraries.flash_attention import FUNCTIONS_2, FUNCTIONS_3
from memfit.phantom.libraries.stand_ins import Fill, filling, is_stand_in
from memfit.torch_compat.patches import Patches

KNOWN: Final[dict[str, dict[str, Any]]] = {
    "flash-attn": FUNCTIONS_2,
    "flash-attn2": FUNCTIONS_2,
    "flash-attn3": FUNCTIONS_3,
    "flash-attention-3": FUNCTIONS_3,
    "vllm-flash-attn3": FUNCTIONS_3,
}
"""By the last part of a repository's name."""


def get_kernel(repo_id: str, *args: Any, **kwargs: Any) -> ModuleType:
    """Also ``get_locked_kernel`` and ``load_kernel``."""
    name = repo_id.rpartition("/")[2]
    functions = KNOWN.get(name.replace("_", "-"))
    if functions is None:
        current().say(f"the kernels of {repo_id} were not loaded: using them would end the prediction")
        return Extension(repo_id, "the hub's kernels")
    current().say(f"the kernels of {repo_id} take the memory that flash_attn takes, by its sources")
    module, interface = ModuleType(name), ModuleType("flash_attn_interface")
    module.__dict__.update(functions, flash_attn_interface=interface)
    interface.__dict__.update(functions)
    return module


def _has_kernel(*args: Any, **kwargs: Any) -> bool:
    return True


FUNCTIONS: Final = {"get_kernel": get_kernel, "get_locked_kernel": get_kernel, "load_kernel": get_kernel, "has_kernel": _has_kernel}

MODULES: dict[str, Fill] = {"kernels": filling(**FUNCTIONS)}


def install(patches: Patches) -> None:
    def replace(module: Any) -> None:
        if not is_stand_in(module):
            for name, function in FUNCTIONS.items():
                if hasattr(module, name):
                    patches.replace(module, name, function)

    patches.when_imported("kernels", replace)
