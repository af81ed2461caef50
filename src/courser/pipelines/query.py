"""What the supervisor needs of a query, whoever runs it: Spark's engine for streams, or the loop that fills a table."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from courser.errors import ClientFailure
from courser.pipelines.progress import QueryProgress, parse_progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class Query(Protocol):
    """Moves rows in a thread or a process of its own."""

    @property
    def run(self) -> str:
        """Names this run of it."""

    @property
    def is_beginning(self) -> bool:
        """Whether it has not looked at its source yet."""

    @property
    def is_busy(self) -> bool:
        """Whether it is in the middle of a batch."""

    def progress(self) -> Sequence[QueryProgress]:
        """The newest records, oldest first."""

    def await_end(self, seconds: float) -> bool:
        """Wait up to ``seconds``. Returns whether it has ended. Raises what it failed with."""

    def stop(self) -> None:
        """End it, also in the middle of a batch."""


class SparkQuery:
    """A streaming query of Spark."""

    def __init__(self, query: "StreamingQuery") -> None:
        self._query = query

    @property
    def run(self) -> str:
        return str(self._query.runId)

    @property
    def is_beginning(self) -> bool:
        return self._query.isActive and bool(self._query.status["message"].startswith("Initializing"))

    @property
    def is_busy(self) -> bool:
        return bool(self._query.status["isTriggerActive"])

    def progress(self) -> Sequence[QueryProgress]:
        return [parse_progress(_plain(record)) for record in self._query.recentProgress]

    def await_end(self, seconds: float) -> bool:
        # It accepts fractions of a second, although its annotation does not say so.
        return bool(self._query.awaitTermination(seconds))  # type: ignore[arg-type]

    def stop(self) -> None:
        self._query.stop()


def _plain(record: object) -> Mapping[str, object]:
    """A progress record as a dictionary, which Spark's record objects also are."""
    if isinstance(record, dict):
        return record
    raise ClientFailure(f"this version of Spark is not supported: its progress is a {type(record).__name__}")
