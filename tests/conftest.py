"""What every test shares. Its place makes ``arbitrary_ledgers`` importable from the folders below."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "memfit", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("memfit")
