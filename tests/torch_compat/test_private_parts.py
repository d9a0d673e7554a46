"""Private parts of torch are reached through torch_compat alone, and each is where memfit knows it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import memfit
from memfit.diagnosis import diagnose
from memfit.torch_compat.attributes import ADDED, READ
from memfit.torch_compat.patches import active_patches
from memfit.torch_compat.versions import NEWEST, OLDEST, installed_torch

SOURCE = Path(memfit.__file__).parent
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if "torch_compat" not in path.parts]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_private_path(value: object) -> bool:
    return isinstance(value, str) and value.startswith("torch.") and "._" in value and " " not in value


def dotted(node: ast.expr) -> list[str]:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [*([node.id] if isinstance(node, ast.Name) else ["..."]), *reversed(parts)]


@functools.cache
def own_names() -> set[str]:
    """Private names that memfit's own classes and modules define."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
    return found


OTHERS = {"argparse", "ctypes", "sys", "ForkingPickler", "_file_openers"}
"""Private parts of Python's own library and of numpy, which are not torch."""

OF_OTHERS = {"_from_config", "_TYPES", "_name_", "_value_", "_allocate_or_extend_buffers", "_actions", "_choices_actions"}
"""Of argparse: the flags and commands of a parser. Of transformers: its factory of models without weights. Of safetensors: the
names of types in its files. Of enum: a member's. Of DeepSpeed: a pipeline's buffers for what it receives."""


def private_uses(code: str) -> Iterator[str]:
    """Uses of what torch does not promise."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root, *parts = dotted(node)
            if root in OTHERS or root in ("self", "cls", "aten") or parts[:1] == ["ops"] or node.attr in OF_OTHERS:
                continue
            if root == "torch" or (node.attr not in READ and node.attr not in own_names()):
                yield ".".join([root, *parts])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            path = (node.module or "").split(".")
            yield from (f"{node.module}.{name.name}" for name in node.names if is_private(name.name) and name.name not in READ)
            if any(map(is_private, path)):
                yield f"from {node.module}"
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("torch.") and "._" in name.name)
        elif isinstance(node, ast.Constant) and is_private_path(node.value):
            yield str(node.value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nobody_reaches_past_torch_compat(path: Path):
    assert list(private_uses(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "code",
    [
        "torch._C._swap_tensor_impl(a, b)",
        "import torch._subclasses.fake_tensor",
        "from torch._subclasses import fake_tensor",
        "from torch.distributed.fsdp import _runtime_utils",
        "name = 'torch.distributed.fsdp._runtime_utils'",
        "tensor._no_such_thing_of_ours",
    ],
)
def test_the_search_can_find_something(code: str):
    assert list(private_uses(code))


def objects() -> dict[str, object]:
    """Something that has each of the attributes that are read in place."""
    from torch.distributed.fsdp import MixedPrecision, _optim_utils
    from torch.distributed.fsdp._flat_param import FlatParamHandle
    from torch.distributed.tensor import placement_types
    from torch.nn.modules import batchnorm

    sparse = torch.ones(2).to_sparse()
    with_node = torch.ones(1, requires_grad=True) * 2
    return {
        "_schema": torch.ops.aten.add.Tensor,
        "_opname": torch.ops.aten.add.Tensor,
        "_cdata": torch.ones(1).untyped_storage(),
        "_base": torch.ones(2)[:1],
        "_is_view": torch.ones(2)[:1],
        "_indices": sparse,
        "_values": sparse,
        "_parameters": nn.Linear(1, 1),
        "_buffers": nn.BatchNorm1d(1),
        "_flat_weights": nn.LSTM(1, 1),
        "_flat_weights_names": nn.LSTM(1, 1),
        "_destroy": torch.library.Library("memfit_test", "FRAGMENT"),
        "_sequence_nr": with_node.grad_fn,
        "_fully_sharded_module": _has_in_source(FlatParamHandle, "_fully_sharded_module"),
        "_module_classes_to_ignore": MixedPrecision(),
        "_BatchNorm": batchnorm,
        "_StridedShard": placement_types,
        "_OptimStateKey": _optim_utils,
    }


def _has_in_source(kind: type, name: str) -> object:
    """A handle is made by FSDP1 alone; that it sets the attribute is in its code."""
    import inspect
    import types

    return types.SimpleNamespace(**{name: None}) if f"self.{name} =" in inspect.getsource(kind) else object()


@pytest.mark.parametrize("name", READ)
def test_an_attribute_that_is_read_in_place_is_there(name: str):
    assert hasattr(objects()[name], name)


def test_what_is_replaced_in_torch_was_there():
    from memfit.job import PredictOptions
    from memfit.phantom.distributed.environment import RankInfo
    from memfit.predict.session import PhantomSession

    with PhantomSession.prepare(PredictOptions(gpu="H200"), RankInfo()).running():
        absent = [patch.place for patch in active_patches() if not patch.was_there]
    moved = [place for place in absent if is_private(place.rpartition(".")[2]) and place.rpartition(".")[2] not in ADDED]
    assert moved == []


def test_every_private_part_is_found():
    found = diagnose()
    assert [part.missing for part in found.parts if part.missing] == []
    assert sum(len(part.found) for part in found.parts) >= 60
    assert found.is_supported == (OLDEST <= installed_torch() <= NEWEST)
