"""The engine in C touches no memory but its own, and computes nothing that C leaves undefined: sanitizers watch it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from helpers.engine_corpus import CORPUS, read_case
from helpers.extreme_runs import ExtremeRun, seeded_run
from helpers.sanitized_engine import build_driver, serve

from memfit.allocator.engine import Outcome, compiling, python

NUM_SEEDED = 8_000


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = build_driver(tmp_path_factory.mktemp("sanitized"))
    if isinstance(made, str):
        pytest.skip(made)
    return made


def assert_as_in_python(runs: list[ExtremeRun], outcomes: list[Outcome]) -> None:
    for run, outcome in zip(runs, outcomes, strict=True):
        expected = python.run(run.prepared, run.rules)
        for field in fields(Outcome):
            assert np.array_equal(getattr(expected, field.name), getattr(outcome, field.name)), (field.name, run.said)


def test_the_runs_that_once_broke_it(driver: Path):
    runs = [read_case(path) for path in CORPUS]
    assert_as_in_python(runs, serve(driver, runs))


def test_runs_from_seeds(driver: Path):
    runs = [seeded_run(seed) for seed in range(NUM_SEEDED)]
    assert_as_in_python(runs, serve(driver, runs))


def test_a_machine_without_memory(driver: Path):
    """Every growth of an array is refused once: nothing is lost, nothing is used that is not there."""
    runs = [read_case(path) for path in CORPUS] + [seeded_run(seed) for seed in range(200)]
    for outcome, refused in zip(serve(driver, runs), serve(driver, runs, refuse_growth=True), strict=True):
        for field in fields(Outcome):
            assert np.array_equal(getattr(outcome, field.name), getattr(refused, field.name)), field.name


# -- each of these checks is needed: without it, a sanitizer or the comparison speaks up ---------------------------------------

CHECKS = {
    "a request larger than the range": ("expandable.h", "if (size > range_bytes_of(engine, home)) {", "if (0) {"),
    "a block that shares its segment": ("allocator.h", "return whole(block) && !block->expandable;", "return !block->expandable;"),
    "a block that ranks like another": ("blocks.h", "while (free->items[index] != number) {", "while (0) {"),
    "the memory of an array": ("run.c", "    free(engine->held);\n", ""),
    "arithmetic in 64 bits": ("allocator.h", "lowest_address - size >= LOWEST_ADDRESS;", "lowest_address * 4096 > size;"),
}


@pytest.mark.parametrize("check", CHECKS)
def test_a_broken_engine_is_found_out(check: str, driver: Path, tmp_path: Path):
    name, good, bad = CHECKS[check]
    source = shutil.copytree(compiling.HERE / "csrc", tmp_path / "csrc")
    text = (source / name).read_text()
    assert text.count(good) == 1
    (source / name).write_text(text.replace(good, bad))
    broken = build_driver(tmp_path, source)
    assert isinstance(broken, Path)
    runs = [read_case(path) for path in CORPUS]
    with pytest.raises((subprocess.CalledProcessError, AssertionError)):
        assert_as_in_python(runs, serve(broken, runs))
