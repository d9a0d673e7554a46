"""What every test shares."""

import gc
import os

import pytest
from helpers.browsing import browser  # noqa: F401  one for all pages of a session: Playwright does not run twice in a process
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Before torch is imported, for processes of tests too. Tensors of tests are tiny: with more threads than cores, which two workers
have, torch spends most of its time on waiting for the others."""

os.environ.pop("COLUMNS", None)
"""What commands print is as wide as in a pipe, whatever shell or tool starts the tests."""

settings.register_profile(
    "memfit", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("memfit")


@pytest.fixture(scope="module", autouse=True)
def _libraries_are_no_garbage():
    """Spares the garbage collector what is there before a module's tests: torch alone has half a million objects.

    Every prediction begins with a collection, which would take longer than most predictions of the tests themselves.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """What is left is taken down in its order when Python ends."""
    gc.unfreeze()
