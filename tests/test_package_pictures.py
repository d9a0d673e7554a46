"""Each package's docstring opens with its picture: the files in it are there, and every file is in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import memfit

SOURCE = Path(memfit.__file__).parent
USERS_FILES = {"train.py"}
"""Not ours: what users call their scripts."""

PACKAGES = sorted(SOURCE.rglob("__init__.py"))


def missing_files(folder: Path, docstring: str) -> set[str]:
    """The Python files that a docstring names and that are neither in its package nor below the top of memfit or of the project."""
    named = set(re.findall(r"[\w/]+\.py\b", docstring)) - USERS_FILES
    return {name for name in named if not any((home / name).exists() for home in (folder, SOURCE, SOURCE.parents[1]))}


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: str(path.parent.relative_to(SOURCE.parent)))
def test_the_files_in_a_picture_exist(path: Path):
    assert missing_files(path.parent, ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "") == set()


def test_the_proof_of_the_pictures_can_fail():
    assert missing_files(SOURCE / "ledger", "builder.py ──> gone.py, ledger/schema.py") == {"gone.py"}


def absent_from_picture(folder: Path, docstring: str) -> set[str]:
    """The modules and packages in a folder that its docstring does not name."""
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py", "__main__.py"}
    packages = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    return {name for name in modules | packages if not re.search(rf"(?<![\w]){re.escape(name)}", docstring)}


@pytest.mark.parametrize(
    "path", [path for path in PACKAGES if path.parent != SOURCE], ids=lambda path: str(path.parent.relative_to(SOURCE.parent))
)
def test_every_file_is_in_its_picture(path: Path):
    """But for the top of memfit, which CONTRIBUTING.md and docs/architecture.md draw."""
    assert absent_from_picture(path.parent, ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "") == set()


def test_the_proof_that_files_are_drawn_can_fail():
    drawn = " ".join(path.name for path in (SOURCE / "guard").glob("*.py"))
    assert absent_from_picture(SOURCE / "guard", drawn) == set()
    assert absent_from_picture(SOURCE / "guard", drawn.replace("plugin.py", "plugins")) == {"plugin.py"}
