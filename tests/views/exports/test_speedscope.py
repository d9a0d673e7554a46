"""The profile for speedscope: its published schema, and that it weighs what the peak does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.arbitrary_ledgers import ledgers
from helpers.export_runs import HOSTILE, ON_THE_CPU, RUN, RUNS, hostile_run
from hypothesis import given

from memfit.analysis import find_peak
from memfit.ledger import Ledger
from memfit.testing import ledger
from memfit.units import MIB
from memfit.views.exports.speedscope import write_stacks


def check_schema(file: dict[str, Any]) -> None:
    """What https://www.speedscope.app/file-format-schema.json demands of a file of sampled profiles, and its comments with it."""
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert isinstance(file.get("name", ""), str)
    assert isinstance(file.get("exporter", ""), str)
    assert isinstance(file.get("activeProfileIndex", 0), int)
    frames = file["shared"]["frames"]
    assert all(isinstance(frame["name"], str) for frame in frames)
    for profile in file["profiles"]:
        assert profile["type"] == "sampled"
        assert isinstance(profile["name"], str)
        assert profile["unit"] in ("none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes")
        assert profile["startValue"] <= profile["endValue"]
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= frame < len(frames) for sample in profile["samples"] for frame in sample)
        assert all(weight >= 0 for weight in profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"] - profile["startValue"]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_schema(run: Ledger):
    check_schema(json.loads(write_stacks(run)))


@given(ledgers)
def test_every_run_weighs_what_its_peaks_do(run: Ledger):
    file = json.loads(write_stacks(run))
    check_schema(file)
    peaks = [find_peak(run, device).size_bytes for device in range(len(run.devices))]
    assert [profile["endValue"] for profile in file["profiles"]] == sorted(filter(None, peaks), reverse=True)


def test_the_check_of_the_schema_can_fail():
    file = json.loads(write_stacks(RUN))
    file["profiles"][0]["weights"][0] += 1
    with pytest.raises(AssertionError):
        check_schema(file)


def stacks(run: Ledger) -> dict[str, int]:
    file = json.loads(write_stacks(run))
    names = [frame["name"] for frame in file["shared"]["frames"]]
    (profile,) = file["profiles"]
    samples = [";".join(names[frame] for frame in sample) for sample in profile["samples"]]
    return dict(zip(samples, profile["weights"], strict=True))


def test_frames_are_modules_then_what_it_is_and_what_made_it():
    assert stacks(ON_THE_CPU) == {"(Module);a;parameter;a.w": 4 * MIB, "(Module);a;forward temporary;x": MIB}


def test_equal_stacks_are_one():
    run = ledger("step; enter forward a; alloc 1KiB x; free x; alloc 1KiB x; exit; step; enter forward a; alloc 3KiB y; exit")
    twice = ledger("enter forward a; alloc 1KiB a.x; exit; enter forward a; alloc 3KiB a.y; exit")
    assert stacks(run) == {"(Module);a;activation;x": 1024, "(Module);a;activation;y": 3072}
    assert sum(stacks(twice).values()) == 4096


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_can_only_be_read(name: str):
    file = json.loads(write_stacks(hostile_run(name)))
    assert all(frame["name"].isprintable() for frame in file["shared"]["frames"])
    assert all(profile["name"].isprintable() for profile in file["profiles"])
