"""Who may import whom, and that looking at a ledger needs no torch. Each proof is proved able to fail."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import memfit
from memfit.testing import ledger

SOURCE = Path(memfit.__file__).parent
ROOT = Path(__file__).parent.parent

# -- no torch ----------------------------------------------------------------------------------------------------------------

WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch was imported")

sys.meta_path.insert(0, NoTorch())
"""

TORCH_FREE = (
    "memfit",
    "memfit.allocator",
    "memfit.analysis",
    "memfit.choices",
    "memfit.cli",
    "memfit.compare",
    "memfit.drawing",
    "memfit.explain",
    "memfit.guard.plugin",
    "memfit.job",
    "memfit.ledger",
    "memfit.models",
    "memfit.plan",
    "memfit.serve.instant",
    "memfit.serve.folder",
    "memfit.testing",
    "memfit.views",
    "memfit.views.drawings",
    "memfit.workers",
)


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


def test_a_ledger_draws_itself_without_torch(tmp_path: Path):
    ledger("alloc 4MiB parameter w on cuda:0").save(tmp_path / "run.memfit")
    code = "import memfit, rich; run = memfit.Ledger.load(sys.argv[1]); rich.print(run); print(run._repr_html_())"
    done = run_without_torch(code, str(tmp_path / "run.memfit"))
    assert done.returncode == 0, done.stderr
    assert "peak 4.00 MiB" in done.stdout
    assert "<svg" in done.stdout


@pytest.mark.parametrize(
    ("command", "flag", "value"),
    [
        *((command, "--world-size", "1000000000") for command in ("predict", "compare", "plan", "max-batch", "max-seq")),
        ("predict", "--world-size", "two"),
        ("predict", "--batch", "-1"),
        ("predict", "--steps", "1000000000000000000"),
        ("plan", "--batch", "1000000000000000000"),
    ],
)
def test_a_mistake_is_told_before_torch_is_imported(command: str, flag: str, value: str):
    """Torch takes seconds to import."""
    done = run_without_torch("import memfit.cli; sys.exit(memfit.cli.main())", command, "--model", "gpt2", flag, value)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith("memfit: error: ")


@pytest.mark.parametrize("code", ["import torch", "from torch import nn", "import memfit.views; import torch.nn"])
def test_the_proof_without_torch_can_fail(code: str):
    done = run_without_torch(code)
    assert done.returncode != 0
    assert "torch was imported" in done.stderr


# -- imports -----------------------------------------------------------------------------------------------------------------

FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]
"""All but the list of public names, which points at everything and is imported with everything."""


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("memfit", *parts)).removesuffix(".__init__")


def imported_names(code: str) -> set[str]:
    """What a file imports of memfit anywhere in it, also for type checks and inside functions.

    The version is free to all; a public name that is used as ``memfit.name`` counts as imported from where it lives.
    """
    tree, found = ast.parse(code), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "memfit":
            found |= {f"{home}.{name}" for name, home in memfit._HOMES.items() if name == node.attr}
    return {name for name in found if name.startswith("memfit.")} - {"memfit.__version__"}


def module_graph(codes: dict[str, str]) -> dict[str, set[str]]:
    """Which modules each module imports, by name."""
    return {name: {_module_of(imported, codes) for imported in imported_names(code)} - {name, ""} for name, code in codes.items()}


def _module_of(imported: str, modules: Iterable[str]) -> str:
    """The module that an imported name is, or is in."""
    while imported and imported not in modules:
        imported = imported.rpartition(".")[0]
    return imported


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or by way of others."""
    return [sorted(group) for group in _components(graph) if len(group) > 1]


def _components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components: whoever is reached from a module and reaches it too."""
    backwards: dict[str, set[str]] = {name: set() for name in graph}
    for name, imported in graph.items():
        for other in imported:
            backwards[other].add(name)
    left, found = set(graph), []
    while left:
        name = next(iter(left))
        group = _reached(name, graph) & _reached(name, backwards)
        found.append(group)
        left -= group
    return found


def _reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    found, waiting = {start}, [start]
    while waiting:
        fresh = graph[waiting.pop()] - found
        found |= fresh
        waiting += fresh
    return found


@functools.cache
def own_graph() -> dict[str, set[str]]:
    """memfit's own, read when a test needs it, not when tests are collected."""
    return module_graph({module_name(path): path.read_text(encoding="utf-8") for path in FILES})


def test_no_modules_import_each_other():
    assert cycles(own_graph()) == []


def test_the_proof_that_there_are_no_cycles_can_fail():
    codes = {
        "memfit.a": "from memfit.b import thing",
        "memfit.b": "def later():\n    import memfit.c",
        "memfit.c": "if TYPE_CHECKING:\n    from memfit.a import Thing",
        "memfit.d": "import memfit.a",
    }
    assert cycles(module_graph(codes)) == [["memfit.a", "memfit.b", "memfit.c"]]
    assert cycles(module_graph(codes | {"memfit.c": "import os"})) == []
    assert cycles(own_graph() | {"memfit.errors": {"memfit.cli"}}) != []


