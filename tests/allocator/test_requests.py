"""Requests, changed: what comes of it is again a list of requests that a program could have made."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from memfit.allocator import RequestKind, replay, requests_from_ledger
from memfit.allocator.requests import COLUMNS, Requests
from memfit.allocator.settings import AllocatorSettings
from memfit.allocator.sizing import largest_request, round_size, segment_size
from memfit.errors import ConfigError
from memfit.testing import ledger
from memfit.units import MIB

REQUESTS = requests_from_ledger(ledger("alloc 4MiB a on cuda:0; alloc 8MiB b on cuda:0; free a; alloc 2MiB c on cuda:0"))


def test_the_columns_are_all_fields_with_an_entry_per_request():
    assert {field.name for field in fields(Requests) if isinstance(getattr(REQUESTS, field.name), np.ndarray)} == set(COLUMNS)


def test_some_of_them():
    rest = REQUESTS.take(np.array([0, 2]), oddities=("shortened",))
    assert (rest.kind.tolist(), rest.warnings) == ([RequestKind.ALLOC, RequestKind.FREE], ("shortened",))
    assert {len(getattr(rest, name)) for name in COLUMNS} == {2}


def test_one_more_at_the_end():
    more = REQUESTS.append(size=5 * MIB, event=99, stream=1)
    assert (len(more), more.num_blocks) == (len(REQUESTS) + 1, REQUESTS.num_blocks + 1)
    assert (more.size[-1], more.event[-1], more.stream[-1], more.block[-1]) == (5 * MIB, 99, 1, REQUESTS.num_blocks)
    assert replay(more).peak_allocated == 15 * MIB


def test_one_more_at_the_beginning():
    more = REQUESTS.insert(0, size=5 * MIB, event=-1)
    assert more.size.tolist() == [5 * MIB, *REQUESTS.size.tolist()]
    assert replay(more).allocated[0] == 5 * MIB


def test_what_no_program_could_have_asked_for_is_refused():
    with pytest.raises(ConfigError, match="frees a block that is not allocated"):
        REQUESTS.take(np.array([2]))


@pytest.mark.parametrize("segment", [2 * MIB, 20 * MIB, 22 * MIB, 2000 * MIB])
def test_the_largest_request_of_a_segment_needs_just_that_segment(segment: int):
    settings, size = AllocatorSettings(), largest_request(segment)
    assert segment_size(round_size(size, settings), settings) == segment
    assert segment_size(round_size(size + 1, settings), settings) != segment
