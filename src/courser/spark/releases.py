"""What differs between the releases of Spark that Courser runs on. No other module asks for the release.

The import fails with a sentence where Courser cannot work: ``pyspark_courser`` passes it on to those who use Spark
without any command of Courser.
"""

import inspect
from typing import TYPE_CHECKING, Any

import pyspark

from courser.errors import CourserError

SUPPORTED = "4.0 to 4.3"
"""The releases on which the tests run."""
_OLDEST, _END = (4, 0), (5, 0)


class SparkRefused(CourserError, ImportError):
    """Courser does not work with this release of Spark."""


def release_of(version: str) -> tuple[int, int]:
    """The release that a version belongs to: 4.3.0.dev1 is (4, 3)."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def check_release(version: str, place: str) -> None:
    """Raises ``SparkRefused`` if Courser does not work with this version of pyspark, which is installed there."""
    if not _OLDEST <= release_of(version) < _END:
        raise SparkRefused(
            f"Courser works with Spark {SUPPORTED}, but this is Spark {version} (in {place}); use an environment with "
            "'pyspark>=4.0,<5'"
        )


check_release(pyspark.__version__, pyspark.__path__[0])
SPARK = release_of(pyspark.__version__)
HAS_ADMISSION_CONTROL = SPARK >= (4, 2)
"""Whether Spark tells a stream where a micro-batch starts and which limit applies, knows the trigger ``availableNow``
for Python sources, and asks for the newest offsets."""

# --- limits and triggers of streams: 4.2 --------------------------------------------------------------

if TYPE_CHECKING or HAS_ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """Stands in for the class of Spark 4.2."""

    class ReadAllAvailable(ReadLimit):
        """Stands in for the class of Spark 4.2."""

    class ReadMaxRows(ReadLimit):
        """Stands in for the class of Spark 4.2."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class ReadMaxBytes(ReadLimit):
        """Stands in for the class of Spark 4.2."""

        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes

    class SupportsTriggerAvailableNow:
        """Stands in for the class of Spark 4.2."""


# --- streaming writes of Arrow batches: 4.1 -----------------------------------------------------------

if TYPE_CHECKING or SPARK >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """A streaming writer that gets Arrow batches: Spark 4.0 looks only for the class of batch writes."""


# --- Arrow schemas: other parameters since 4.2 --------------------------------------------------------


def arrow_schema(schema: Any) -> Any:
    """The Arrow schema that Spark expects of record batches with this schema, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 -- imports pyarrow, which only tasks need

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


__all__ = [
    "HAS_ADMISSION_CONTROL",
    "SPARK",
    "SUPPORTED",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SparkRefused",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "check_release",
    "release_of",
]
