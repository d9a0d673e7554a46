"""PyTorch's own tests of its trackers and estimators, run on PyTorch's and, with the import swapped, on ours.

    python benchmarks/recording/torch_tests.py ~/pytorch           # a checkout of PyTorch, or of its test/distributed/_tools
    python benchmarks/recording/torch_tests.py ~/pytorch --record  # the same, and writes results/torch_tests.md

Nothing of PyTorch is copied: its files are changed in a temporary folder, where they run as they run themselves, by unittest, in a
fresh process each. Most need a GPU, or several. So each file runs in up to three ways:

    cpu       as it is; tests that want a GPU are skipped by themselves
    dynamo    as it is, with PYTORCH_TEST_WITH_DYNAMO=1: test functions are traced by Dynamo
    phantom   in the phantom world of an H200. Its tests of FSDP run as rank 0 of four: torch's base class, which starts processes,
              is replaced by one that joins the phantom's process group, and decorators that count GPUs are satisfied

With a GPU in the machine ``--gpu`` adds a fourth, on that GPU. It needs the expecttest package, as PyTorch's tests do;
PyTorch's solver needs pulp, and its estimator pwlf.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from typing import Any

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "torch_tests.md"
ESTIMATORS = ("test_runtime_estimator", "test_sac_estimator", "test_sac_ilp")
FILES = (
    *("test_mem_tracker", "test_fsdp2_mem_tracker", "test_mod_tracker", "test_memory_tracker", "test_fake_collectives"),
    *ESTIMATORS,
)
WAYS = {
    "cpu": tuple(file for file in FILES if "fsdp" not in file and file not in ESTIMATORS),
    "dynamo": ("test_mod_tracker",),
    "phantom": tuple(file for file in FILES if file != "test_mod_tracker"),
}
"""Tests of FSDP start one process per GPU, so without a GPU they do nothing and pass. Modules are followed without a device, and
the other files skip themselves under Dynamo. Tests of estimators all want a GPU."""
KINDS = ("torch", "memfit")
WORLD_SIZE = 4
LIMIT_S = 300
SWAP = (r"torch\.distributed\._tools\b", "memfit.compat")
Outcomes = dict[str, str]
"""A test's name -> ``passed``, ``skipped``, or what it failed with."""


def swapped(source: str) -> str:
    return re.sub(*SWAP, source)


# -- in a process of its own -----------------------------------------------------------------------------------------------------


class Collected(unittest.TestResult):
    """Outcomes by test; a test with several failures keeps the first."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: Outcomes = {}

    def _note(self, test: Any, outcome: str) -> None:
        if hasattr(test, "_testMethodName"):
            self.outcomes.setdefault(f"{type(test).__name__}.{test._testMethodName}", outcome)
        else:  # a class that could not be set up
            self.outcomes.setdefault(str(test), outcome)

    def addSuccess(self, test: Any) -> None:
        self._note(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        self._note(test, "skipped")

    def addFailure(self, test: Any, error: Any) -> None:
        self._note(test, _in_words(error))

    def addError(self, test: Any, error: Any) -> None:
        self._note(test, _in_words(error))

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        if error is not None:
            self._note(test, _in_words(error))

    def addExpectedFailure(self, test: Any, error: Any) -> None:
        self._note(test, "failed as expected")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._note(test, "passed, which was not expected")


def _in_words(error: Any) -> str:
    kind, value, _ = error
    lines = str(value).strip().splitlines()
    return f"failed: {kind.__name__}: {lines[0] if lines else ''}"[:160]


def run_here(module_name: str, way: str) -> Outcomes:
    """Runs the tests of a file in this process, whose path has it."""
    import torch.testing._internal.common_cuda as torch_cuda
    import torch.testing._internal.common_utils as torch_utils

    if way != "phantom":
        return _run_tests(module_name)
    import memfit

    found: Outcomes = {}

    def build() -> Any:
        def step() -> None:
            torch_utils.TEST_CUDA = torch_cuda.TEST_CUDA = True
            _as_one_rank()
            found.update(_run_tests(module_name))

        return step

    memfit.predict(build, gpu="H200", steps=1, world_size=WORLD_SIZE if "fsdp" in module_name else 1)
    return found


def _run_tests(module_name: str) -> Outcomes:
    result = Collected()
    with redirect_stdout(io.StringIO()):
        unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module_name)).run(result)
    return result.outcomes


def _as_one_rank() -> None:
    """Puts a test case of one process in the place of torch's, which starts one process per GPU."""
    import torch.distributed as dist
    from torch.testing._internal import common_distributed, common_fsdp

    class OneRank(unittest.TestCase):
        rank = 0

        def setUp(self) -> None:
            if not dist.is_initialized():
                dist.init_process_group("nccl")

        def run_subtests(self, *args: Any, **kwargs: Any) -> None:
            common_distributed.run_subtests(self, *args, **kwargs)

    common_fsdp.FSDPTest = OneRank
    common_distributed.skip_if_lt_x_gpu = lambda *args, **kwargs: lambda test: test


