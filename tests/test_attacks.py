"""A short run of every attack; and that whatever falls is seen."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess

import pytest
from helpers import ROOT
from helpers.falling_attacks.falls import FALLS
from helpers.prepared_process import run_prepared

from attack import attacks

ON_FILES = (
    "cells",
    "descriptors",
    "engines",
    "folders",
    "full disk",
    "journals",
    "ledgers",
    "odd files",
    "snapshots",
    "traces",
)
ON_TRAINING = ("forks", "kills", "recorder errors", "threads")
"""A case of these takes ten times as long as one of a file."""
ON_RUNS = ("configs", "dry runs", "plans", "signals")
"""Processes, and models that are made."""


RUN = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('attack', run_name='__main__', alter_sys=True)"


def attack(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patches:
        for name, value in variables.items():
            patches.setenv(name, value)
        return run_prepared(RUN, str(ROOT), *arguments, cwd=ROOT)


@pytest.mark.parametrize(
    ("names", "num_cases"), [(ON_FILES, 150), (ON_TRAINING, 20), (ON_RUNS, 12)], ids=["on files", "on training", "on runs"]
)
def test_nothing_falls_in_a_short_run(names: tuple[str, ...], num_cases: int):
    only = [word for name in names for word in ("--only", name)]
    done = attack("--cases", str(num_cases), "--seed", "1", *only)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.splitlines() == [f"{name}: {num_cases} cases, 0 fell" for name in names]
    assert "nothing fell. Seed 1." in done.stdout


def test_the_short_run_is_of_every_attack():
    modules = [importlib.import_module(f"attack.attacks.{found.name}") for found in pkgutil.iter_modules(attacks.__path__)]
    assert sorted(module.ATTACK.name for module in modules) == sorted(ON_FILES + ON_TRAINING + ON_RUNS)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "a promise was not kept"),
        (1, "KeyError: 'something'"),
        (2, "the process ended with SIGSEGV"),
        (3, "it took more than 1 s of CPU time"),
        (4, "nothing was heard of it for 5 s"),
        (5, "MemoryError"),
        (6, "Executed: os.system"),
        (7, "Executed: pickle.find_class"),
        (8, "Executed: it writes"),
        (9, "ended in a traceback"),
        (10, "refused, but not in one line"),
        (11, "SystemExit"),
    ],
    ids=[fall.__name__ for fall in FALLS],
)
def test_what_falls_is_seen(number: int, said: str):
    done = attack("--attacks", "helpers.falling_attacks", "--cases", "1", FALL=str(number))
    assert done.returncode == 1
    assert said in done.stdout
    assert said in done.stderr, "what fell is shown when its attack is over"
    assert "python -m attack --only 'falls' --case 0 --seed 0" in done.stdout


def test_what_holds_is_counted():
    done = attack("--attacks", "helpers.falling_attacks", "--cases", "7", FALL=str(len(FALLS)))
    assert done.returncode == 0, done.stdout
    assert "7 damaged files and 7 commands: nothing fell" in done.stdout


def test_each_attack_tries_something_however_short_the_time_is():
    done = attack("--attacks", "helpers.falling_attacks", "--seconds", "0", FALL=str(len(FALLS)))
    assert done.returncode == 0, done.stdout
    assert "2 damaged files and 2 commands: nothing fell" in done.stdout


def test_an_attack_that_tried_nothing_is_named_and_fails():
    done = attack("--attacks", "helpers.falling_attacks", "--cases", "0")
    assert done.returncode == 1
    assert "NOT TRIED, so nothing is known of: falls" in done.stdout


def test_one_case_can_be_repeated():
    done = attack("--only", "ledgers", "--case", "5", "--seed", "3")
    assert done.returncode == 0
    assert "ledgers: 1 cases, 0 fell" in done.stderr


def test_another_case_goes_on_after_one_that_died():
    done = attack("--attacks", "helpers.falling_attacks", "--cases", "4", FALL="2")
    assert all(f"falls, case {number} fell" in done.stdout for number in range(4))


def test_an_attack_that_is_not_there():
    assert attack("--only", "nobody").returncode == 2
