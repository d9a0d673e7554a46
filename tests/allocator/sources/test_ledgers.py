import numpy as np
import pytest
from helpers.arbitrary_ledgers import ledgers
from hypothesis import given

from memfit.allocator import RequestKind, Requests, load_requests, replay, requests_from_ledger
from memfit.errors import ConfigError, LedgerLawError
from memfit.ledger import LedgerBuilder
from memfit.testing import ledger
from memfit.units import MIB

ALLOC, FREE = RequestKind.ALLOC, RequestKind.FREE


def rows(requests: Requests) -> list[tuple[int, int, int]]:
    return list(zip(requests.kind.tolist(), requests.block.tolist(), requests.size.tolist(), strict=True))


def test_blocks_become_requests():
    requests = requests_from_ledger(ledger("alloc 3MiB a; step; alloc 1MiB b; free a"))
    assert rows(requests) == [(ALLOC, 0, 3 * MIB), (ALLOC, 1, MIB), (FREE, 0, 0)]
    assert requests.event.tolist() == [0, 2, 3]
    assert (requests.num_events, requests.num_blocks) == (4, 2)


def test_resizing_to_nothing_frees_and_growing_again_allocates():
    requests = requests_from_ledger(ledger("alloc 3MiB a; resize a 0; resize a 5MiB; free a"))
    assert rows(requests) == [(ALLOC, 0, 3 * MIB), (FREE, 0, 0), (ALLOC, 1, 5 * MIB), (FREE, 1, 0)]


def test_resizing_in_between_needs_both_at_once():
    requests = requests_from_ledger(ledger("alloc 30MiB a; resize a 40MiB"))
    assert rows(requests) == [(ALLOC, 0, 30 * MIB), (ALLOC, 1, 40 * MIB), (FREE, 0, 0)]
    assert replay(requests).peak_allocated == 70 * MIB


def test_what_asks_for_nothing_is_no_request():
    assert rows(requests_from_ledger(ledger("alloc 0 a; resize a 0; free a"))) == []
    assert rows(requests_from_ledger(ledger("alloc 4 a; resize a 4; free a"))) == [(ALLOC, 0, 4), (FREE, 0, 0)]


def test_streams_are_kept_apart():
    requests = requests_from_ledger(ledger("alloc 20MiB a on cuda:0 stream 7; free a; alloc 20MiB b on cuda:0"))
    assert replay(requests).peak_reserved == 40 * MIB


def test_the_gpu_with_the_most_blocks_counts():
    text = "alloc 1 a; alloc 1 b; alloc 1 c; alloc 2 d on cuda:0; alloc 3 e on cuda:1; alloc 3 f on cuda:1"
    requests = requests_from_ledger(ledger(text))
    assert requests.size.tolist() == [3, 3]
    assert requests.warnings == ("counted on cuda:1 only; the ledger also has cuda:0",)
    assert requests_from_ledger(ledger(text), "cuda:0").size.tolist() == [2]
    with pytest.raises(ConfigError, match="no device 'cuda:7'; it has cpu, cuda:0, cuda:1"):
        requests_from_ledger(ledger(text), "cuda:7")


def test_an_incomplete_ledger_says_so():
    builder = LedgerBuilder()
    builder.alloc(512, builder.device("cuda:0"), builder.string("op"))
    builder.mark_incomplete("the process died")
    assert requests_from_ledger(builder.build()).warnings == ("the ledger is incomplete: the process died",)


def test_a_ledger_that_breaks_its_laws_is_refused():
    builder = LedgerBuilder()
    block = builder.alloc(512, builder.device("cuda:0"), builder.string("op"))
    builder.free(block)
    builder.free(block)
    with pytest.raises(LedgerLawError, match="more than one FREE"):
        requests_from_ledger(builder.build())


def test_sizes_that_no_program_asks_for_are_refused():
    with pytest.raises(ConfigError, match="are not possible"):
        replay(requests_from_ledger(ledger(f"alloc {2**50} a")))


def test_a_saved_ledger_is_recognised_by_what_it_holds(tmp_path):
    ledger("alloc 3MiB a on cuda:0").save(tmp_path / "run.pickle")
    requests = load_requests(tmp_path / "run.pickle")
    assert (requests.source, requests.size.tolist()) == ("ledger", [3 * MIB])
    assert requests.ledger is not None


@given(ledgers)
def test_any_ledger_is_replayed_and_holds_no_less_than_it_says(recorded):
    requests = requests_from_ledger(recorded)
    run = replay(requests)
    on_device = recorded.blocks.device[recorded.events.subject[recorded.memory_events]]
    for number in {int(recorded.blocks.device[recorded.events.subject[e]]) for e in requests.event[requests.block >= 0]}:
        held = np.cumsum(recorded.deltas[recorded.memory_events[on_device == number]])
        assert run.peak_allocated >= held.max(initial=0)
    assert len(run.per_event(run.reserved)) == len(recorded.events)


def test_what_a_resize_brings_comes_from_its_own_stream():
    text = "alloc 20MiB a on cuda:0; resize a 0; resize a 20MiB stream 7; resize a 0; resize a 20MiB; free a"
    requests = requests_from_ledger(ledger(text))
    assert requests.stream.tolist() == [0, 0, 1, 1, 1, 1]
    assert replay(requests).peak_reserved == 40 * MIB


def test_a_move_is_of_one_block_and_of_the_time_after_it():
    text = "alloc 1 a on cuda:0; alloc 1 b on cuda:0; resize a 2 stream 3; resize b 2; resize a 3 stream 9; alloc 1 c on cuda:0"
    requests = requests_from_ledger(ledger(text))
    assert requests.stream[requests.kind == ALLOC].tolist() == [0, 0, 1, 0, 2, 0]


def test_an_emptied_cache_gives_back_what_is_free():
    kept = replay(requests_from_ledger(ledger("alloc 20MiB a on cuda:0; free a; alloc 30MiB b on cuda:0")))
    emptied = replay(
        requests_from_ledger(ledger("alloc 20MiB a on cuda:0; free a; empty-cache on cuda:0; alloc 30MiB b on cuda:0"))
    )
    assert (kept.peak_reserved, emptied.peak_reserved) == (50 * MIB, 30 * MIB)


def test_another_devices_cache_is_another_matter():
    requests = requests_from_ledger(ledger("alloc 20MiB a on cuda:0; free a; empty-cache; alloc 30MiB b on cuda:0"))
    assert replay(requests).peak_reserved == 50 * MIB
