"""Saving and loading where the GPU's tensors hold nothing to save.

::

    torch.save     of phantom tensors, on an overlay (memfit run): a file that says what was saved, without data
                   of phantom tensors, on real files: no file is written, for it might be taken for a checkpoint; what was saved is
                   remembered
    torch.load     of either: phantom tensors again
                   of a real file: real data on the host, phantom tensors on the GPU
    safetensors, torch.distributed.checkpoint: likewise; on an overlay there are files of the right names, without data

Saving takes no memory of a GPU: torch copies one storage after the other to the host.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from memfit.overlay import in_force
from memfit.phantom.tensors.tensor_annotations import ON_GPU
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.dispatch import tree_map, without_modes
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches

MARK = b"memfit predicted this checkpoint; it holds no data\n"


def install(patches: Patches, assumptions: Assumptions) -> None:
    shelf = Shelf(torch.save, torch.load, assumptions)
    for module in (torch, torch.serialization):
        patches.replace(module, "save", shelf.save)
        patches.replace(module, "load", shelf.load)
    patches.replace(torch.UntypedStorage, "cuda", _to_gpu)
    _install_random_states(patches, assumptions)
    patches.when_imported("safetensors.torch", lambda module: _install_safetensors(patches, module, assumptions))
    patches.when_imported("torch.distributed.checkpoint", lambda module: _install_dcp(patches, module, assumptions))


class Shelf:
    """What was saved, by path, without its data."""

    def __init__(self, save: Callable[..., None], load: Callable[..., Any], assumptions: Assumptions) -> None:
        self._save, self._load, self._assumptions = save, load, assumptions
        self._by_path: dict[str, bytes] = {}

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        described = self._describe(obj)
        if described is None:
            with without_modes():
                self._save(obj, f, *args, **kwargs)
            return
        self._assumptions.add("torch.save was passed over: it would have written a file, and taken nothing of the GPU")
        if isinstance(f, (str, os.PathLike)) and in_force():
            Path(f).write_bytes(described)
        elif isinstance(f, (str, os.PathLike)):
            self._by_path[os.path.abspath(f)] = described
        else:
            f.write(described)

    def load(self, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        described = self._described(f)
        if described is not None:
            return _Rebuilder(io.BytesIO(described.removeprefix(MARK)), self._load, map_location).load()
        if isinstance(f, (str, os.PathLike)) and zipfile.is_zipfile(f):
            kwargs["mmap"] = True  # of what goes to the GPU, nothing is ever read
        on_gpu: dict[int, str] = {}
        with without_modes():
            loaded = self._load(f, _remembering(map_location, on_gpu), *args, **kwargs)
        return _to_phantom(loaded, on_gpu)

    def _described(self, f: Any) -> bytes | None:
        """What was saved there without data."""
        if not isinstance(f, (str, os.PathLike)):
            return _marked(f)
        described = self._by_path.get(os.path.abspath(f))
        if described is None and os.path.isfile(f):
            with open(f, "rb") as file:
                return _marked(file)
        return described

    def _describe(self, obj: Any) -> bytes | None:
        """An object with its tensors' shapes and without their data; ``None`` if all its tensors have data."""
        file = io.BytesIO()
        pickler = _Describer(file, self._save)
        pickler.dump(obj)
        return MARK + file.getvalue() if pickler.found else None


# -- without data ------------------------------------------------------------------------------------------------------------


class _Describer(pickle.Pickler):
    """Pickles everything but tensors; those with data are saved as torch does it."""

    found = False

    def __init__(self, file: Any, save: Callable[..., None]) -> None:
        super().__init__(file)
        self._save = save

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, FakeTensor):
            self.found = True
            return tuple(obj.shape), obj.dtype, str(obj.device), isinstance(obj, nn.Parameter), obj.requires_grad, id(obj)
        if isinstance(obj, (torch.Tensor, torch.UntypedStorage, torch.storage.TypedStorage)):
            file = io.BytesIO()
            with without_modes():
                self._save(obj, file)
            return file.getvalue()
        return None


class _Rebuilder(pickle.Unpickler):
    def __init__(self, file: Any, load: Callable[..., Any], map_location: Any) -> None:
        super().__init__(file)
        self._load, self._map_location = load, map_location
        self._made: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, bytes):
            on_gpu: dict[int, str] = {}
            with without_modes():
                loaded = self._load(io.BytesIO(pid), _remembering(self._map_location, on_gpu), weights_only=False)
            return _to_phantom(loaded, on_gpu)
        shape, dtype, device, is_parameter, requires_grad, number = pid
        if number not in self._made:
            made = torch.empty(shape, dtype=dtype, device=_located(self._map_location, device))
            self._made[number] = nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)
        return self._made[number]


def _marked(file: Any) -> bytes | None:
    """What a file-like object holds, if it is ours."""
    at = file.tell()
    if file.read(len(MARK)) == MARK:
        return bytes(file.read())
    file.seek(at)
    return None


# -- where to ----------------------------------------------------------------------------------------------------------------


def _located(map_location: Any, location: str) -> str:
    """The device that a storage saved on ``location`` is to be loaded to."""
    if map_location is None:
        return location
    if isinstance(map_location, dict):
        return str(map_location.get(location, location))
    if callable(map_location) and not isinstance(map_location, torch.device):
        moved = map_location(torch.UntypedStorage(0), location)
        return getattr(moved, ON_GPU, "cpu") if moved is not None else location
    return str(map_location)


