"""What all tests share: Hypothesis profiles, the random seed, and which tests run on the same worker.

A plain run uses the same seed and examples every time, so that a failure comes from a change in the code. ``make
test-all`` explores: ``COURSER_SEED=random`` draws a new seed, and ``--hypothesis-profile=long`` tries more and new
examples. Tests that need random numbers use the ``seed`` fixture. A failure prints the seed, and ``COURSER_SEED``
repeats the run.
"""

import contextlib
import gc
import importlib.metadata
import os
import random
import re
import signal
import sys
import zlib

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

pytest_plugins = ["tests.spark_fixtures", "tests.wheels", "tests.container"]

SEED_VARIABLE = "COURSER_SEED"
SEED_DEFAULT = "20261115"
"""The seed of a plain run: an arbitrary but constant number."""
SEED_DRAWN = "random"
"""The value of the variable that draws a new seed."""

WITH_WHEEL = ("tests/test_packaging.py::", "tests/test_deployment.py::", "tests/test_five_minutes.py::")
"""The tests that share the wheel and an environment with it."""
WITH_SPARK = ("tests/spark/", "tests/jobs/", "tests/lake/", "tests/pipelines/")
"""The directories whose tests may use the Spark session. They share one session, and therefore one process."""
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
    "tests/pipelines/test_source_frames.py",
    "tests/pipelines/test_supervision.py",
    "tests/pipelines/test_table_kills.py",
    "tests/spark/test_addresses.py",
    "tests/spark/test_admission.py",
    "tests/spark/test_archive_auto.py",
    "tests/spark/test_archive_source.py",
    "tests/spark/test_condensed_segments.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_connect_kills.py",
    "tests/spark/test_decoding.py",
    "tests/spark/test_encoding.py",
    "tests/spark/test_java.py",
    "tests/spark/test_options.py",
    "tests/spark/test_packing.py",
    "tests/spark/test_planning.py",
    "tests/spark/test_postgresql.py",
    "tests/spark/test_installing.py",
    "tests/spark/test_read_errors.py",
    "tests/spark/test_releases.py",
    "tests/spark/test_segments.py",
    "tests/spark/test_sent_to_tasks.py",
    "tests/spark/test_several_topics.py",
    "tests/spark/test_topic_names.py",
)
"""The modules there that use no session. Each of them can run on any worker."""
WITH_CLUSTER = ("tests/spark/test_cluster.py", "tests/pipelines/test_cluster.py")
"""The tests that share a Spark cluster."""
SESSION_SCOPE, CLUSTER_SCOPE, WHEEL_SCOPE = "session", "cluster", "wheel"
SHARED_FIXTURES = {"spark": SESSION_SCOPE, "cluster": CLUSTER_SCOPE, "image": WHEEL_SCOPE}
"""Fixtures that are so expensive that only one worker may create them."""
WITH_JAVA_OF_THEIR_OWN = ("tests/demo/", "tests/examples/")
WITH_SETUP_OF_THEIR_OWN = (
    "tests/archive/test_s3.py",
    "tests/torture/",
    "tests/replay/test_replay.py",
    "tests/test_tidy.py",
)
"""Modules whose tests share something that takes long to make."""
SPARK_TIMEOUT = 900.0
"""Timeout of a test with Spark in seconds, instead of the one in pyproject.toml. On a busy machine, Java takes a minute
to start, and some tests start it several times. A test that is interrupted during a call to Java makes the session
unusable for all later tests."""

LONG_PROFILE = "long"

settings.register_profile(
    "default",
    deadline=None,
    max_examples=60,
    print_blob=True,
    # Examples depend only on the test, not on earlier runs.
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


def has_old_spark() -> bool:
    """Whether this is Spark 4.0 or 4.1, which leave sockets to the garbage collector."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("pyspark").startswith(("4.0.", "4.1."))
    return False


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs so, and programs that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests start hundreds of servers and commands. Without bytecode on disk, each of them compiles every module it
    # imports, and takes more than twice the CPU time to start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Nobody here multiplies matrices. The threads that NumPy's library starts for that would take a quarter of the CPU
    # time that a server needs to start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if has_old_spark():
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
        config.addinivalue_line(
            "filterwarnings", "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
        )
    # In the environment, so that the workers of xdist inherit the same seed.
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


def pytest_collection_finish() -> None:
    # The tests are half a million objects, which stay: the garbage collector need not go through them each time.
    gc.freeze()


def _scope_of(nodeid: str) -> str:
    """The scope of a test. Tests with the same scope run on the same worker, one after another."""
    module = nodeid.partition("::")[0]
    if nodeid.startswith(WITH_WHEEL):
        return WHEEL_SCOPE
    if nodeid.startswith(WITH_CLUSTER):
        return CLUSTER_SCOPE
    if nodeid.startswith(WITH_SPARK):
        return module if module.startswith(WITHOUT_SESSION) else SESSION_SCOPE
    if nodeid.startswith((*WITH_SETUP_OF_THEIR_OWN, *WITH_JAVA_OF_THEIR_OWN)):
        return module
    found = re.fullmatch(r"tests/sdk/test_scenarios\.py::\w+\[(\d+\.\d+\.\d+)\b.*", nodeid)
    return found[1] if found else nodeid


class SharedTogether(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each test to the next free worker, but keeps tests that share something expensive on one worker.

    The scenarios of an SDK release share a child process, and the last one checks which methods none of them has used.
    The tests of the wheel share an environment that takes a minute to install. The replayed sections are replayed once
    and judged twice. The house rules share the parsed sources. The tests of S3 share
    a server. Each module of the torture tests, the demo and the
    examples has its own expensive setup. All tests with the Spark session share one Java process, and those with the
    cluster share six. (xdist 3.8 has ``loadgroup`` for this, but it does not work with pytest 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return _scope_of(nodeid)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        # For each test that is done, the base class goes through all scopes that the worker was ever given. Most scopes
        # are a single test, so that would be 20 seconds of CPU time in a run.
        scope = _scope_of(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SharedTogether | None:
    return SharedTogether(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether this is a run of ``make test-all``. A plain run tries every case too, with fewer random examples."""
    return bool(request.config.getoption("--hypothesis-profile") == LONG_PROFILE)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed for this test, derived from the seed of the run. It does not depend on which other tests run."""
    run_seed = os.environ[SEED_VARIABLE]
    print(f"run again with {SEED_VARIABLE}={run_seed}")
    return zlib.crc32(f"{run_seed} {request.node.nodeid}".encode())
