"""Benchmarks are where every text says they are, and the index lists each of them and what it writes."""

from __future__ import annotations

import re

import pytest
from helpers import ROOT

BENCHMARKS = ROOT / "benchmarks"
GONE = "benchmarks/" + "gone/away.py"
INDEX = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
SCRIPTS = sorted(path.relative_to(BENCHMARKS).as_posix() for path in BENCHMARKS.glob("*/*.py"))
READERS = (
    *(
        path
        for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/**/*.md", ".github/**/*.md")
        for path in ROOT.glob(pattern)
    ),
    *(path for folder in ("src", "tests", "benchmarks", "attack", "docs") for path in (ROOT / folder).rglob("*.py")),
)


def paths_in(text: str) -> set[str]:
    return set(re.findall(r"\bbenchmarks/[\w/]+\.py\b", text))


def test_every_path_that_is_named_exists():
    named = {
        (path, reader.relative_to(ROOT).as_posix()) for reader in READERS for path in paths_in(reader.read_text(encoding="utf-8"))
    }
    assert len(named) > 100
    assert sorted(found for found in named if not (ROOT / found[0]).exists()) == []


def test_the_reader_of_paths_finds_one():
    assert paths_in(f"see `python {GONE} --now`") == {GONE}


def test_the_index_lists_every_script():
    assert sorted(re.findall(r"^\| `(\w+/\w+\.py)` \|", INDEX, re.MULTILINE)) == [
        path for path in SCRIPTS if not path.startswith("truth/")
    ]
    assert "`truth/measure_settings.py`" in INDEX


@pytest.mark.parametrize(
    "line", [line for line in INDEX.splitlines() if re.match(r"\| `\w+/\w+\.py` \|", line)], ids=lambda line: line.split("`")[1]
)
def test_what_a_script_writes_is_there(line):
    """In ``results/``, or in ``truth/`` where the name begins so."""
    written = re.findall(r"`([\w./*]+\.(?:md|json|toml|json\.gz|npz))`", line.rpartition(" | ")[2])
    homes = [BENCHMARKS if name.startswith("truth/") else BENCHMARKS / "results" for name in written]
    assert [name for name, home in zip(written, homes, strict=True) if not any(home.glob(name))] == []


def test_every_result_has_a_script():
    listed = set(re.findall(r"`([\w.]+\.(?:md|json|toml))`", INDEX))
    results = {path.name for path in (BENCHMARKS / "results").iterdir() if path.is_file()}
    assert sorted(results - listed) == []