def _to_gpu(storage: torch.UntypedStorage, device: Any = None, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
    """``storage.cuda()`` in a function that maps locations: it stays, and says where it should be."""
    setattr(storage, ON_GPU, "cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else str(device))
    return storage


def _remembering(map_location: Any, on_gpu: dict[int, str]) -> Callable[[torch.UntypedStorage, str], torch.UntypedStorage]:
    """Loads everything to the host, and keeps in mind what belongs elsewhere."""

    def stay(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
        device = _located(map_location, location)
        if device != "cpu":
            on_gpu[storage._cdata] = device
        return storage

    return stay


def _to_phantom(loaded: Any, on_gpu: dict[int, str]) -> Any:
    moved: dict[int, torch.Tensor] = {}

    def move(value: Any) -> Any:
        if isinstance(value, nn.Module):
            return value._apply(move)
        if not isinstance(value, torch.Tensor) or type(value) is FakeTensor:
            return value
        storage = value.untyped_storage()
        device = on_gpu.get(storage._cdata)
        if device is None:
            return value
        if storage._cdata not in moved:
            moved[storage._cdata] = torch.empty(storage.nbytes() // value.element_size(), dtype=value.dtype, device=device)
        placed = moved[storage._cdata].as_strided(value.shape, value.stride(), value.storage_offset())
        if isinstance(value, nn.Parameter):
            return nn.Parameter(placed, value.requires_grad)
        return placed.requires_grad_(value.requires_grad)

    return tree_map(move, loaded) if on_gpu else loaded


def _install_random_states(patches: Patches, assumptions: Assumptions) -> None:
    """A random state that came back from the GPU has no data, and none is needed: nothing that is drawn changes a size."""

    def make(below: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
        def set_rng_state(new_state: torch.Tensor) -> None:
            try:
                below(new_state)
            except RuntimeError:
                assumptions.add("the state of the random numbers was not restored: it went by way of the GPU, which keeps no data")

        return set_rng_state

    for module in (torch, torch.random):
        patches.wrap(module, "set_rng_state", make)


# -- other formats -----------------------------------------------------------------------------------------------------------


def _install_safetensors(patches: Patches, module: Any, assumptions: Assumptions) -> None:
    """Between collecting the tensors' addresses and writing what is there."""
    collect = next((name for name in ("_flatten_as_ptr", "_flatten") if hasattr(module, name)), None)
    if collect is None:
        return
    flatten = getattr(module, collect)

    names = {dtype: name for name, dtype in module._TYPES.items()}

    def flatten_real(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if any(type(tensor) is FakeTensor for tensor in tensors.values()):
            return _Header(tensors, names)
        return flatten(tensors, *args, **kwargs)

    def writing(write: Callable[..., Any], write_empty: Callable[..., Any]) -> Callable[..., Any]:
        def write_real(flat: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(flat, _Header):
                return write(flat, *args, **kwargs)
            assumptions.add("safetensors were not written: there are no data, and it would have taken nothing of the GPU")
            return write_empty(flat, *args, **kwargs)

        return write_real

    patches.replace(module, collect, flatten_real)
    patches.replace(module, "serialize_file", writing(module.serialize_file, _Header.write))
    patches.replace(module, "serialize", writing(module.serialize, lambda flat, *args, **kwargs: b""))


class _Header:
    """A safetensors file whose data are a hole: it has its size and takes no space. The header is as the format's README has it."""

    def __init__(self, tensors: dict[str, torch.Tensor], names: dict[torch.dtype, str]) -> None:
        self._entries: dict[str, Any] = {}
        self._size_bytes = 0
        for name, tensor in tensors.items():
            end = self._size_bytes + tensor.numel() * tensor.element_size()
            self._entries[name] = {
                "dtype": names[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [self._size_bytes, end],
            }
            self._size_bytes = end

    def write(self, filename: Any, metadata: dict[str, str] | None = None) -> None:
        if not in_force():
            return
        said = json.dumps(({"__metadata__": metadata} if metadata else {}) | self._entries).encode()
        said += b" " * (-len(said) % 8)
        with open(filename, "wb") as file:
            file.write(len(said).to_bytes(8, "little") + said)
            file.truncate(8 + len(said) + self._size_bytes)


def _install_dcp(patches: Patches, package: Any, assumptions: Assumptions) -> None:
    """What knows how to make its own state is asked for it, which may gather what is sharded."""
    passed_over = "torch.distributed.checkpoint was passed over: nothing was written, and nothing read"

    def save(state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        for value in state_dict.values():
            if hasattr(value, "state_dict"):
                value.state_dict()
        checkpoint = kwargs.get("checkpoint_id")
        if in_force() and checkpoint is not None:
            os.makedirs(checkpoint, exist_ok=True)
            Path(checkpoint, ".metadata").write_bytes(MARK)
        assumptions.add(passed_over)
        return Done()

    def load(state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        for value in state_dict.values():
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(value.state_dict())
        assumptions.add(passed_over)

    for module, name, stand_in in (
        (package.state_dict_saver, "save", save),
        (package.state_dict_saver, "async_save", save),
        (package.state_dict_loader, "load", load),
    ):
        patches.replace(module, name, stand_in)
        patches.replace(package, name, stand_in)


class Done:
    """A future, and metadata, of something that is over."""

    def result(self, timeout: float | None = None) -> Done:
        return self

    def done(self) -> bool:
        return True

    def wait(self) -> Done:
        return self
