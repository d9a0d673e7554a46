"""The simulated allocator against what an H200's did."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.allocator_requests import MEASURED, TRUTH

from benchmarks.accuracy.allocator_truth import read_json, replay_as_measured
from memfit.allocator import load_requests, parse_alloc_conf, replay, smallest_fit
from memfit.units import MIB

TRACES = sorted((TRUTH / "traces").glob("*.npz"))
FITS = {row["name"]: row for row in read_json(TRUTH / "h200_fit.json")}
EXPANDABLE = read_json(TRUTH / "h200_expandable.json")


def name_of(path: Path) -> str:
    return path.stem.removeprefix("trace_")


@pytest.mark.parametrize("path", TRACES, ids=name_of)
def test_peaks_of_a_trace_are_exact(path: Path):
    requests = load_requests(path)
    run = replay(requests)
    assert {"peak_allocated": run.peak_allocated, "peak_reserved": run.peak_reserved} == requests.recorded_peaks
    assert requests.warnings == ()


@pytest.mark.parametrize("path", TRACES, ids=name_of)
def test_without_the_recorded_addresses_peaks_are_nearly_exact(path: Path):
    requests = load_requests(path)
    blind = replay(replace(requests, segment_address=0 * requests.segment_address))
    assert blind.peak_allocated == pytest.approx(requests.recorded_peaks["peak_allocated"], rel=0.0005)
    assert blind.peak_reserved == pytest.approx(requests.recorded_peaks["peak_reserved"], rel=0.003)


# The H200 ran three steps, the trace has two: it holds 9,500 MiB of fsdp2_full for two steps, and runs out of them in the third.
FIT_TOLERANCE = {"fsdp2_full": 0.02, "hf_resnet": 0.007}


@pytest.mark.parametrize("name", sorted({name_of(path) for path in TRACES} & set(FITS)))
def test_the_smallest_fit(name: str):
    least = smallest_fit(load_requests(TRUTH / "traces" / f"trace_{name}.npz"))
    tolerance = FIT_TOLERANCE.get(name, 0.005)
    assert FITS[name]["max_oom_mib"] * (1 - tolerance) <= least.capacity / MIB <= FITS[name]["min_fit_mib"] * (1 + tolerance)


# FSDP1 defers frees until the GPU has caught up, which takes another time in every run.
@pytest.mark.parametrize("name", sorted({name_of(path) for path in TRACES} & set(EXPANDABLE) - {"fsdp1_full"}))
def test_expandable_segments_reserve_what_they_did(name: str):
    run = replay(load_requests(TRUTH / "traces" / f"trace_{name}.npz"), parse_alloc_conf("expandable_segments:True"))
    assert run.peak_reserved == max(step["reserved"] for step in EXPANDABLE[name]["iters"][:2])


@pytest.mark.parametrize("name", sorted(set(MEASURED) - {"late"}))
def test_every_statistic_is_exact_under_every_setting(name: str):
    measured = MEASURED[name]
    requests = load_requests(next((TRUTH / "settings").glob(f"{name}.[np]*")))
    assert replay_as_measured(requests, measured) == measured["stats"]


def test_a_recording_that_began_late_says_so():
    requests = load_requests(TRUTH / "settings" / "late.pickle")
    assert "began late: 50 blocks" in requests.warnings[0]
    stats, run = MEASURED["late"]["stats"], replay(requests)
    assert run.memory_stats()["requested_bytes.all.current"] == stats["requested_bytes.all.current"]
    assert run.peak_allocated == pytest.approx(stats["allocated_bytes.all.peak"], rel=0.05)
