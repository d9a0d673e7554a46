"""A worker: each job in a child that finds the world as a new process would, but for what it imported of torch."""

import sys
from pathlib import Path

import pytest

from memfit.workers.lanes import CAN_FORK, WorkerLane

WORK = """
import sys

def work(job):
    answer = {"had": [name in sys.modules for name in ("torch.utils.benchmark", "of_the_user")], "state": STATE[:]}
    import torch.utils.benchmark, of_the_user
    STATE.append(job["number"])
    return answer

STATE = []
"""


@pytest.mark.skipif(not CAN_FORK, reason="a worker answers one job and ends")
def test_the_next_job_finds_torch_imported_and_nothing_else_of_the_job_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a_job.py").write_text(WORK)
    (tmp_path / "of_the_user.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lane = WorkerLane((sys.executable, "-m", "memfit.workers.worker", "a_job"))
    try:
        answers = [lane.answer({"number": number}) for number in range(2)]
    finally:
        lane.stop()
    assert answers == [{"had": [False, False], "state": []}, {"had": [True, False], "state": []}]
