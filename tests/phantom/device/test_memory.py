"""Memory that says it is pinned."""

from __future__ import annotations

import torch
from helpers.phantom_worlds import phantom


def test_a_tensor_of_numbers_is_pinned_where_it_is_made():
    with phantom():
        made = torch.tensor(3, dtype=torch.int32, pin_memory=True)
        assert made.is_pinned()
        assert made.cuda(non_blocking=True).item() == 3
        assert not torch.tensor(3).is_pinned()
