"""What all tests share: how long hypothesis searches, and the seed of the run.

Whoever changes nothing sees nothing new: a plain run takes the same cases every time, so that a failure comes from the
change and not from the dice. ``make test-all`` is the one that searches: ``COURSER_SEED=random`` draws a new seed, and
``--hypothesis-profile=long`` tries more examples, new ones each time. Tests that throw dice take the ``seed`` fixture;
a failure shows the number, and ``COURSER_SEED`` brings the same run back.
"""

import os
import random
import re
import sys
import zlib

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

pytest_plugins = ["tests.spark_fixtures", "tests.wheels", "tests.container"]

SEED_VARIABLE = "COURSER_SEED"
SEED_DEFAULT = "20261115"
"""Of a run that does not ask for another one: any number does, as long as it stays."""
SEED_DRAWN = "random"
"""The value of the variable that asks for a new seed."""

WITH_WHEEL = ("tests/test_packaging.py::", "tests/test_deployment.py::", "tests/test_five_minutes.py::")
"""The tests that share the wheel, and an environment in which it is installed."""
WITH_SPARK = ("tests/spark/", "tests/jobs/", "tests/lake/", "tests/pipelines/")
"""The directories whose tests may use the Spark session. They share one, and so one process."""
WITHOUT_SESSION = (
    "tests/lake/",
    "tests/pipelines/test_checkpoint.py",
    "tests/pipelines/test_commands.py",
    "tests/pipelines/test_definition.py",
    "tests/pipelines/test_failing.py",
    "tests/pipelines/test_kills.py",
    "tests/pipelines/test_locking.py",
    "tests/pipelines/test_origin.py",
    "tests/pipelines/test_progress.py",
    "tests/pipelines/test_publishing.py",
    "tests/pipelines/test_server_side.py",
    "tests/pipelines/test_sources.py",
    "tests/pipelines/test_supervision.py",
    "tests/pipelines/test_table_kills.py",
    "tests/spark/test_admission.py",
    "tests/spark/test_decoding.py",
    "tests/spark/test_encoding.py",
    "tests/spark/test_java.py",
    "tests/spark/test_options.py",
    "tests/spark/test_planning.py",
    "tests/spark/test_preparing.py",
    "tests/spark/test_read_errors.py",
    "tests/spark/test_reference.py",
    "tests/spark/test_segments.py",
    "tests/spark/test_several_topics.py",
    "tests/spark/test_topic_names.py",
)
"""The modules there that use no session: each of them runs on any worker, beside the session."""
WITH_CLUSTER = ("tests/spark/test_cluster.py", "tests/pipelines/test_cluster.py")
"""The tests that share a Spark cluster."""
SESSION_SCOPE, CLUSTER_SCOPE, WHEEL_SCOPE = "session", "cluster", "wheel"
SHARED_FIXTURES = {"spark": SESSION_SCOPE, "cluster": CLUSTER_SCOPE, "image": WHEEL_SCOPE}
"""Fixtures that are so costly that they may be made on one worker only."""
WITH_JAVA_OF_THEIR_OWN = ("tests/demo/", "tests/examples/")
SPARK_TIMEOUT = 900.0
"""Seconds of a test with Spark, in place of those in pyproject.toml: a Java that starts on a busy machine takes a
minute, and some tests start several. Who is interrupted in the middle of a call to Java leaves the session useless for
all tests that come after."""

LONG_PROFILE = "long"

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
    LONG_PROFILE,
    deadline=None,
    max_examples=5_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")


def pytest_configure() -> None:
    # Tests start hundreds of servers and commands. Without bytecode on disk, each of them compiles every module it
    # imports, and takes more than twice the CPU time to start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Into the environment, so that the workers of xdist, which inherit it, draw from the same seed.
    chosen = os.environ.get(SEED_VARIABLE) or SEED_DEFAULT
    os.environ[SEED_VARIABLE] = str(random.SystemRandom().randrange(2**32)) if chosen == SEED_DRAWN else chosen


def pytest_report_header() -> str:
    return f"seed: {SEED_VARIABLE}={os.environ[SEED_VARIABLE]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, scope in SHARED_FIXTURES.items():
            if name in getattr(item, "fixturenames", ()) and _scope_of(item.nodeid) != scope:
                raise pytest.UsageError(f"{item.nodeid} uses {name} outside its scope: see tests/conftest.py")
        is_with_spark = item.nodeid.startswith((*WITH_SPARK, *WITH_JAVA_OF_THEIR_OWN))
        if is_with_spark and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT))


def _scope_of(nodeid: str) -> str:
    """Tests of the same scope run on the same worker, one after the other."""
    module = nodeid.partition("::")[0]
    if nodeid.startswith(WITH_WHEEL):
        return WHEEL_SCOPE
    if nodeid.startswith(WITH_CLUSTER):
        return CLUSTER_SCOPE
    if nodeid.startswith(WITH_SPARK):
        return module if module.startswith(WITHOUT_SESSION) else SESSION_SCOPE
    if nodeid.startswith(("tests/torture/", "tests/replay/test_replay.py", *WITH_JAVA_OF_THEIR_OWN)):
        return module
    found = re.fullmatch(r"tests/sdk/test_scenarios\.py::\w+\[(\d+\.\d+\.\d+)\b.*", nodeid)
    return found[1] if found else nodeid


class SharedTogether(LoadScopeScheduling):  # type: ignore[misc]
    """Each test goes to the next worker that is free, but tests that share something large stay on one worker.

    The scenarios of an SDK release share a child process, and the last of them asks it what none of them has used. The
    tests of the wheel share an environment that takes a minute to install. The replayed sections are played once and
    judged twice. Each module of the torture tests, of the demo and of the examples has something large of its own. All
    tests that use the Spark session share one Java, and those that use the cluster share six. (The ``loadgroup`` of
    xdist 3.8 is meant for this, and groups nothing under pytest 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return _scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SharedTogether | None:
    return SharedTogether(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether this is a run of ``make test-all``. A plain run tries every case too, with fewer draws of the dice."""
    return bool(request.config.getoption("--hypothesis-profile") == LONG_PROFILE)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number of this test's own, made from the seed of the run: it does not depend on which other tests run."""
    run_seed = os.environ[SEED_VARIABLE]
    print(f"run again with {SEED_VARIABLE}={run_seed}")
    return zlib.crc32(f"{run_seed} {request.node.nodeid}".encode())
