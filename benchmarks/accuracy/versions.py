"""Run the tests with other releases of torch and Python than development has, and keep what came out.

    python benchmarks/accuracy/versions.py --python python3.12 --torch 2.11.0         # an environment of its own, then deleted
    python benchmarks/accuracy/versions.py --python python3.12 --torch 2.11.0 tests   # all tests, in place of those of four rooms
    python benchmarks/accuracy/versions.py --environment FOLDER                       # an environment that is there, and stays
    python benchmarks/accuracy/versions.py --environment FOLDER --junit A.xml B.xml   # of runs that were made before

Needs some 6 GB of disk for an environment. First ``memfit doctor``, then pytest. Writes ``results/versions.json``, a row for each
pair of releases, and the table in ``docs/compatibility.md``. Of several runs the last outcome of a test counts.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
PAGE = ROOT / "docs" / "compatibility.md"
ROOMS = ["tests/torch_compat", "tests/phantom", "tests/predict", "tests/record"]
NOT_NEEDED = ("mypy", "ruff", "pre-commit", "nvidia-")
"""NVIDIA's libraries come with the release of torch, in versions of its own."""
BEGIN, END = "<!-- written by benchmarks/accuracy/versions.py -->", "<!-- end -->"


@contextmanager
def fresh_environment(python: str, torch: str) -> Iterator[pathlib.Path]:
    """An environment with that torch, and with everything else as development pins it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        pinned = (ROOT / "constraints.txt").read_text().splitlines()
        kept = [line for line in pinned if not line.startswith((*NOT_NEEDED, "torch=="))]
        constraints = pathlib.Path(folder, "constraints.txt")
        constraints.write_text("\n".join([*kept, f"torch=={torch}"]) + "\n")
        needed = [line.split("==")[0] for line in kept if "==" in line]
        install = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", "--constraint", str(constraints)]
        subprocess.run([*install, f"torch=={torch}", *needed], check=True)
        subprocess.run([*install, "--no-deps", "--editable", str(ROOT)], check=True)
        yield pathlib.Path(folder)


def versions_of(python: pathlib.Path) -> dict[str, str]:
    say = "import json, platform, torch; print(json.dumps({'python': platform.python_version(), 'torch': torch.__version__}))"
    found: dict[str, str] = json.loads(subprocess.run([python, "-c", say], capture_output=True, text=True, check=True).stdout)
    return found


def run_tests(python: pathlib.Path, tests: Sequence[str]) -> pathlib.Path:
    """Where the outcome of each test is. Two processes, as ``make test`` has them."""
    junit = pathlib.Path(tempfile.mkdtemp(), "junit.xml")
    options = ["-q", "-p", "no:cacheprovider", "--numprocesses", "2", "--dist", "worksteal", f"--junitxml={junit}"]
    subprocess.run([python, "-m", "pytest", *options, *tests], cwd=ROOT)
    return junit


def outcomes(junit: Sequence[pathlib.Path]) -> dict[str, str]:
    """By test: passed, skipped or failed. Of several runs the last counts."""
    found = {}
    for path in junit:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def row_of(python: pathlib.Path, tests: Sequence[str], junit: Sequence[pathlib.Path]) -> dict:
    doctor = subprocess.run([python, "-m", "memfit", "doctor"], cwd=ROOT, capture_output=True, text=True)
    found = outcomes(junit)
    counts = {kind: list(found.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    failures = sorted(test for test, outcome in found.items() if outcome == "failed")
    return versions_of(python) | {"doctor": doctor.returncode == 0, "tests": list(tests), "failures": failures} | counts


def table(rows: Sequence[dict]) -> str:
    lines = ["| torch | Python | `memfit doctor` | tests | passed | failed | skipped |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        rooms = "all" if row["tests"] == ["tests"] else ", ".join(test.removeprefix("tests/") for test in row["tests"])
        counts = " | ".join(f"{row[kind]:,}" for kind in ("passed", "failed", "skipped"))
        lines.append(f"| {row['torch']} | {row['python']} | {'passes' if row['doctor'] else 'fails'} | {rooms} | {counts} |")
    return "\n".join(lines)


def keep(row: dict) -> None:
    """In place of what was there of the same releases."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = [kept for kept in rows if (kept["torch"], kept["python"]) != (row["torch"], row["python"])]
    rows = sorted([*rows, row], key=lambda each: (each["torch"], each["python"]))
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    written = f"{BEGIN}\n{table(rows)}\n{END}"
    PAGE.write_text(re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: written, PAGE.read_text(), flags=re.DOTALL))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", default=ROOMS, help=f"for pytest; {' '.join(ROOMS)} if none")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of a new environment")
    parser.add_argument("--torch", default="", help="the release of torch in a new environment")
    parser.add_argument("--environment", type=pathlib.Path, help="an environment that is there")
    parser.add_argument("--junit", nargs="+", type=pathlib.Path, help="what pytest --junitxml wrote there before; runs nothing")
    args = parser.parse_args()
    if args.environment is not None:
        python = args.environment / "bin" / "python"
        keep(row_of(python, args.tests, args.junit or [run_tests(python, args.tests)]))
        return
    if not args.torch:
        parser.error("name a release: --torch 2.11.0")
    with fresh_environment(args.python, args.torch) as environment:
        python = environment / "bin" / "python"
        keep(row_of(python, args.tests, [run_tests(python, args.tests)]))


if __name__ == "__main__":
    main()
