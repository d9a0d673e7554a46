"""Single kernels: what is predicted of every case of benchmarks/kernels/kernel_cases.py is what is recorded of it.

``benchmarks/results/kernel_state.json`` holds the predicted figures, with the bytes by which each differs from what an H200 took
(``benchmarks/truth/kernel_memory.json``). No case gets worse, or better, without a change of that file.
"""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.kernels import kernel_memory
from benchmarks.kernels.kernel_cases import CASES

TRUTH = json.loads(kernel_memory.TRUTH.read_text())["cases"]
RECORDED = kernel_memory.read_state()
CASES_PER_TEST = 125
STARTS = range(0, len(CASES), CASES_PER_TEST)


@pytest.mark.skipif(
    kernel_memory.minor_version(torch.__version__) != RECORDED["about"]["torch"],
    reason=f"figures are recorded with torch {RECORDED['about']['torch']}: another torch runs other operators in some cases",
)
@pytest.mark.parametrize("start", STARTS)
def test_every_case_is_predicted_as_recorded(start):
    names = list(CASES)[start : start + CASES_PER_TEST]
    said = kernel_memory.predict(names)
    now = {name: kernel_memory.state_of(said[name], TRUTH[name]) for name in names}
    changed = kernel_memory.changes(RECORDED["cases"], now)
    assert not changed, "\n".join([*changed, f"If that is meant, record it: {kernel_memory.RECORD}"])


@pytest.mark.parametrize(
    "name",
    [
        "dropout bf16[16,512,768]",
        "LSTM layers 2 hidden 512 f32[128,32,256]",
        "LSTM layers 2 hidden 512 batch first f32[32,128,256]",
        "LSTMCell f32[64,256]",
        "GRUCell f32[64,256]",
        "sdpa default f32 2x16x1024x64 blhd causal",
        "embedding_bag max i64[4096,8]<10000 f32[10000,64]",
        "roll f32[32,56,56,96]",
    ],
)
def test_blocks_come_and_go_in_the_measured_order(name):
    """What is cached when a block is asked for decides about reserved memory."""
    said = kernel_memory.predict([name])[name]
    assert kernel_memory.course(said["events"]) == kernel_memory.course(TRUTH[name]["events"])


def test_every_case_is_measured_and_recorded():
    assert list(RECORDED["cases"]) == list(CASES)
    assert set(TRUTH) == set(CASES)


def test_the_record_says_how_far_each_is_from_the_measurement():
    for name, state in RECORDED["cases"].items():
        if "error" in TRUTH[name]:
            assert state["off"] is None
        else:
            measured = kernel_memory.peaks_of(TRUTH[name]["events"])
            assert [ours - off for ours, off in zip(state["peaks"], state["off"], strict=True)] == measured, name


def test_the_table_counts_what_is_recorded():
    exact = sum(state["off"] is not None and not any(state["off"]) for state in RECORDED["cases"].values())
    table = kernel_memory.STATE.with_name("kernel_memory.md").read_text()
    assert f"\n{exact} of {len(CASES)} are exact" in table, f"write it anew: {kernel_memory.RECORD}"


# -- the comparison can fail ---------------------------------------------------------------------------------------------------


def state(*events: int, measured: list[int]) -> dict:
    return kernel_memory.state_of({"events": list(events)}, {"events": measured})


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (state(1024, measured=[1024]), state(2048, measured=[1024]), "got worse"),
        (state(1024, measured=[512]), state(512, measured=[512]), "got better"),
        (state(1024, measured=[2048]), state(3072, measured=[2048]), "changed"),
        (state(1024, measured=[1024]), state(1000, measured=[1024]), "has the same peaks, but other blocks"),
        (state(1024, measured=[1024]), {"error": "TypeError"}, "changed"),
        (None, state(1024, measured=[1024]), "is not recorded"),
    ],
)
def test_every_change_is_told(before, after, verdict):
    (line,) = kernel_memory.changes({"case": before} if before else {}, {"case": after})
    assert line.startswith(f"case: {verdict}: recorded ")


def test_no_change_is_not_told():
    assert kernel_memory.changes({"case": {"peaks": [1]}, "other": {}}, {"case": {"peaks": [1]}}) == []


def test_the_share_by_which_a_case_is_off():
    assert kernel_memory.off_by({"events": [2**20, 0, 2**20]}, {"events": [2**20, 0, 2**21]}) == pytest.approx(0.5)
    assert kernel_memory.off_by({"error": "no"}, {"events": [1]}) == 9.0


def test_events_become_peaks():
    assert kernel_memory.peaks_of([1000, 600, -2, 0, 2000, -1]) == [2048, 2048, 2048]
