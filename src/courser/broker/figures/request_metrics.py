"""How long requests take and why they fail, by command."""

from collections.abc import Iterator

from courser.api import commands as c
from courser.errors import CourserError
from courser.model import metric_table as m
from courser.model.metrics import MICROSECOND, REQUEST_POWERS, PowerHistogram, Registry, Sample


class RequestMetrics:
    """Counts the requests of all transports. The dispatcher adds to it."""

    def __init__(self, registry: Registry) -> None:
        self._durations: dict[type[c.Command], PowerHistogram] = {}
        self._failures = registry.counters(m.FAILED_REQUESTS)
        registry.collected(m.REQUEST_DURATION, self._samples)

    def durations_of(self, command: type[c.Command]) -> PowerHistogram:
        """For one command, in microseconds."""
        return self._durations.setdefault(command, PowerHistogram(REQUEST_POWERS, MICROSECOND))

    def note_failure(self, command: c.Command, error: CourserError) -> None:
        """A request was refused, or failed."""
        self._failures.of(type(command).__name__, error.code.name.lower()).value += 1

    def _samples(self) -> Iterator[Sample]:
        """The durations of the commands that were used."""
        for command, durations in self._durations.items():
            if durations.count:
                yield Sample(m.REQUEST_DURATION.labeled(command.__name__), durations)
