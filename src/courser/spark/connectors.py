"""The jars with which Spark reaches object stores: which ones a Spark lacks, and how to give it them.

The parts of Hadoop must have exactly the version of Spark's own Hadoop. What a part needs is found by its coordinates;
only a folder without access to Maven needs the names of all the files.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from courser.errors import ClientFailure
from courser.spark.addresses import is_address, scheme_of
from courser.spark.connect import runs_remotely

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTORS = {"s3a": "hadoop-aws", "abfss": "hadoop-azure", "gs": "hadoop-gcp"}
"""Parts of Hadoop by the scheme that they serve."""
_SAME = {"abfs": "abfss"}
_GOOGLE_SINCE = (3, 5)
"""The first Hadoop that has a part for ``gs``. Google's own connector for older ones needs settings of its own."""
_AWS_JARS = {
    "3.4.1": ("bundle-2.24.6",),
    "3.4.2": ("bundle-2.29.52", "analyticsaccelerator-s3-1.2.1"),
    "3.4.3": ("bundle-2.35.4", "analyticsaccelerator-s3-1.3.1"),
    "3.5.0": ("bundle-2.35.4", "analyticsaccelerator-s3-1.3.1"),
}
"""What ``hadoop-aws`` needs besides Spark's own jars, by its version."""


class FileSystemMissing(ClientFailure):
    """No file system of Spark knows an address."""

    def __init__(self, scheme: str, hadoop: str) -> None:
        super().__init__(f"no file system of Spark knows {scheme}://; {advice(scheme, hadoop)}")


def coordinates(scheme: str, hadoop: str) -> str | None:
    """What ``spark.jars.packages`` takes for a scheme; None if it is not known."""
    scheme = _SAME.get(scheme, scheme)
    if scheme not in CONNECTORS or (scheme == "gs" and tuple(map(int, hadoop.split(".")[:2])) < _GOOGLE_SINCE):
        return None
    return f"org.apache.hadoop:{CONNECTORS[scheme]}:{hadoop}"


def advice(scheme: str, hadoop: str) -> str:
    """How to give Spark a file system."""
    wanted = coordinates(scheme, hadoop)
    if wanted is None:
        return "give it the jars of that file system with spark.jars.packages or spark.jars"
    said = f"set spark.jars.packages to {wanted}"
    if jars := jars_of(scheme, hadoop):
        said += f", or put {' and '.join(jars)} into a folder and set spark.jars to FOLDER/*.jar"
    return said


def jars_of(scheme: str, hadoop: str) -> Sequence[str]:
    """The files that a folder needs, where they are known."""
    if scheme != "s3a" or hadoop not in _AWS_JARS:
        return ()
    return tuple(f"{name}.jar" for name in (f"hadoop-aws-{hadoop}", *_AWS_JARS[hadoop]))


def file_system(session: "SparkSession", address: str) -> Any:
    """Java's file system for an address, with the settings that Spark's own checkpoints get.

    Raises:
        FileSystemMissing: Spark has none.
    """
    jvm: Any = session._jvm
    try:
        return jvm.org.apache.hadoop.fs.Path(address).getFileSystem(
            session._jsparkSession.sessionState().newHadoopConf()
        )
    except Exception as error:
        if _is_missing(error):
            hadoop = jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            raise FileSystemMissing(scheme_of(address), hadoop) from error
        raise


def check_readable(session: "SparkSession", place: str) -> None:
    """Raises ``FileSystemMissing`` for an address that Spark does not know: it would name a class of Java itself."""
    if is_address(place) and not runs_remotely(session):
        file_system(session, place)


def _is_missing(error: Exception) -> bool:
    text = str(error)
    return "UnsupportedFileSystemException" in text or "ClassNotFoundException" in text or "NoClassDefFound" in text
