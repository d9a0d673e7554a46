import json
from dataclasses import replace

import pytest
from helpers.allocator_requests import TRUTH, asked

from memfit.allocator import judge, load_requests, parse_alloc_conf, requests_from_ledger
from memfit.allocator.verdict import advised
from memfit.hardware import NCCL_ONCE_BYTES, find_gpu
from memfit.testing import ledger
from memfit.units import GIB

T4 = find_gpu("T4")


def test_a_run_that_fits():
    verdict = judge(asked("a 10GiB; free a; b 12GiB"), T4)
    assert verdict.fits
    assert (verdict.peak_allocated, verdict.smallest_fit, verdict.peak_reserved) == (12 * GIB, 12 * GIB, 22 * GIB)
    assert verdict.needed == 12 * GIB + T4.context_bytes
    assert verdict.margin == T4.usable_bytes - verdict.needed
    assert (verdict.num_alloc_retries, verdict.given_back, verdict.out_of_memory) == (1, 10 * GIB, None)
    assert verdict.least_gpu is T4


def test_a_run_that_does_not_fit():
    verdict = judge(asked("a 10GiB; b 20GiB"), T4)
    assert not verdict.fits
    assert verdict.margin == T4.capacity() - 30 * GIB
    assert verdict.least_gpu.name == "RTX-5090"
    assert (verdict.out_of_memory.event, verdict.out_of_memory.asked) == (1, 20 * GIB)
    assert len(verdict.alternatives) == 4


def test_a_run_that_fits_nowhere():
    assert judge(asked("a 1000GiB"), T4).least_gpu is None


def test_process_groups_take_memory_too():
    nearly_all = asked("a 13824MiB")
    assert judge(nearly_all, T4).fits
    crowded = judge(nearly_all, T4, num_process_groups=2)
    assert not crowded.fits
    assert crowded.communicators == 2 * T4.communicator_bytes - NCCL_ONCE_BYTES


def test_a_run_of_several_ranks_has_a_process_group():
    requests = requests_from_ledger(ledger("alloc 1GiB a on cuda:0"))
    many = replace(requests.ledger, info=replace(requests.ledger.info, world_size=8))
    assert judge(requests, T4).communicators == 0
    assert judge(replace(requests, ledger=many), T4).communicators == T4.communicator_bytes


def test_a_share_of_the_gpu():
    verdict = judge(asked("a 10GiB"), T4, parse_alloc_conf("per_process_memory_fraction:0.5"))
    assert not verdict.fits
    assert verdict.smallest_fit == 10 * GIB
    assert verdict.capacity == T4.usable_bytes // 2


def test_a_ledger_tells_when_the_peak_falls_and_what_it_is_made_of():
    text = "alloc 1GiB parameter w on cuda:0; step; step; enter forward; alloc 2GiB x on cuda:0; enter backward; exit; exit"
    verdict = judge(requests_from_ledger(ledger(text)), T4)
    assert verdict.where == "step 1, forward"
    assert verdict.largest == (("activation", 2 * GIB), ("parameter", GIB))


def test_a_peak_before_the_first_step():
    assert judge(requests_from_ledger(ledger("alloc 1GiB a on cuda:0; free a; step")), T4).where == "before the first step"


def test_what_is_less_sure_is_said():
    warnings = judge(asked("a 1GiB"), find_gpu("MI300X"), parse_alloc_conf("", "2.99")).warnings
    assert any("ROCm" in warning for warning in warnings)
    assert any("newer than memfit knows" in warning for warning in warnings)


def test_luck_is_said():
    verdict = judge(load_requests(TRUTH / "traces" / "trace_fsdp2_llama3_70b_w64.npz"), find_gpu("H100"))
    assert any("are enough too, but not all of them" in warning for warning in verdict.warnings)


@pytest.mark.parametrize(("recorded", "warns"), [(30 * GIB, False), (33 * GIB, True)])
def test_a_replay_that_differs_from_the_recording_says_so(recorded: int, warns: bool):
    requests = replace(asked("a 30GiB"), recorded_peaks={"peak_reserved": recorded})
    assert any("recorded run reserved" in warning for warning in judge(requests, T4).warnings) == warns


def test_every_figure_is_there_for_programs():
    plain = json.loads(json.dumps(judge(asked("a 20GiB"), T4).to_json()))
    assert {"peak_allocated", "peak_reserved", "smallest_fit", "fits", "margin", "needed", "usable"} <= set(plain)
    assert (plain["gpu"], plain["least_gpu"], plain["fits"]) == ("T4", "L4", False)


def test_advice_can_be_asked_for_later():
    requests = asked("a 10GiB; b 20GiB")
    alone, whole = judge(requests, T4, with_advice=False), judge(requests, T4)
    assert not alone.alternatives
    assert whole.alternatives
    assert advised(alone, requests) == whole
