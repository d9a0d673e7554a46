"""Long runs: some steps in full, a level for each, and a file that does not grow; killed, it has what it said it had."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import HELPERS
from helpers.hanging import HANGS_AFTER
from helpers.simulated_history import SimulatedHistory
from torch import nn

from memfit.analysis import find_peak, find_step_peaks
from memfit.errors import ConfigError
from memfit.ledger import Ledger, Phase
from memfit.record.sources.allocator.levels import LevelLog
from memfit.record.sources.allocator.retention import Retention
from memfit.record.tracker import Tracker


def train(steps, retention, tmp_path, peak_at=(), on_step=()):
    file = tmp_path / "run.memfit"
    history = SimulatedHistory(device="cuda:0")
    with history, Tracker(history=history, save_to=file, retention=retention, on_step=on_step) as tracker:
        net = nn.Linear(64, 64)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for step in range(steps):
            net(torch.randn(1000 if step in peak_at else 50, 64)).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return Ledger.load(file).check(), history, tracker


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    return train(120, Retention(first=2, every=40, around_peaks=1), tmp_path_factory.mktemp("long"), peak_at=(50,))


def test_the_first_steps_every_nth_and_those_around_a_new_peak_are_kept(long_run):
    ledger, _, _ = long_run
    kept = set(ledger.step_numbers.tolist())
    assert {0, 1, 40, 50, 51, 80, 119} <= kept, "the last one is read when the recording ends"
    assert not {20, 30, 60, 70, 100} & kept


def test_backward_is_placed_in_steps_that_follow_a_gap(long_run):
    ledger, _, _ = long_run
    is_placed = (ledger.scopes.phase == Phase.BACKWARD) & (ledger.scopes.module >= 0)
    opened = ledger.scope_enter[is_placed]
    steps = ledger.step_numbers[np.searchsorted(ledger.step_starts, opened, side="right") - 1]
    assert {1, 40, 80, 119} <= set(steps.tolist())


def test_every_step_has_a_level(long_run):
    ledger, _, _ = long_run
    assert ledger.levels.last_step.tolist() == list(range(-1, 120))
    assert ledger.levels.has_events[[51, 52]].tolist() == [1, 1]
    assert ledger.levels.has_events[21] == 0


def test_the_peak_is_the_allocators_and_in_the_step_that_made_it(long_run):
    ledger, history, _ = long_run
    peak = find_peak(ledger, 0)
    assert (peak.size_bytes, peak.step) == (history.peak, 50)
    assert int(ledger.levels.peak.max()) == history.peak


def test_after_a_gap_the_categories_are_right_again(long_run):
    ledger, _, _ = long_run
    of_step = {step.step: step.peak.breakdown for step in find_step_peaks(ledger, 0)}
    assert of_step[80] == of_step[40] == of_step[1]


def test_what_was_not_kept_is_not_read(long_run):
    _, history, _ = long_run
    assert history.num_readings < 30


def test_a_file_over_its_size_is_thinned_out_and_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Retention, "__post_init__", lambda self: None)
    ledger, history, _ = train(150, Retention(first=2, every=5, detail_bytes=60_000, level_rows=100), tmp_path, peak_at=(73,))
    assert len(ledger.levels) <= 100
    assert {0, 1, 73} <= set(ledger.step_numbers.tolist())
    assert len(ledger.step_numbers) < 25
    assert find_peak(ledger, 0).size_bytes == history.peak
    assert ledger.info.problem == ""


def test_levels_that_become_one_have_the_higher_peak_and_about_as_many_steps():
    log = LevelLog(most_rows=100)
    for step in range(1000):
        row = dict.fromkeys(("device", "time_ns", "has_events", "reserved", "active", "inactive_split", "largest_free"), 0)
        log.add(first_step=step, last_step=step, peak=1000 if step == 501 else step // 10, allocated=step, **row)
        if log.is_full:
            log.thin_out()
    log.rewind()
    rows = log.take()
    spans = rows.last_step - rows.first_step + 1
    assert len(rows) <= 100
    assert spans.sum() == 1000
    assert (rows.first_step[1:] == rows.last_step[:-1] + 1).all()
    assert rows.peak.max() == 1000
    assert spans[:20].tolist() == [32] * 20


def test_bad_numbers_are_refused():
    for wrong in ({"first": 0}, {"every": 0}, {"around_peaks": -1}, {"detail_bytes": 10}, {"level_rows": 1}):
        with pytest.raises(ConfigError):
            Retention(**wrong)
    with pytest.raises(ConfigError, match="need the history"):
        Tracker(witness="operators", retention=Retention())


def test_each_step_is_told_and_a_listener_that_fails_is_told_no_more(tmp_path):
    told = []

    def fail(figures):
        raise ValueError("no disk")

    ledger, _, _ = train(4, Retention(), tmp_path, on_step=[lambda figures: told.append(figures), fail])
    assert [figures.step for figures in told] == [-1, 0, 1, 2, 3]
    assert told[1].scalars()["memfit/allocated_bytes"] == told[1].allocated > 0
    assert any("no disk" in note for note in ledger.info.notes)


CHILD = """
    import sys
    sys.path.insert(0, {tests!r})
    import torch
    from helpers.simulated_history import SimulatedHistory
    from memfit.record.sources.allocator.retention import Retention
    from memfit.record.tracker import Tracker
    from torch import nn
    torch.set_num_threads(1)
    history, retention = SimulatedHistory(device="cuda:0"), Retention(every=20)
    with history, Tracker(history=history, save_to={file!r}, retention=retention) as tracker:
        net = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        while True:
            net(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            print(tracker.num_steps_on_disk, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill")
def test_a_killed_process_leaves_all_that_it_said_was_on_disk(tmp_path):
    file = tmp_path / "run.memfit"
    code = textwrap.dedent(CHILD.format(tests=str(HELPERS.parent), file=str(file)))
    found = os.environ | {"PYTHONPATH": source()}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=found) as process:
        assert process.stdout is not None
        for wanted in (1, 5, 21):  # read while it runs, too
            line = next(line for line in process.stdout if int(line) >= wanted)
            assert Ledger.load(file).check().levels.last_step.max() >= int(line)
        process.send_signal(signal.SIGKILL)
        said = [int(line) for line in process.stdout.read().split()]
        process.wait(timeout=HANGS_AFTER)
    ledger = Ledger.load(file).check()
    assert ledger.levels.last_step.max() >= max(said, default=21)
    assert {0, 1, 2, 20} <= set(ledger.step_numbers.tolist())
    assert not ledger.info.complete


def source():
    import memfit

    return str(Path(memfit.__file__).parents[1])
