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
