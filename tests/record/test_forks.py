"""A forked child has a copy of the tracker: it does not record, and the file is left to the parent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import memfit
from memfit.errors import ConfigError
from memfit.ledger import Ledger, LedgerBuilder
from memfit.ledger import builder as builder_module
from memfit.ledger.journal import Journal, path_of_rank
from memfit.record.sources.operators.session import OperatorSession

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no forks")


class Embedded(Dataset):
    """Applies a module in the worker, as some transforms do."""

    def __init__(self) -> None:
        self.transform = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            return self.transform(torch.full((4,), float(index)))


def step(model: nn.Module) -> None:
    model(torch.ones(2, 4)).sum().backward()


def in_a_child(work: object) -> int:
    """Forward only: torch refuses backward in a child if its parent has used autograd's threads, as a prediction does."""
    child = os.fork()
    if child == 0:
        try:
            work()  # type: ignore[operator]
        except SystemExit as leaving:
            os._exit(int(leaving.code or 0))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_workers_of_a_loader_leave_the_parents_journal_alone(tmp_path: Path):
    model, path = nn.Linear(4, 4), tmp_path / "run.memfit"
    with memfit.track(model, save_to=path) as tracker:
        batches = list(DataLoader(Embedded(), batch_size=4, num_workers=2, multiprocessing_context="fork"))
        step(model)
    assert len(batches) == 2
    assert set(_module_kinds(tracker.ledger.check())) == {"Linear"}
    assert len(Ledger.load(path).check().events) == len(tracker.ledger.events)


def _module_kinds(ledger: Ledger) -> list[str]:
    return [ledger.strings[kind] for kind in ledger.modules.kind]


def test_a_child_that_leaves_the_block_does_not_end_the_parents_file(tmp_path: Path):
    model, path = nn.Linear(4, 4), tmp_path / "run.memfit"

    def leave() -> None:
        model(torch.ones(2, 4))
        tracker.__exit__(None, None, None)
        sys.exit(3)

    tracker = memfit.track(model, save_to=path)
    with tracker:
        step(model)
        assert in_a_child(leave) == 3
        assert not Ledger.load(path).info.complete
        step(model)
    saved = Ledger.load(path).check()
    assert saved.info.complete
    assert len(saved.events) == len(tracker.ledger.events)
    assert (saved.scopes.module >= 0).sum() == 4  # forward and backward of two calls; none of the child's


def test_a_child_computes_and_can_record_for_itself(tmp_path: Path):
    model = nn.Linear(4, 4)

    def record() -> None:
        with memfit.track(model, save_to=tmp_path / "child.memfit"):
            model(torch.ones(2, 4))

    with memfit.track(model) as tracker:
        assert in_a_child(record) == 0
    assert len(tracker.ledger.check().scopes) == 0
    assert len(Ledger.load(tmp_path / "child.memfit").check().scopes) > 0


def test_a_file_that_another_process_writes_is_refused(tmp_path: Path):
    path = tmp_path / "run.memfit"
    journal = Journal(path)

    def track() -> None:
        try:
            memfit.track(save_to=path)
        except ConfigError as error:
            sys.exit(7 if "another recording is writing to it" in str(error) else 1)

    assert in_a_child(track) == 7
    journal.close()
    memfit.track(save_to=path)


def test_a_file_that_was_replaced_is_told(tmp_path: Path):
    path = tmp_path / "run.memfit"
    tracker = memfit.track(save_to=path)
    tracker.__enter__()
    path.unlink()
    path.write_bytes(b"somebody else's")
    with pytest.warns(RuntimeWarning, match="another process has replaced"):
        tracker.__exit__(None, None, None)
    assert path.read_bytes() == b"somebody else's"
    assert not tracker.ledger.info.complete


@pytest.mark.parametrize(
    ("path", "rank", "world_size", "written"),
    [
        ("run.memfit", 0, 1, "run.memfit"),
        ("run.memfit", 0, 2, "run.rank0.memfit"),
        ("a/run.memfit", 3, 8, "a/run.rank3.memfit"),
        ("run-{rank}.memfit", 3, 8, "run-3.memfit"),
        ("run-{rank}.memfit", 0, 1, "run-0.memfit"),
    ],
)
def test_every_rank_has_a_file_of_its_own(path: str, rank: int, world_size: int, written: str):
    assert path_of_rank(path, rank, world_size) == Path(written)


def test_ranks_of_a_job_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    trackers = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        trackers.append(memfit.track(save_to=tmp_path / "run.memfit"))
    assert [tracker.path.name for tracker in trackers] == ["run.rank0.memfit", "run.rank1.memfit"]


def test_two_recordings_of_one_ledger_are_held_once(tmp_path: Path):
    builder = LedgerBuilder()
    sessions = [OperatorSession(builder), OperatorSession(builder)]
    assert in_a_child(lambda: None) == 0
    assert builder.hold_still()  # nobody else holds it still
    builder.go_on()
    del sessions


def test_a_flush_that_hangs_does_not_hang_a_fork(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(builder_module, "HOLD_SECONDS", 0.01)
    builder = LedgerBuilder()
    session = OperatorSession(builder)
    assert builder.hold_still()  # as a thread does that writes to a disk which does not answer
    assert in_a_child(lambda: None) == 0
    assert not builder.hold_still()
    builder.go_on()
    del session


ONE_THREAD = """
    import os
    import sys
    import threading

    def count():
        global num_threads
        num_threads = len(os.listdir("/proc/self/task"))

    os.register_at_fork(before=count)  # the first to be registered is the last to be called
    import torch
    from torch import nn

    import memfit

    torch.set_num_threads(1)
    model = nn.Linear(4, 4)
    with memfit.track(model, save_to=sys.argv[1]):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            assert "memfit journal" in [thread.name for thread in threading.enumerate()]
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            assert num_threads == 1, num_threads
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted there")
def test_a_program_of_one_thread_forks_as_one(tmp_path: Path):
    """Python 3.12 and newer warn where a process of several threads forks; here, a warning is an error. Python 3.13 counts them
    when ours are back."""
    script, path = tmp_path / "train.py", tmp_path / "run.memfit"
    script.write_text(textwrap.dedent(ONE_THREAD))
    command = [sys.executable, "-W", "default" if sys.version_info[:2] == (3, 13) else "error", str(script), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert Ledger.load(path).check().info.complete
