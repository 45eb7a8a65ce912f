from hypothesis import HealthCheck, settings

# How long an example takes says nothing on a machine that does other things too; what is slow has a test of its own.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")