# -- all of them -----------------------------------------------------------------------------------------------------------------


def run_all(checkout: pathlib.Path, ways: dict[str, tuple[str, ...]]) -> dict[tuple[str, str], dict[tuple[str, str], str]]:
    """(file, test) -> (way, kind) -> outcome."""
    found: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for file in FILES:
            source = (checkout / "test" / "distributed" / "_tools" / f"{file}.py").read_text()
            for kind in KINDS:
                (pathlib.Path(folder) / f"{kind}_{file}.py").write_text(swapped(source) if kind == "memfit" else source)
            for way, kind in ((way, kind) for way in ways if file in ways[way] for kind in KINDS):
                for test, outcome in _in_fresh_process(folder, f"{kind}_{file}", way).items():
                    found.setdefault((file, test), {})[way, kind] = outcome
                print(f"{file}, {way}, {kind}: done", flush=True)
    return found


def _in_fresh_process(folder: str, module_name: str, way: str) -> Outcomes:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))}
    if way == "dynamo":
        environment["PYTORCH_TEST_WITH_DYNAMO"] = "1"
    command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--here", module_name, "--way", way]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"(the file)": f"failed: not done after {LIMIT_S} s"}
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1]) if lines else {"(the file)": f"failed: {done.stderr.strip().splitlines()[-1:]}"[:160]}


def table(found: dict[tuple[str, str], dict[tuple[str, str], str]], ways: list[str], version: str) -> list[str]:
    import torch

    columns = [(way, kind) for way in ways for kind in KINDS]
    counts = [f"{sum(row.get(column) == 'passed' for row in found.values())}" for column in columns]
    return [
        "PyTorch's own tests of its trackers and estimators, on PyTorch's and, with the import swapped, on ours.",
        f"Tests: those of {version}. Installed: torch {torch.__version__}.",
        "`python benchmarks/recording/torch_tests.py CHECKOUT --record`.",
        "",
        "`cpu`: as they are, without a GPU. `dynamo`: with `PYTORCH_TEST_WITH_DYNAMO=1`; PyTorch itself expects most to fail.",
        f"`phantom`: in memfit's phantom world of an H200, the tests of FSDP as rank 0 of {WORLD_SIZE}, in one process in place",
        "of one per GPU. These tests compare a tracker's peak with the device's own, within 10 %; here the device is the",
        "simulated allocator. An empty cell: not run in that way. What fails on PyTorch's trackers fails with PyTorch's own code.",
        "`test_sac_ilp_case1` asserts shares that PyTorch's fit gives with the prices of an A100, and a baseline that adds up",
        "highest moments of different times: ours is the highest moment, 7 % below.",
        "",
        f"| file | test | {' | '.join(f'{way}: {kind}' for way, kind in columns)} |",
        "|---|---|" + "---|" * len(columns),
        *(
            f"| {file} | {test} | {' | '.join(row.get(column, '') for column in columns)} |"
            for (file, test), row in sorted(found.items(), key=lambda item: (FILES.index(item[0][0]), item[0][1]))
        ),
        f"| | passed | {' | '.join(counts)} |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", nargs="?", type=pathlib.Path, help="a folder with PyTorch's test/distributed/_tools")
    parser.add_argument("--record", action="store_true", help="write the table into results/")
    parser.add_argument("--gpu", action="store_true", help="also on the GPU of this machine")
    parser.add_argument("--here", help="the one module to run in this process, as a line of JSON")
    parser.add_argument("--way", default="cpu")
    args = parser.parse_args()
    if args.here:
        sys.argv = sys.argv[:1]  # torch's tests read the command line
        print("\nRESULT " + json.dumps(run_here(args.here, args.way)), flush=True)
        return
    if args.checkout is None:
        parser.error("say where PyTorch's tests are: a checkout of github.com/pytorch/pytorch")
    ways = WAYS | ({"gpu": FILES} if args.gpu else {})
    found = run_all(args.checkout, ways)
    version = args.checkout / "version.txt"
    lines = table(found, list(ways), version.read_text().strip() if version.exists() else "PyTorch")
    print(*lines, sep="\n")
    if args.record:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
