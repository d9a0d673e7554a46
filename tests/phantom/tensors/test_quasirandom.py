"""Quasi-random numbers of the host are those of a real run, however many dimensions they have: their tables are whole numbers."""

from __future__ import annotations

import torch
from helpers.phantom_worlds import phantom
from torch.quasirandom import SobolEngine


def points() -> list[torch.Tensor]:
    engine = SobolEngine(2000, scramble=True, seed=3)
    first = engine.draw(4)
    engine.fast_forward(2)
    return [first, engine.draw(3), engine.reset().draw(2)]


def test_points_of_many_dimensions_are_drawn():
    true = points()
    with phantom():
        found = points()
    assert all(torch.equal(one, other) for one, other in zip(found, true, strict=True))


def test_other_large_tensors_of_the_host_have_no_data_afterwards():
    with phantom():
        points()
        assert type(torch.randn(2**22)).__name__ != "Tensor" or torch.randn(2**22).untyped_storage().data_ptr() == 0
