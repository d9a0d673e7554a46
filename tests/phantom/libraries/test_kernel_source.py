"""Which tensors a Triton kernel may write to, read from its source."""

from __future__ import annotations

import pytest

from memfit.phantom.libraries.kernel_source import written_parameters


def adds(x, y, out, n, BLOCK):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # noqa: F821
    tl.store(out + i, tl.load(x + i) + tl.load(y + i), mask=i < n)  # noqa: F821


def counts(ids, counters, n):
    where = counters + tl.load(ids + tl.program_id(0))  # noqa: F821
    tl.atomic_add(where, 1)  # noqa: F821


def moves_its_pointer(x, out, stride, n):
    row = out
    row += tl.program_id(0) * stride  # noqa: F821
    for i in range(n):
        tl.store(row + i, tl.load(x + i))  # noqa: F821


def asks_another(x, out, n):
    write_there(out, tl.load(x))  # noqa: F821


def by_descriptor(x, out, n):
    to = tl.make_tensor_descriptor(out, [n], [1], [64])  # noqa: F821
    to.store([0], tl.load(x))  # noqa: F821


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (adds, {"out"}),
        (counts, {"counters"}),
        (moves_its_pointer, {"out"}),
        (asks_another, {"out"}),
        (by_descriptor, {"out"}),
    ],
)
def test_it_follows_pointers(kernel, written):
    assert written_parameters(kernel) >= written
    assert "x" not in written_parameters(kernel)
    assert "ids" not in written_parameters(kernel)


def test_without_source_nothing_is_known():
    assert written_parameters(eval("lambda x: x")) is None
