"""Tiny models, known by name like the large ones."""

import pytest
from helpers.tiny_models import TINY, TINY_GPT2, TINY_MOE

from memfit.models import MODELS


@pytest.fixture(autouse=True)
def tiny_models(monkeypatch: pytest.MonkeyPatch):
    for config in (TINY, TINY_GPT2, TINY_MOE):
        monkeypatch.setitem(MODELS, config.name, config)
