from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

# Two cores that others use too are slow at times, and that is no fault of a test. The rest is the profile in use: on a
# CI machine hypothesis brings one of its own, which draws the same examples in every run.
settings.register_profile("patient", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
