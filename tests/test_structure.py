"""How the source is laid out: folders are not too full, and a class name means one thing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import memfit

SOURCE = Path(memfit.__file__).parent
FOLDERS = sorted(path.parent for path in SOURCE.rglob("__init__.py"))

MOST_MODULES = 14


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(SOURCE.parent)))
def test_a_folder_can_be_taken_in_at_a_glance(folder: Path):
    modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES, "put together what is read together, or make a folder of some"


SAME_NAME_ON_PURPOSE = {
    "MemfitCallback": "the same thing to users of Hugging Face's Trainer and of Lightning",
    "SwiGLU": "a stand-in is called as the class of xformers that it stands in for",
    "Engine": "memfit.fsdp.Engine is what users write, memfit.engines.Engine what it chooses",
}


def classes_by_name() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    return found


def test_a_class_name_means_one_thing():
    twice = {name: places for name, places in classes_by_name().items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in SAME_NAME_ON_PURPOSE} == {}
    assert set(SAME_NAME_ON_PURPOSE) <= set(twice), "an exception that is not needed any more"
