"""Predictions in a child process."""

from __future__ import annotations

import subprocess
import sys

from helpers import HELPERS

CASES = HELPERS / "child_process_cases.py"


def test_a_child_process_says_the_same():
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", CASES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "9 passed" in done.stdout
