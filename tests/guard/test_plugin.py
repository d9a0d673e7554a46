"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib

import pytest
import torch
from helpers import ROOT

import memfit.guard.plugin

pytest_plugins = ("pytester",)

TESTS = """
    import memfit
    import torch

    WIDTH = {width}

    def build():
        weight = torch.zeros(WIDTH, 1024, 1024, device="cuda", requires_grad=True)

        def step():
            (weight * 2).sum().backward()
            weight.grad = None

        return step

    def test_budget(memfit_predict):
        assert memfit_predict(build, gpu="A100-40GB").peak_reserved < "{budget}"

    def test_golden():
        memfit.assert_no_regression(build, golden="golden/run.memfit", gpu="A100-40GB")
"""

INSTALLED = any(entry.value == "memfit.guard.plugin" for entry in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "memfit.guard.plugin")
"""pytest finds the plugin by itself where memfit was installed with it."""


@pytest.fixture(scope="module", autouse=True)
def everything_imported() -> None:
    """pytester forgets what a run inside this process has imported, and torch cannot be imported twice."""
    memfit.predict(lambda: lambda: torch.ones(1, device="cuda", requires_grad=True).sum().backward())


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Runs the tests with a model of that width."""
    monkeypatch.delenv("MEMFIT_UPDATE", raising=False)

    def run_tests(*args: str, width: int = 4, budget: str = "38GiB") -> pytest.RunResult:
        pytester.makepyfile(test_memory=TESTS.format(width=width, budget=budget))
        return pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", *args)

    return run_tests


def test_a_budget_that_is_kept(run):
    run("-k", "budget").assert_outcomes(passed=1, deselected=1)


def test_a_budget_that_is_not_kept_shows_where_the_memory_goes(run):
    done = run("-k", "budget", budget="30MiB")
    done.assert_outcomes(failed=1, deselected=1)
    done.stdout.fnmatch_lines(
        [
            "*assert *MiB (* bytes) < '30MiB'",
            "*where * = Prediction(* allocated, * reserved, on A100-40GB).peak_reserved",
            "*memfit: Prediction(*",
            "The peak by category",
            "*other*32.00 MiB*",
        ]
    )


def test_a_golden_ledger_from_its_birth_to_its_failure(run, pytester: pytest.Pytester):
    missing = run("-k", "golden")
    missing.assert_outcomes(failed=1, deselected=1)
    missing.stdout.fnmatch_lines(
        ["*there is no golden ledger *run.memfit: to write it, run pytest with --memfit-update, and commit it"]
    )

    written = run("-k", "golden", "--memfit-update")
    written.assert_outcomes(passed=1, deselected=1)
    written.stdout.fnmatch_lines([f"memfit: wrote {pytester.path / 'golden' / 'run.memfit'}"])

    run("-k", "golden").assert_outcomes(passed=1, deselected=1)

    grown = run("-k", "golden", width=5)
    grown.assert_outcomes(failed=1, deselected=1)
    grown.stdout.fnmatch_lines(
        ["*MemoryGrewError*allocated grew from *", "*The blocks behind it", "*If that is meant, run pytest with --memfit-update."]
    )
    grown.stdout.no_fnmatch_line("*golden.py*")


def test_golden_ledgers_lie_where_the_project_does_not_where_pytest_was_started(
    run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    pytester.makeini("[pytest]")
    test = pytester.path / "test_memory.py"
    monkeypatch.chdir(pytester.mkdir("below"))
    run("-k", "golden", "--memfit-update", str(test)).assert_outcomes(passed=1, deselected=1)
    assert (pytester.path / "golden" / "run.memfit").exists()


def test_what_the_docs_show(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MEMFIT_UPDATE", raising=False)
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guard.md").read_text(), re.DOTALL)
    pytester.makepyfile(test_docs=snippet)
    pytester.runpytest_inprocess(*PLUGIN, "--memfit-update").assert_outcomes(passed=2)
    assert (pytester.path / "tests" / "golden" / "model.memfit").exists()
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=2)


def test_the_option_is_in_the_help(run):
    said = run("--help")
    assert said.ret == 0
    said.stdout.fnmatch_lines(["memfit:", "*--memfit-update*"])


def test_loading_the_plugin_is_cheap():
    code = "import sys, memfit.guard.plugin; print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_pytest_is_told_of_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"memfit": "memfit.guard.plugin"}
    assert not any(need.startswith("pytest") for need in project["dependencies"])
