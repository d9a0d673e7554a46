"""Writers and readers that open a path in C++ or Rust, where Python's ``open`` is not asked: they are given another path.

A new one is a line in ``WRITERS``. What is not here and writes by itself is refused by the fence.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import torch

from memfit.overlay.union import Union
from memfit.torch_compat.devices import TORCH_C
from memfit.torch_compat.patches import Patches

Lead = Callable[[Union, str], str]
"""Gives the path to open in place of one."""


def to_read(union: Union, path: str) -> str:
    spot = union.find(path)
    return spot.actual if spot is not None and spot.is_changed else path


def to_write(union: Union, path: str) -> str:
    """A file that is written from its beginning."""
    os.close(union.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))
    return to_read(union, path)


def to_update(union: Union, path: str) -> str:
    """A file that is changed in place, or created when it is opened."""
    return union.writable(path)


WRITERS: Final[tuple[tuple[str, str, int, str, Lead], ...]] = (
    # module, function or method, which argument is the path: by number and by name, what is done with it
    ("torch", "save", 1, "f", to_write),
    ("torch.serialization", "save", 1, "f", to_write),
    ("torch", "load", 0, "f", to_read),
    ("torch.serialization", "load", 0, "f", to_read),
    (TORCH_C.__name__, "PyTorchFileWriter", 0, "file_name", to_write),  # torch.export.save, torch.package
    (TORCH_C.__name__, "PyTorchFileReader", 0, "name", to_read),
    ("torch.autograd.profiler", "profile.export_chrome_trace", 1, "path", to_write),
    ("torch.jit", "save", 1, "f", to_write),
    ("torch.jit", "load", 0, "f", to_read),
    ("safetensors", "serialize_file", 1, "filename", to_write),
    ("safetensors", "safe_open", 0, "filename", to_read),
    ("safetensors.torch", "serialize_file", 1, "filename", to_write),
    ("safetensors.torch", "safe_open", 0, "filename", to_read),
    ("safetensors.numpy", "serialize_file", 1, "filename", to_write),
    ("safetensors.numpy", "safe_open", 0, "filename", to_read),
    ("sqlite3", "connect", 0, "database", to_update),
    ("sqlite3.dbapi2", "connect", 0, "database", to_update),
)


def install(patches: Patches, union: Union) -> None:
    for module, name, number, keyword, lead in WRITERS:
        patches.when_imported(module, functools.partial(_lead, patches, union, name, number, keyword, lead))
    patches.when_imported("h5py", lambda h5py: _lead_hdf5(patches, union, h5py.File))
    _lead_storages(patches, union)


def _lead(patches: Patches, union: Union, name: str, number: int, keyword: str, lead: Lead, module: Any) -> None:
    *classes, name = name.split(".")
    owner = functools.reduce(getattr, classes, module)
    if not hasattr(owner, name):
        return

    def make(below: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if keyword in kwargs:
                kwargs[keyword] = led(union, kwargs[keyword], lead)
            elif len(args) > number:
                args = (*args[:number], led(union, args[number], lead), *args[number + 1 :])
            return below(*args, **kwargs)

        return call

    patches.wrap(owner, name, make)


def led(union: Union, path: Any, lead: Lead) -> Any:
    """Open files, databases in memory and addresses are left as they are."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return path
    said = os.fsdecode(path)
    if said.startswith("file:"):  # of sqlite3
        place = urlsplit(said)
        found = unquote(place.path)
        return said if _leaves(union, found) or "mode=memory" in place.query else _address(lead(union, found), place.query)
    return path if _leaves(union, said) else lead(union, said)


def _leaves(union: Union, said: str) -> bool:
    return not said or said.startswith(":memory:") or union.find(said) is None


def _address(path: str, query: str) -> str:
    return urlunsplit(("file", "", quote(path), query, ""))


def _lead_storages(patches: Patches, union: Union) -> None:
    """Files that are mapped into memory: what is shared is written back."""

    def leading(from_file: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(filename: Any, shared: bool | None = False, *args: Any, **kwargs: Any) -> Any:
            return from_file(led(union, filename, to_update if shared else to_read), shared, *args, **kwargs)

        return stand_in

    patches.replace(torch.UntypedStorage, "from_file", staticmethod(leading(torch.UntypedStorage.from_file)))
    patches.wrap(torch, "from_file", leading)


def _lead_hdf5(patches: Patches, union: Union, file: Any) -> None:
    def make(below: Callable[..., Any]) -> Callable[..., Any]:
        def opened(self: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
            lead = to_read if mode == "r" else to_write if mode == "w" else to_update
            below(self, led(union, name, lead), mode, *args, **kwargs)

        return opened

    patches.wrap(file, "__init__", make)
