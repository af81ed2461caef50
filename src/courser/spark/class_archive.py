"""A quicker start of Spark: the classes that a session loads, kept in a file that Java maps into memory.

Spark loads some ten thousand classes from three hundred jars before it answers the first question, and checks each of
them anew in every start. Java can keep the result (a dynamic archive of class data sharing): a start then takes half
the time. The file belongs to one Java and one pyspark; Java itself checks that they fit, and does without it if they do
not. It is made once, by a short session in a process of its own, when pyspark is installed by a command.
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
"""Seconds. It takes half a minute; on a machine that busy it would not pay."""
_SUFFIX = ".jsa"


def archive_path(java: Java, environment: Mapping[str, str]) -> Path:
    """Where the archive for this Java and the installed pyspark is, or would be."""
    import pyspark  # noqa: PLC0415 -- optional

    jars = Path(pyspark.__file__).parent / "jars"
    facts = (java.program.resolve(), java.program.stat().st_mtime_ns, jars, jars.stat().st_mtime_ns)
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
    return cache_directory(environment) / f"spark-{pyspark.__version__}-java-{java.version}-{digest}{_SUFFIX}"


def archive_options(java: Java, environment: Mapping[str, str]) -> str:
    """Options for Java that use the archive; nothing if there is none."""
    path = archive_path(java, environment)
    # Spark splits its settings at blanks.
    return f"-XX:SharedArchiveFile={path}" if path.is_file() and " " not in str(path) else ""


def make_archive(environment: Mapping[str, str], say: Callable[[str], None]) -> bool:
    """Make it unless it is there. A failure is no error: starts are slower without it. Returns whether it is there."""
    path = archive_path(find_java(environment), environment)
    if path.is_file():
        return True
    say("making the starts of Spark quicker, once")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as place:
            made = Path(place, path.name)
            if not _run_session(made, Path(place)):
                return False
            for outdated in path.parent.glob(f"spark-*{_SUFFIX}"):
                outdated.unlink(missing_ok=True)
            # Whole, or not there: others may start at this moment.
            made.replace(path)
    except OSError:
        return False
    return True


def _run_session(made: Path, place: Path) -> bool:
    """A session that does a little of everything, and writes the archive when it ends."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SESSION, str(made), str(place)],
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
