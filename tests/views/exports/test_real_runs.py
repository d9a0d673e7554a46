"""Exports of runs that torch made: one tracked, one predicted."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz

import memfit
from memfit.allocator import load_requests, replay, requests_from_ledger
from memfit.analysis import build_report
from memfit.ledger import Ledger
from memfit.views.exports import EXPORTS


def build(device: str = "cuda"):
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(256, 512, device=device)

    def step() -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def tracked() -> Ledger:
    with memfit.track() as tracker:
        step = build("cpu")
        for _ in range(2):
            step()
    return tracker.ledger


def predicted() -> Ledger:
    return memfit.predict(build, steps=2).ledger


@pytest.fixture(scope="module", params=[tracked, predicted], ids=["tracked", "predicted"])
def run(request: pytest.FixtureRequest) -> Ledger:
    return request.param()


def test_the_snapshot_has_the_same_peaks(run: Ledger, tmp_path: Path):
    (tmp_path / "run.pickle").write_bytes(EXPORTS["memory-viz"].write(run))
    original = replay(requests_from_ledger(run))
    back = replay(load_requests(tmp_path / "run.pickle"), original.settings)
    assert (back.peak_allocated, back.peak_reserved) == (original.peak_allocated, original.peak_reserved)


def test_torch_draws_the_modules_and_categories(run: Ledger):
    snapshot = pickle.loads(EXPORTS["memory-viz"].write(run))
    flames = _memory_viz.memory(snapshot, format_flamegraph=lambda text: text)
    parameters = [
        line for line in flames.splitlines() if "category:0:parameter;" in line and "module:0:(Sequential);module:0:2;" in line
    ]
    assert sorted(int(line.rpartition(" ")[2]) for line in parameters) == [512 * 4, 512 * 2048 * 4]


def test_the_profile_and_the_trace_reach_the_peak(run: Ledger):
    device = build_report(run).devices[0]
    profile = json.loads(EXPORTS["speedscope"].write(run))["profiles"][0]
    assert (profile["name"], profile["endValue"]) == (f"{device.name} at its peak", device.peak.size_bytes)
    events = json.loads(EXPORTS["perfetto"].write(run))["traceEvents"]
    counted = [event["args"]["bytes"] for event in events if event["name"] == f"{device.name} in use"]
    assert max(counted) == device.peak.size_bytes
    assert {"(Sequential)", "0", "1", "2", "forward", "backward", "optimizer", "step 1"} <= {event["name"] for event in events}