# -- arrows ------------------------------------------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "architecture.md"
HEAD = "```text\n                 "
"""How the drawing of the arrows begins: with the numbers of its columns."""

Arrows = dict[str, set[str]]
"""The parts of memfit in order, and the parts that each leans on."""


def part_of(module: str) -> str:
    return module.split(".")[1]


def used_arrows(graph: dict[str, set[str]]) -> Arrows:
    found: Arrows = {}
    for module, imported in graph.items():
        found.setdefault(part_of(module), set()).update(map(part_of, imported))
    return {part: others - {part} for part, others in found.items()}


def drawn_arrows(page: str) -> Arrows:
    """The arrows of the drawing: a dot in a row says that its part leans on the part whose number stands above."""
    _, _, drawing = page.partition(HEAD)
    rows = [line for line in drawing.partition("```")[0].splitlines()[1:] if line.strip()]
    names = [line[3:17].strip() for line in rows]
    return {
        name: {other for number, other in enumerate(names) if line[17 + 3 * number : 20 + 3 * number].strip() == "●"}
        for name, line in zip(names, rows, strict=True)
    }


def draw_arrows(arrows: Arrows) -> str:
    """The drawing, its parts in an order in which every part comes after all that it leans on."""
    names = list(TopologicalSorter({name: sorted(others) for name, others in sorted(arrows.items())}).static_order())
    lines = ["".join(f"{number:>3}" for number in range(1, len(names) + 1))]
    for number, name in enumerate(names):
        dots = ["  ●" if other in arrows[name] else "  ·" if other == name else "   " for other in names[: number + 1]]
        lines.append(f"{number + 1:>2} {name:<14}{''.join(dots)}")
    return HEAD + "\n".join(lines) + "\n"


def test_the_drawing_shows_every_arrow_and_no_other():
    used, drawn = used_arrows(own_graph()), drawn_arrows(PAGE.read_text(encoding="utf-8"))
    assert used.keys() == drawn.keys(), STALE
    unknown = {part: used[part] - drawn[part] for part in used if used[part] - drawn[part]}
    assert not unknown, f"new arrows. {STALE}"
    unused = {part: drawn[part] - used[part] for part in used if drawn[part] - used[part]}
    assert not unused, f"arrows that nobody uses. {STALE}"


STALE = "If that is meant, redraw docs/architecture.md: python tests/test_imports.py"


def test_every_arrow_points_upwards():
    drawn = drawn_arrows(PAGE.read_text(encoding="utf-8"))
    order = list(drawn)
    assert [(part, other) for part in drawn for other in drawn[part] if order.index(other) >= order.index(part)] == []


def test_results_know_no_views():
    used = used_arrows(own_graph())
    assert [part for part in ("ledger", "analysis", "allocator", "explain", "predict", "compare") if "views" in used[part]] == []


@pytest.mark.parametrize(
    ("module", "code", "arrows"),
    [
        ("memfit.ledger.x", "from memfit.analysis import build_report", {"analysis"}),
        ("memfit.ledger.x", "import memfit.record.tracker", {"record"}),
        ("memfit.errors", "from memfit import units", {"units"}),
        ("memfit.analysis.x", "def later():\n    from memfit.views.terminal import show", {"views"}),
        ("memfit.analysis.x", "if TYPE_CHECKING:\n    from memfit.record import Tracker", {"record"}),
        ("memfit.ledger.x", "import memfit\nmemfit.predict(build)", {"predict"}),
        ("memfit.views.x", "from memfit.analysis import Report\nfrom memfit.views.escaping import printable", {"analysis"}),
        ("memfit.cli.x", "import memfit\nfrom memfit import __version__\nprint(memfit.__version__, memfit.__file__)", set()),
    ],
)
def test_the_proof_of_the_arrows_can_fail(module: str, code: str, arrows: set[str]):
    modules = dict.fromkeys(own_graph(), "")
    assert used_arrows(module_graph(modules | {module: code}))[part_of(module)] == arrows


def test_the_drawing_is_read_as_it_is_drawn():
    arrows = {"errors": set(), "units": {"errors"}, "views": {"errors", "units"}}
    assert drawn_arrows(draw_arrows(arrows)) == arrows
    assert drawn_arrows(draw_arrows(used_arrows(own_graph()))) == used_arrows(own_graph())
    with pytest.raises(CycleError):
        draw_arrows(arrows | {"errors": {"views"}})


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    before, head, after = page.partition(HEAD)
    assert head, "the drawing is gone from docs/architecture.md"
    PAGE.write_text(before + draw_arrows(used_arrows(own_graph())) + "```" + after.partition("```")[2], encoding="utf-8")
