"""Who may import whom, and that looking at a ledger needs no torch. Each proof is proved able to fail."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import memfit
from memfit.testing import ledger

SOURCE = Path(memfit.__file__).parent

# -- no torch ----------------------------------------------------------------------------------------------------------------

WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch was imported")

sys.meta_path.insert(0, NoTorch())
"""

TORCH_FREE = [
    name
    for name in (
        "memfit",
        "memfit.ledger",
        "memfit.allocator",
        "memfit.analysis",
        "memfit.explain",
        "memfit.views",
        "memfit.testing",
        "memfit.cli",
        "memfit.guard.plugin",
    )
    if importlib.util.find_spec(name)
]


def run_without_torch(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT_TORCH + code, *argv], capture_output=True, text=True)


@pytest.mark.parametrize("name", TORCH_FREE)
def test_it_is_imported_without_torch(name: str):
    done = run_without_torch(f"import {name}")
    assert done.returncode == 0, done.stderr


def test_a_ledger_is_loaded_and_shown_without_torch(tmp_path: Path):
    ledger("alloc 4MiB parameter w").save(tmp_path / "run.memfit")
    done = run_without_torch(
        "import memfit.cli; assert memfit.build_report(memfit.Ledger.load(sys.argv[2])); sys.exit(memfit.cli.main())",
        "show",
        str(tmp_path / "run.memfit"),
    )
    assert done.returncode == 0, done.stderr
    assert "peak 4.00 MiB" in done.stdout


def test_a_report_is_drawn_without_torch(tmp_path: Path):
    ledger("alloc 4MiB parameter w on cuda:0").save(tmp_path / "run.memfit")
    code = "import memfit.cli; sys.exit(memfit.cli.main())"
    done = run_without_torch(code, "report", str(tmp_path / "run.memfit"), "-o", str(tmp_path / "page.html"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize("code", ["import torch", "from torch import nn", "import memfit.views; import torch.nn"])
def test_the_proof_without_torch_can_fail(code: str):
    done = run_without_torch(code)
    assert done.returncode != 0
    assert "torch was imported" in done.stderr


# -- arrows ------------------------------------------------------------------------------------------------------------------

BASE = {"errors", "units", "hardware", "reading"}
LEDGER = BASE | {"ledger"}
EVERYTHING = LEDGER | {
    "allocator",
    "analysis",
    "explain",
    "views",
    "record",
    "compat",
    "fsdp",
    "models",
    "compare",
    "phantom",
    "predict",
    "torch_compat",
    "testing",
    "cli",
}
MAY_IMPORT = {
    "errors": set(),
    "units": {"errors"},
    "hardware": {"errors", "units"},
    "reading": {"errors", "units"},
    "ledger": BASE,
    "allocator": LEDGER,
    "analysis": LEDGER | {"allocator"},
    "explain": LEDGER | {"allocator", "analysis"},
    "testing": LEDGER,
    "torch_compat": {"errors"},
    "record": LEDGER | {"allocator", "torch_compat"},
    "integrations": LEDGER | {"analysis", "record"},
    "views": LEDGER | {"allocator", "analysis", "explain"},
    "compat": LEDGER | {"allocator", "analysis", "record", "torch_compat"},
    "phantom": BASE | {"torch_compat"},
    "fsdp": {"errors", "record", "torch_compat"},
    "predict": LEDGER | {"allocator", "analysis", "phantom", "record", "torch_compat", "views"},
    "prediction": {"predict"},
    "guard": LEDGER | {"analysis", "predict", "views"},
    "models": {"errors", "fsdp", "reading"},
    "compare": BASE | {"models", "phantom", "predict", "views"},
    "comparison": {"compare"},
    "cli": EVERYTHING,
}
"""The arrows of the picture in docs/architecture.md: each part of memfit, and the parts it may lean on."""

DRAWS_ITSELF = {"ledger/ledger.py": {"views"}}
"""A ledger draws itself in a notebook: a method imports the view when it is called."""


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(code: str) -> set[str]:
    """The parts of memfit that a file imports, anywhere in it; the version is free to all."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("memfit.")}
    return found - {"__version__"}


def wrong_arrows(part: str, code: str) -> set[str]:
    return imported_parts(code) - MAY_IMPORT[part] - {part}


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_arrows_point_the_right_way(path: Path):
    assert part_of(path) in MAY_IMPORT, "a new part of memfit: draw it into the picture, then list it here"
    allowed = DRAWS_ITSELF.get(path.relative_to(SOURCE).as_posix(), set())
    assert not wrong_arrows(part_of(path), path.read_text(encoding="utf-8")) - allowed


@pytest.mark.parametrize(
    ("part", "code", "wrong"),
    [
        ("ledger", "from memfit.analysis import build_report", {"analysis"}),
        ("ledger", "import memfit.record.tracker", {"record"}),
        ("errors", "from memfit import units", {"units"}),
        ("analysis", "def later():\n    from memfit.views.terminal import show", {"views"}),
        ("analysis", "if TYPE_CHECKING:\n    from memfit.record import Tracker", {"record"}),
        ("views", "from memfit.analysis import Report\nfrom memfit.views.escaping import printable", set()),
        ("cli", "from memfit import __version__", set()),
    ],
)
def test_the_proof_of_the_arrows_can_fail(part: str, code: str, wrong: set[str]):
    assert wrong_arrows(part, code) == wrong
