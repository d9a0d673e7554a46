"""Rules are compared with what was measured, whatever libraries the machine has."""

import pytest

from memfit.phantom.kernels.convolution import library


@pytest.fixture(autouse=True)
def _nobody_to_ask(monkeypatch):
    monkeypatch.setattr(library, "_installed", lambda: None)
    library._ask.cache_clear()
