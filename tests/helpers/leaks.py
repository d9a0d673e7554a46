"""Seven leaks that people write, each a small training that keeps what it should let go, and where a recording must find it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memfit.record.tracker import Tracker

DIM, BATCH = 64, 64
STEPS = 42
"""Enough for an alarm: three times eight steps that grow, and some that are looked at closely."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.seen = []

    def forward(self, x):
        return self.decoder(torch.relu(self.encoder(x)))


class Training:
    """A step of it, and whatever a leak holds on to."""

    def __init__(self, device: str = "cpu"):
        self.device = device
        self.net, self.kept = Net().to(device), []
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def begin(self): ...

    def batch(self, size=BATCH):
        return torch.randn(size, DIM, device=self.device)

    def loss_of(self, x):
        return self.net(x).pow(2).mean()

    def step(self, number):
        loss = self.loss_of(self.batch())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class LossesWithTheirGraph(Training):
    def step(self, number):
        loss = self.loss_of(self.batch())
        loss.backward(retain_graph=True)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.kept.append(loss)


class Hooks(Training):
    def begin(self):
        self.net.encoder.register_forward_hook(lambda module, args, result: self.kept.append(result.detach()))


class ListsOfOutputs(Training):
    def loss_of(self, x):
        result = self.net(x)
        self.kept.append(result.detach())
        return result.pow(2).mean()


class GrowingCaches(Training):
    def begin(self):
        original = self.net.encoder.forward

        def forward(x):
            key = float(x.flatten()[0])
            self.net.seen.append((key, original(x).detach().clone()))
            return original(x)

        self.net.encoder.forward = forward


class Cycles(Training):
    def step(self, number):
        class Holder:
            pass

        super().step(number)
        holder = Holder()
        holder.itself, holder.tensor = holder, torch.zeros(BATCH, DIM, device=self.device)


class RetainedGraphs(Training):
    def begin(self):
        self.state = torch.zeros(BATCH, DIM, device=self.device)

    def loss_of(self, x):
        self.state = self.net(x + self.state.mean())  # never detached: each step's graph holds the one before
        return self.state.pow(2).mean()

    def step(self, number):
        self.loss_of(self.batch()).backward(retain_graph=True)
        with torch.no_grad():
            self.optimizer.zero_grad()


class StateOfFrozenParameters(Training):
    def begin(self):
        self.net.encoder, self.net.decoder = nn.Linear(DIM, 4096), nn.Linear(4096, DIM)
        self.net.to(self.device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        super().step(0)
        self.net.encoder.requires_grad_(False)


LEAKS: dict[str, tuple[type[Training], str]] = {
    "losses kept with their graph": (LossesWithTheirGraph, "forward of decoder"),
    "hooks": (Hooks, "forward of encoder"),
    "lists of outputs": (ListsOfOutputs, "forward of decoder"),
    "growing caches": (GrowingCaches, "forward of encoder"),
    "cycles with tensors": (Cycles, "outside of all modules"),
    "retained graphs": (RetainedGraphs, "forward of the model"),
    "state of frozen parameters": (StateOfFrozenParameters, "2 frozen parameters: encoder.weight, encoder.bias"),
}
"""By what people call it: the training, and what the alarm must name."""


def watch(training: type[Training], tracker: Callable[[], Tracker], device: str, steps: int = STEPS) -> tuple[Any, list[str]]:
    """The ledger of so many steps, and the warnings. The collector of cycles stays out of it, as in a run whose objects are few."""
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with tracker() as recording:
                made = training(device)
                made.begin()
                for number in range(steps):
                    recording.step()
                    made.step(number)
        return recording.ledger.check(), [str(warning.message) for warning in warned]
    finally:
        gc.enable()
