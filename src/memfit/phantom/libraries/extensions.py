"""``torch.utils.cpp_extension.load`` and ``load_inline``: CUDA code that is compiled when a script runs.

Compiling it takes minutes and a toolkit, and leads nowhere: what it does to tensors is not known. Making one does not fail, since
many scripts compile kernels that they use on some paths only. The first call of one of its functions fails, by name, and says what
to do. An operator that the script has described with ``register_fake`` works.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from memfit.errors import NeedsGpuError
from memfit.phantom.current import current
from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
    patches.when_imported("torch.utils.cpp_extension", lambda module: _replace(patches, module))


def _replace(patches: Patches, module: Any) -> None:
    load, load_inline = module.load, module.load_inline

    def checked_load(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        files = [sources] if isinstance(sources, str) else list(sources)
        if kwargs.get("with_cuda") or any(str(file).endswith((".cu", ".cuh")) for file in files):
            return _not_compiled(name, kwargs)
        return load(name, sources, *args, **kwargs)

    def checked_load_inline(name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **kwargs: Any) -> Any:
        if cuda_sources or kwargs.get("with_cuda"):
            return _not_compiled(name, kwargs)
        return load_inline(name, cpp_sources, cuda_sources, *args, **kwargs)

    patches.replace(module, "load", checked_load)
    patches.replace(module, "load_inline", checked_load_inline)


def _not_compiled(name: str, options: dict[str, Any]) -> Any:
    current().say(f"the CUDA extension {name} was not compiled: using it would end the prediction")
    return Extension(name) if options.get("is_python_module", True) else None


class Extension(ModuleType):
    """A module whose functions are unknown."""

    def __getattr__(self, function: str) -> Any:
        if function.startswith("__"):
            raise AttributeError(function)
        return _UnknownFunction(self.__name__, function)


class _UnknownFunction:
    def __init__(self, extension: str, name: str) -> None:
        self._extension, self.__name__ = extension, name
        self.__signature__ = inspect.Signature()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NeedsGpuError(
            f"{self.__name__} of the CUDA extension {self._extension}",
            "Switch to an implementation in plain PyTorch for the prediction, or make it a custom operator that says what it "
            "returns (torch.library.custom_op with register_fake).",
        )
