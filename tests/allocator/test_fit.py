import pytest
from helpers.allocator_requests import asked

from memfit.allocator import compare_settings, fit, parse_alloc_conf, replay, smallest_fit
from memfit.allocator.fit import _search
from memfit.units import MIB


def test_giving_cached_memory_back_saves_it():
    requests = asked("a 30MiB; free a; b 40MiB; free b; c 50MiB")
    assert smallest_fit(requests).capacity == 50 * MIB
    least = replay(requests, capacity=50 * MIB)
    assert (least.num_alloc_retries, least.given_back) == (2, 70 * MIB)


def test_fragments_cannot_be_given_back():
    least = smallest_fit(asked("a 30MiB; free a; b 15MiB; c 40MiB"))
    assert least.capacity == 70 * MIB


def test_expandable_segments_use_the_rest():
    requests = asked("a 60MiB; free a; b 15MiB; c 50MiB")
    assert smallest_fit(requests).capacity == 110 * MIB
    assert smallest_fit(requests, parse_alloc_conf("expandable_segments:True")).capacity == 80 * MIB


def test_the_capacity_takes_the_place_of_a_fraction():
    requests = asked("a 30MiB; free a; b 40MiB")
    settings = parse_alloc_conf("per_process_memory_fraction:0.1,garbage_collection_threshold:0.5")
    assert smallest_fit(requests, settings).capacity == 40 * MIB


@pytest.mark.parametrize("large", ["21", "64"])
def test_segments_of_other_sizes(large: str):
    assert smallest_fit(asked("a 3MiB"), parse_alloc_conf(f"large_segment_size_mb:{large}")).capacity == int(large) * MIB


def test_every_probe_is_told():
    least = smallest_fit(asked("a 30MiB; free a; b 40MiB; free b; c 50MiB"))
    assert (50 * MIB, True) in least.probes
    assert all(completes == (capacity >= 50 * MIB) for capacity, completes in least.probes)
    assert least.lucky == ()


@pytest.mark.parametrize(
    ("completes", "answer"),
    [
        (lambda n: n >= 40, 40),
        (lambda n: n >= 40 and n != 43, 44),
        (lambda n: n >= 40 and not 50 <= n < 60, 60),
        (lambda n: n >= 40 and not 44 <= n < 48 and not 90 <= n < 140, 140),
        (lambda n: n >= 1000, 1000),
        (lambda n: n >= 10, 10),
    ],
)
def test_capacities_that_fail_above_others_that_work_are_found(completes, answer: int):
    assert _search(lambda several: [completes(number) for number in several], fails=9, enough=1000) == answer


def test_capacities_tried_at_the_same_time_give_the_same_answer(monkeypatch):
    requests = asked("a 60MiB; free a; b 15MiB; c 50MiB; free b; d 30MiB")
    alone = smallest_fit(requests)
    monkeypatch.setattr(fit, "MANY_REQUESTS", 1)
    beside = smallest_fit(requests)
    assert (beside.capacity, beside.probes) == (alone.capacity, alone.probes)


def test_settings_are_compared_least_first():
    needs = compare_settings(asked("a 60MiB; free a; b 15MiB; c 50MiB"), "2.11", ("", "expandable_segments:True"))
    assert [(need.alloc_conf, need.smallest_fit) for need in needs] == [("expandable_segments:True", 80 * MIB), ("", 110 * MIB)]
    assert needs[1].peak_reserved == replay(asked("a 60MiB; free a; b 15MiB; c 50MiB")).peak_reserved
