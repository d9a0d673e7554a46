"""What every test shares. Its place makes ``arbitrary_ledgers`` importable from the folders below."""

import gc

import pytest
from hypothesis import HealthCheck, settings

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
