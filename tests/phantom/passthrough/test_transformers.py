"""Hugging Face transformers inside the phantom world."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom


def test_transformers_does_not_believe_that_it_is_traced():
    import_utils = pytest.importorskip("transformers.utils.import_utils")
    with phantom():
        assert not import_utils.is_tracing(torch.ones(2, device="cuda"))
    assert import_utils.is_fake_tensor.__module__ == "transformers.utils.import_utils"
