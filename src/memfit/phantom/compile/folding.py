"""Constants: torch works out on the GPU, while it compiles, what a tensor is filled with. Here it does so on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from memfit.phantom.device.device_alias import INNER, OUTER
from memfit.torch_compat.compiler import CompilerParts
from memfit.torch_compat.dispatch import TorchDispatchMode, tree_map_only
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches


def install(patches: Patches, parts: CompilerParts) -> None:
    patches.wrap(parts.proxy_modes, "unset_fake_temporarily", _then_on_host)
    folder = parts.joint_graph.UniformValueConstantFolder
    for name in ("__init__", "run"):
        patches.wrap(folder, name, _on_host)
    patches.wrap(folder, "_deduce_value", _without_guessing)


class _OnHost(TorchDispatchMode):
    """Maps the GPU to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.device, _host_for, (args, kwargs or {}))
        return func(*args, **kwargs)


def _host_for(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type in (INNER, OUTER) else device


def _then_on_host(make_context: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
    @contextmanager
    def context() -> Iterator[None]:
        with make_context(), _OnHost():  # type: ignore[no-untyped-call, unused-ignore]
            yield

    return context


def _on_host(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _OnHost():  # type: ignore[no-untyped-call, unused-ignore]
            return method(*args, **kwargs)

    return call


def _without_guessing(deduce: Callable[..., Any]) -> Callable[..., Any]:
    """What has no data on the GPU is not known."""

    def deduce_value(folder: Any, node: Any) -> Any:
        value = deduce(folder, node)
        return folder.unknown_value if isinstance(value, FakeTensor) else value

    return deduce_value
