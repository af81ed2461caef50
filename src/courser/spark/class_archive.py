"""Speeds up the start of Spark with an archive of loaded classes that Java maps into memory.

Spark loads about ten thousand classes from three hundred jars before it answers its first query, and Java verifies them
at every start. Java can save the result (a dynamic class data sharing archive), which halves the start time. The
archive belongs to one Java and one pyspark; if they do not match, Java ignores it. It is created once, by a short
session in a process of its own, when a command installs pyspark.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from courser.spark.java import Java, cache_directory, find_java

_MAKING_TIME_MAX = 150.0
"""Seconds. It normally takes half a minute; on a machine that is slower than this it is not worth it."""
_SUFFIX = ".jsa"


def archive_path(java: Java, environment: Mapping[str, str]) -> Path:
    """The path of the archive for this Java and the installed pyspark. It may not exist."""
    import pyspark  # noqa: PLC0415 -- optional

    jars = Path(pyspark.__file__).parent / "jars"
    facts = (java.program.resolve(), java.program.stat().st_mtime_ns, jars, jars.stat().st_mtime_ns)
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
    return cache_directory(environment) / f"spark-{pyspark.__version__}-java-{java.version}-{digest}{_SUFFIX}"


def archive_options(java: Java, environment: Mapping[str, str]) -> str:
    """Java options that use the archive; empty if there is none."""
    path = archive_path(java, environment)
    # Spark splits this setting at blanks.
    return f"-XX:SharedArchiveFile={path}" if path.is_file() and " " not in str(path) else ""


_SESSION = """
import sys
from pathlib import Path
from courser.spark.session import end_java, spark_session

archive, place = sys.argv[1], Path(sys.argv[2])
options = {
    "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.local.dir": str(place / "local"),
    "spark.sql.warehouse.dir": str(place / "warehouse"),
}
spark = spark_session("class archive", "local[2]", options, log=place / "java.log")
rows = spark.range(100).selectExpr("id", "CAST(id % 3 AS STRING) AS name", "to_json(struct(id)) AS text")
rows.groupBy("name").count().orderBy("name").collect()
rows.write.partitionBy("name").parquet(str(place / "rows"))
spark.read.parquet(str(place / "rows")).where("id > 3").count()
query = (
    spark.readStream.schema("id BIGINT, text STRING, name STRING")
    .parquet(str(place / "rows"))
    .selectExpr("from_json(text, 'id BIGINT') AS one", "timestamp_seconds(id) AS at")
    .withWatermark("at", "1 second")
    .groupBy("at")
    .count()
    .writeStream.format("noop")
    .option("checkpointLocation", str(place / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
end_java()
"""


def make_archive(environment: Mapping[str, str], say: Callable[[str], None], session: str = _SESSION) -> bool:
    """Create the archive if it is missing. Returns whether it exists; without it, starts are only slower.

    ``session`` is a Python program that is given the path of the archive and a directory to work in.
    """
    path = archive_path(find_java(environment), environment)
    if path.is_file():
        return True
    say("preparing Spark for faster starts (only needed once)")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as place:
            made = Path(place, path.name)
            if not _run_session(session, made, Path(place)):
                return False
            for outdated in path.parent.glob(f"spark-*{_SUFFIX}"):
                outdated.unlink(missing_ok=True)
            # Atomically: another process may be starting Spark right now.
            made.replace(path)
    except OSError:
        return False
    return True


def _run_session(session: str, made: Path, place: Path) -> bool:
    """Run a session that does a little of everything and writes the archive when it exits."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", session, str(made), str(place)],
            env=dict(os.environ),
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MAKING_TIME_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and made.is_file()
