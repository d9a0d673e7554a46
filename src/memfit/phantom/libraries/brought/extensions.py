"""``torch.utils.cpp_extension.load`` and ``load_inline``: C++ and CUDA that is compiled when a script runs.

C++ alone is compiled and works. CUDA takes minutes, a toolkit and a GPU: it is not compiled. What its functions allocate and return
is read from their C++ (``cpp_source.py``); their kernels take no memory of their own. A function that cannot be read fails when
it is called, by name, and says what to do: many scripts compile kernels that they use on some paths only. An operator that the
script has described with ``register_fake`` works.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from memfit.errors import NeedsGpuError
from memfit.phantom.current import current
from memfit.phantom.libraries.brought.cpp_source import CppError, CppFunction, functions_in, names_for_python
from memfit.phantom.tensors.tensor_annotations import forget_data
from memfit.torch_compat.patches import Patches

KIND = "the CUDA extension"


def install(patches: Patches) -> None:
    patches.when_imported("torch.utils.cpp_extension", lambda module: _replace(patches, module))


def _replace(patches: Patches, module: Any) -> None:
    load, load_inline = module.load, module.load_inline

    def checked_load(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        files = [sources] if isinstance(sources, (str, Path)) else list(sources)
        if kwargs.get("with_cuda") or any(str(file).endswith((".cu", ".cuh")) for file in files):
            texts = [Path(file).read_text(errors="replace") for file in files if Path(file).is_file()]
            return _not_compiled(name, texts, kwargs)
        return load(name, sources, *args, **kwargs)

    def checked_load_inline(name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **kwargs: Any) -> Any:
        if cuda_sources or kwargs.get("with_cuda"):
            texts = [text for each in (cpp_sources, cuda_sources) for text in ([each] if isinstance(each, str) else each or ())]
            return _not_compiled(name, texts, kwargs)
        return load_inline(name, cpp_sources, cuda_sources, *args, **kwargs)

    patches.replace(module, "load", checked_load)
    patches.replace(module, "load_inline", checked_load_inline)


def _not_compiled(name: str, sources: list[str], options: dict[str, Any]) -> Any:
    current().say(
        f"{KIND} {name} was not compiled: what its functions allocate was read from their C++, and their kernels take no time here"
    )
    text = "\n".join(sources)
    functions = functions_in(text)
    by_name = functions | {named: functions[inner] for named, inner in names_for_python(text).items() if inner in functions}
    return Extension(name, KIND, by_name) if options.get("is_python_module", True) else None


class Extension(ModuleType):
    """A module of compiled functions. Those that can be read allocate what they would; others are refused when they are called."""

    def __init__(self, name: str, kind: str = KIND, functions: Mapping[str, CppFunction] | None = None) -> None:
        super().__init__(name)
        self.__dict__.update(_kind=kind, _functions=functions or {})

    def __getattr__(self, function: str) -> Any:
        if function.startswith("__"):
            raise AttributeError(function)
        return _ExtensionFunction(self, function)


class _ExtensionFunction:
    def __init__(self, extension: Extension, name: str) -> None:
        self._extension, self.__name__ = extension, name
        self.__signature__ = inspect.Signature()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self._extension.__dict__["_functions"].get(self.__name__)
        if function is None:
            raise self._refusal("")
        try:
            result = function(*args, **kwargs)
        except CppError as problem:
            raise self._refusal(f" Its C++ could not be read here: {problem}.") from None
        forget_data(*(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)))
        return result

    def _refusal(self, why: str) -> NeedsGpuError:
        return NeedsGpuError(
            f"{self.__name__} of {self._extension.__dict__['_kind']} {self._extension.__name__}",
            "Switch to an implementation in plain PyTorch for the prediction, or make it a custom operator that says what it "
            f"returns (torch.library.custom_op with register_fake).{why}",
        )
