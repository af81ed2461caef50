"""What all tests share: how long hypothesis searches, and the seed of the run.

Whoever changes nothing sees nothing new: a plain run takes the same cases every time, so that a failure comes from the
change and not from the dice. ``make test-all`` is the one that searches: ``COURSER_SEED=random`` draws a new seed, and
``--hypothesis-profile=long`` tries more examples, new ones each time. Tests that throw dice take the ``seed`` fixture;
a failure shows the number, and ``COURSER_SEED`` brings the same run back.
"""

import os
import random
import re
import zlib

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

pytest_plugins = ["tests.spark_fixtures"]

SEED_VARIABLE = "COURSER_SEED"
SEED_DEFAULT = "20261115"
"""Of a run that does not ask for another one: any number does, as long as it stays."""
SEED_DRAWN = "random"
"""The value of the variable that asks for a new seed."""

WITH_SPARK = ("tests/spark/", "tests/jobs/", "tests/lake/", "tests/pipelines/")
"""Where the tests are that share one Spark session, and so one process."""
WITH_JAVA_OF_THEIR_OWN = ("tests/demo/", "tests/examples/")
SPARK_TIMEOUT = 900.0
"""Seconds of a test with Spark, in place of those in pyproject.toml: a Java that starts on a busy machine takes a
minute, and some tests start several. Who is interrupted in the middle of a call to Java leaves the session useless for
all tests that come after."""

settings.register_profile(
    "default",
    deadline=None,
    max_examples=100,
    print_blob=True,
    # The examples follow from the test alone, and not from what an earlier run has found.
    derandomize=True,
    database=None,
)
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
    chosen = os.environ.get(SEED_VARIABLE) or SEED_DEFAULT
    os.environ[SEED_VARIABLE] = str(random.SystemRandom().randrange(2**32)) if chosen == SEED_DRAWN else chosen


def pytest_report_header() -> str:
    return f"seed: {SEED_VARIABLE}={os.environ[SEED_VARIABLE]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_with_spark = item.nodeid.startswith((*WITH_SPARK, *WITH_JAVA_OF_THEIR_OWN))
        if is_with_spark and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT))


class ReleasesTogether(LoadScopeScheduling):  # type: ignore[misc]
    """Each test goes to the next worker that is free, but the scenarios of one SDK release stay on one worker.

    They share a child process there, and the last of them asks it what none of them has used. The tests of the wheel
    stay together too: they share an environment that takes a minute to install; and so does each module of the torture
    tests, of the demo and of the examples, which has something large of its own. All tests that use the Spark session
    of the process stay on one worker, so that there is one Java and not one for each. (The ``loadgroup`` of xdist 3.8
    is meant for this, and groups nothing under pytest 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/test_packaging.py::"):
            return "packaging"
        if nodeid.startswith(WITH_SPARK):
            return "spark"
        if nodeid.startswith(("tests/torture/", *WITH_JAVA_OF_THEIR_OWN)):
            return nodeid.partition("::")[0]
        found = re.fullmatch(r"tests/sdk/test_scenarios\.py::\w+\[(\d+\.\d+\.\d+)\b.*", nodeid)
        return found[1] if found else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ReleasesTogether | None:
    return ReleasesTogether(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number of this test's own, made from the seed of the run: it does not depend on which other tests run."""
    run_seed = os.environ[SEED_VARIABLE]
    print(f"run again with {SEED_VARIABLE}={run_seed}")
    return zlib.crc32(f"{run_seed} {request.node.nodeid}".encode())
