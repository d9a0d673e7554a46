"""Prediction meets reality: where both part, by module and phase."""

from dataclasses import replace

import torch
from helpers.simulated_history import SimulatedHistory
from torch import nn

from memfit.analysis.diff.runs import diff_ledgers
from memfit.ledger import Device, Ledger
from memfit.record.sources.allocator.retention import Retention
from memfit.record.tracker import Tracker
from memfit.views.words.watching import words_about_prediction
from memfit.watch.against import Against, same_steps


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def record(steps, batch):
    """A run from the allocator's history."""
    torch.manual_seed(0)
    history = SimulatedHistory(device="cuda:0")
    with history, Tracker(history=history, retention=Retention()) as tracker:
        step = net_step(Net())
        for _ in range(steps):
            step(batch)
    return tracker.ledger


def net_step(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(batch):
        net(torch.randn(batch, 64)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def predicted(tmp_path, batch):
    """As a prediction is: of operators, without what an allocator gave on top."""
    torch.manual_seed(0)
    with Tracker(witness="operators") as tracker:
        step = net_step(Net())
        for _ in range(3):
            step(batch)
    ledger = tracker.ledger
    file = tmp_path / "predicted.memfit"
    replace(ledger, info=replace(ledger.info, source="predicted"), devices=(Device.from_name("cuda:0"),)).save(file)
    return file


def test_a_run_that_is_as_predicted_is_said_to_be(tmp_path):
    file = predicted(tmp_path, 500)
    told = []
    tracker = {}
    against = Against(file, lambda: tracker.get("it"), told.append)
    history = SimulatedHistory(device="cuda:0")
    torch.manual_seed(0)
    with history, Tracker(history=history, retention=Retention(), on_step=[against]) as tracker["it"]:
        step = net_step(Net())
        for _ in range(5):
            step(500)
    assert len(told) == 2
    assert "as predicted, 0.0" in told[0]


def test_where_a_run_is_not_as_predicted_its_modules_are_named(tmp_path):
    told, tracker = [], {}
    against = Against(predicted(tmp_path, 500), lambda: tracker.get("it"), told.append)
    history = SimulatedHistory(device="cuda:0")
    with history, Tracker(history=history, retention=Retention(), on_step=[against]) as tracker["it"]:
        step = net_step(Net())
        for number in range(6):
            step(4000 if number > 3 else 1000)
    assert told[0].endswith("3.49 MiB, predicted 1.90 MiB: 83.4% more than predicted")
    assert "by module, measured less predicted: (Net) 1,000.00 KiB, second 500.00 KiB" in told[1]
    assert "by phase, measured less predicted: backward 1,000.00 KiB, forward 500.00 KiB" in told[2]
    assert any(line.startswith("step 4: the peak is") for line in told)


def test_only_steps_that_both_have_are_compared(tmp_path):
    before, after = same_steps(Ledger.load(predicted(tmp_path, 50)), record(6, 50))
    assert before.step_numbers.max() == after.step_numbers.max() == 2
    diff = diff_ledgers(before.check(), after.check())
    assert diff.ops == (), "one of them knows no operators"
    assert words_about_prediction(diff, 2)[0].endswith("apart")
