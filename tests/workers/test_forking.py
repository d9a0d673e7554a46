"""Predictions in a child process."""

from __future__ import annotations

import pytest
from helpers import HELPERS, ROOT
from helpers.prepared_process import run_prepared

PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
CASES = HELPERS / "child_process_cases.py"


def test_a_child_process_says_the_same():
    too_late = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"  # the prepared process has imported memfit
    done = run_prepared(PYTEST, "-q", "-p", "no:xdist", "-W", too_late, str(CASES), cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert "7 passed" in done.stdout


UNTOUCHED = """
import torch
from memfit.predict import api
import memfit

api.has_a_gpu_to_spare = lambda: {apart}
assert memfit.predict(lambda: lambda: torch.ones(512, device="cuda"), steps=1).peak_allocated == 2048
print(torch._C._get_privateuse1_backend_name())
"""


@pytest.mark.parametrize(("apart", "name"), [(True, "privateuseone"), (False, "phantom")])
def test_torch_is_left_as_it_was(apart: bool, name: str):
    done = run_prepared(UNTOUCHED.format(apart=apart))
    assert done.stdout.strip() == name, done.stderr


AT_ONCE = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
from memfit.workers.forking import in_a_child

inside, most = [], 0

def begin():
    inside.append(threading.get_ident())
    global most
    most = max(most, len(inside))
    threading.Event().wait(0.01)  # another thread has time to come in between

os.register_at_fork(before=begin, after_in_parent=lambda: inside.pop())
with ThreadPoolExecutor(4) as pool:
    assert list(pool.map(lambda n: in_a_child(lambda: n), range(8))) == list(range(8))
print(most)
"""


def test_children_are_started_one_after_the_other():
    done = run_prepared(AT_ONCE)
    assert done.stdout.strip() == "1", done.stderr
