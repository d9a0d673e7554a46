from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memfit.analysis.timeline import first_maxima, range_maxima


def test_the_first_of_equal_values_is_found():
    values = np.array([1, 3, 3, 0, 5, 5])
    assert first_maxima(values, np.array([0, 3])).tolist() == [1, 4]
    assert range_maxima(values, np.array([0, 2, 0, 3]), np.array([3, 4, 6, 4])).tolist() == [1, 2, 4, 3]


def test_no_ranges_no_maxima():
    assert range_maxima(np.array([1]), np.array([], dtype=int), np.array([], dtype=int)).tolist() == []


@given(st.data())
def test_ranges_equal_a_walk_through_each(data):
    values = np.array(data.draw(st.lists(st.integers(-5, 5), min_size=1, max_size=40)))
    ends = st.tuples(st.integers(0, len(values) - 1), st.integers(1, len(values))).filter(lambda pair: pair[0] < pair[1])
    ranges = data.draw(st.lists(ends, max_size=20))
    starts, stops = (np.array([pair[i] for pair in ranges], dtype=int) for i in (0, 1))
    expected = [start + int(np.argmax(values[start:stop])) for start, stop in ranges]
    assert range_maxima(values, starts, stops).tolist() == expected
