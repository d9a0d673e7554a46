"""When something happened: found once, named once; and which device a ledger is about."""

from __future__ import annotations

import numpy as np
import pytest

from memfit.analysis import find_peak
from memfit.ledger import INIT, Ledger, Moment, Phase, moments_at
from memfit.testing import ledger

RUN = """
alloc 1MiB parameter w on cuda:0
enter forward layers.0; alloc 1MiB warmup on cuda:0; exit
step; enter forward; enter forward layers.0; alloc 1MiB a on cuda:0; exit; alloc 1MiB b on cuda:0; exit
alloc 1MiB loss on cuda:0
step; enter pre-backward; alloc 1MiB c on cuda:0
"""


def event_of(run: Ledger, op: str) -> int:
    block = [run.strings[number] for number in run.blocks.op].index(op)
    return int(run.birth[block])


@pytest.mark.parametrize(
    ("op", "moment", "label"),
    [
        ("w", Moment(step=INIT, phase=None, module=""), "before the first step"),
        ("warmup", Moment(step=INIT, phase=Phase.FORWARD, module="layers.0"), "before the first step, forward of layers.0"),
        ("a", Moment(step=0, phase=Phase.FORWARD, module="layers.0"), "step 0, forward of layers.0"),
        ("b", Moment(step=0, phase=Phase.FORWARD, module=""), "step 0, forward"),
        ("loss", Moment(step=0, phase=None, module=""), "step 0"),
        ("c", Moment(step=1, phase=Phase.PRE_BACKWARD, module=""), "step 1, pre backward"),
    ],
)
def test_a_moment_is_the_step_the_phase_and_the_module_of_an_event(op: str, moment: Moment, label: str):
    run = ledger(RUN)
    assert run.moment_at(event_of(run, op)) == moment
    assert moment.label == label
    assert moment.in_a_step == (moment.step >= 0)


def test_many_moments_are_those_of_each_event():
    run = ledger(RUN)
    events = np.arange(-1, len(run.events))
    assert moments_at(run, events) == [run.moment_at(event) for event in events.tolist()]


def test_a_peak_is_a_moment():
    run = ledger(RUN)
    peak, moment = find_peak(run, 0), run.moment_at(find_peak(run, 0).event)
    assert (peak.label, peak.to_json()) == (moment.label, moment.to_json())
    assert moment.to_json() == {"step": 1, "phase": "pre_backward", "module": ""}


def test_memory_resized_in_another_phase_counts_to_the_phase_that_resized_it():
    """As FSDP1 does when it gathers a unit's parameters: the block is old, what is in it is new."""
    run = ledger("enter forward; alloc 1MiB w on cuda:0; exit; step; enter backward; resize w 4MiB")
    assert run.moment_at(find_peak(run, 0).event) == Moment(step=0, phase=Phase.BACKWARD, module="")


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("alloc 9MiB a on cpu; alloc 1MiB b on cuda:0", ["cuda:0", "cpu"]),
        ("alloc 1MiB a on cuda:0; alloc 2MiB b on cuda:1", ["cuda:1", "cuda:0"]),
        ("alloc 2MiB a on cuda:1; free a; alloc 1MiB b on cuda:0; alloc 1KiB c on cuda:0", ["cuda:1", "cuda:0"]),
        ("alloc 1MiB a on cuda:0; alloc 1MiB b on cuda:1", ["cuda:0", "cuda:1"]),
        ("step", []),
    ],
)
def test_the_main_device_is_the_gpu_with_the_highest_peak(script: str, names: list[str]):
    run = ledger(script)
    assert [run.devices[number].name for number in run.device_order] == names
    assert run.main_device == (run.device_order[0] if names else None)
