"""The documentation's site builds without a broken link and lists all there is. The contributor's files are well formed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from helpers import ROOT

import memfit
from memfit.cli import COMMANDS
from memfit.ledger import Category
from memfit.ledger.schema import Table
from memfit.torch_compat.versions import NEWEST, OLDEST

BUILD = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("the documentation was built with torch imported")

sys.meta_path.insert(0, NoTorch())
from mkdocs.__main__ import cli
cli(["build", "--strict", "--config-file", sys.argv[1], "--site-dir", sys.argv[2]])
"""


def build_site(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([sys.executable, "-c", BUILD, str(config), str(site)], capture_output=True, text=True, env=quiet)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = tmp_path_factory.mktemp("site")
    done = build_site(ROOT / "mkdocs.yml", made)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def test_every_page_is_there(site):
    for page in ("index.html", "tutorial/index.html", "CONTRIBUTING/index.html", "benchmarks/results/accuracy/index.html"):
        assert (site / page).exists()
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix("") / "index.html").exists() or page.name == "index.md"


def test_reading_it_fetches_nothing(site):
    fetched = r"""(?:<(?:script|img|iframe)[^>]*\ssrc|<link[^>]*\shref)=["']?(https?:)?//[^"'> ]+|url\(["']?https?://|@import"""
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 40
    found = {page.name: match[0] for page in pages if (match := re.search(fetched, page.read_text(encoding="utf-8")))}
    assert not found
    assert re.search(fetched, '<link rel="stylesheet" href="https://fonts.example/css">')


def test_every_command_is_there_with_its_help(site):
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    built = (site / "cli" / "index.html").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"| `memfit {name}` |" in page
        assert f"usage: memfit {name} " in re.sub("<[^>]+>", "", built)


def test_the_reference_has_the_public_names(site):
    page = re.sub("<[^>]+>", "", (site / "api" / "memfit" / "index.html").read_text(encoding="utf-8"))
    for name in memfit.__all__:
        assert name == "__version__" or re.search(rf"\b{name}\b", page), name
    assert "Runs build and the step it returns on a GPU that is not there" in page


@pytest.mark.parametrize(("name", "fails"), [("there", False), ("nowhere", True)])
def test_a_broken_link_fails(tmp_path, name, fails):
    """On a site of few pages, with the same settings: a link to a page outside ``docs/``."""
    (tmp_path / "src").symlink_to(ROOT / "src")
    for path in ("mkdocs_hooks.py", "docs/site.css", "docs/llama3-8b.memfit.gz"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes((ROOT / path).read_bytes())
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "there.md").write_text("# There\n", encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text(f"# Here\n\n[a link](../benchmarks/results/{name}.md)\n", encoding="utf-8")
    config = f"INHERIT: {ROOT / 'mkdocs.yml'}\nnav: [index.md, benchmarks/results/there.md]\nplugins: []\n"
    (tmp_path / "mkdocs.yml").write_text(config, encoding="utf-8")
    done = build_site(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == fails, done.stdout + done.stderr
    assert ("nowhere.md" in done.stdout + done.stderr) == fails


def test_every_category_is_explained():
    page = (ROOT / "docs" / "categories.md").read_text(encoding="utf-8")
    assert [category.label for category in Category if f"| {category.label} |" not in page] == []


def test_one_range_of_torch_everywhere():
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    too_new = f"{NEWEST[0]}.{NEWEST[1] + 1}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"torch>={oldest},<{too_new}" in project["dependencies"]
    assert f"torch {oldest} to {newest}." in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"| torch | {oldest} to {newest}, " in (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    tested = [job["torch"] for job in workflow()["jobs"]["versions"]["strategy"]["matrix"]["include"]]
    assert {f"{oldest}.0", f"{newest}.0"} <= set(tested)
    pinned = re.search(r"^torch==(\d+)\.(\d+)\.", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert OLDEST <= (int(pinned[1]), int(pinned[2])) <= NEWEST


def test_the_maps_show_every_package():
    source = ROOT / "src" / "memfit"
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = re.search(r"## Where is what\?\n\n```\nsrc/memfit/\n(.*?)```", page, re.DOTALL)[1]
    assert set(re.findall(r"^  (\w+)/", tree, re.MULTILINE)) == packages
    rooms = re.search(r"^  phantom/.*\n((?:    .*\n)+)", tree, re.MULTILINE)[1]
    inside = {path.parent.name for path in source.glob("phantom/*/__init__.py")}
    assert set(re.findall(r"^    (\w+)/", rooms, re.MULTILINE)) == inside
    table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)) == packages


def test_the_docs_count_the_tables_of_a_ledger():
    words = ("seven", "eight", "nine", "ten", "eleven", "twelve")
    number = words[len(Table.__subclasses__()) - 7]
    assert f"{number.capitalize()} tables of numpy columns" in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_constants_that_a_recipe_names_exist():
    """``GPUS``, ``BY_PHASE`` and the like; those that are set in the environment have their own names."""
    named = set(re.findall(r"`(_?[A-Z][A-Z_]{3,})`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert len(named) > 5
    assert [name for name in named if not re.search(rf"^{name}\b", sources, re.MULTILINE)] == []


def test_the_quick_tests_are_of_every_package():
    listed = (ROOT / "tests" / "quick.txt").read_text(encoding="utf-8").split()
    assert listed == sorted(set(listed))
    assert [path for path in listed if not (ROOT / path).is_file()] == []
    tested = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    packages = {path.parent.name for path in (ROOT / "src" / "memfit").glob("*/__init__.py")} & tested
    assert packages - {path.split("/")[1] for path in listed} == set()


def workflow():
    return yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))


YAML = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_is_well_formed(path):
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_the_workflow_runs_what_exists():
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = [step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step]
    made = {target for command in commands for target in re.findall(r"\bmake (\S+)", command)}
    assert made == {"test", "pytest", "docs"}
    assert made <= set(targets)
    paths = {path for command in commands for path in re.findall(r"\btests/\S+", command)}
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_bug_report_asks_for_the_doctor():
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug_report.yml").read_text(encoding="utf-8"))
    (asked,) = (part for part in form["body"] if part["id"] == "doctor")
    assert "memfit doctor" in asked["attributes"]["label"]
    assert asked["validations"]["required"]


PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_that_are_named_exist(page):
    """``tests/conftest.py``, ``phantom/world.py`` and the like, as people write them."""
    named = re.findall(r"`((?:[\w.*-]+/)+[\w.*-]+\.(?:py|md|toml|txt|yml|json)|\w+\.py)`", page.read_text(encoding="utf-8"))
    homes = ("", "src/", "src/memfit/", "src/memfit/**/", "docs/", "examples/*/", "benchmarks/", "benchmarks/*/")
    assert [name for name in named if not any(any(ROOT.glob(home + name)) for home in homes)] == []
