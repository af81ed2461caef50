"""What all tests share: how long hypothesis searches, and the seed of the run.

``--hypothesis-profile=long`` searches longer (``make test-all`` does). Tests that throw dice take the ``seed``
fixture; a failure shows the number, and ``COURSER_SEED`` brings the same run back.
"""

import os
import random
import zlib

import pytest
from hypothesis import HealthCheck, settings

SEED_VARIABLE = "COURSER_SEED"

settings.register_profile("default", deadline=None, max_examples=100, print_blob=True)
settings.register_profile(
    "long",
    deadline=None,
    max_examples=5_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")


def pytest_configure() -> None:
    # Into the environment, so that the workers of xdist, which inherit it, draw from the same seed.
    os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32)))


def pytest_report_header() -> str:
    return f"seed: {SEED_VARIABLE}={os.environ[SEED_VARIABLE]}"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number of this test's own, made from the seed of the run: it does not depend on which other tests run."""
    run_seed = os.environ[SEED_VARIABLE]
    print(f"run again with {SEED_VARIABLE}={run_seed}")
    return zlib.crc32(f"{run_seed} {request.node.nodeid}".encode())
