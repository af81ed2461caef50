"""What pipelines have reported, for those who look at the server. In memory: a pipeline reports again by itself."""

from courser.api.commands import ReportPipeline
from courser.errors import CommandRejected, ErrorCode
from courser.model.clock import Clock

COUNT_MAX = 200
"""Pipelines that are remembered. Beyond that, the one that has not reported for longest is forgotten."""
TEXT_SIZE_MAX = 32 * 1024
"""Bytes of each text of a report; with the count, this bounds the memory."""
LIFE = 7 * 86_400 * 1_000_000
"""Microseconds after which a pipeline that does not report any more is forgotten."""
_FRESH = 60 * 1_000_000
"""Microseconds for which a report with a definition counts more than one without, of the same query."""


class PipelineReports:
    """Keeps the last report of each pipeline, by user and name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reports: dict[tuple[int, str], tuple[int, ReportPipeline]] = {}

    def note(self, user_id: int, report: ReportPipeline) -> None:
        """Remember a report. Raises ``CommandRejected`` (3) for one that is too large."""
        for name in ("source", "sink", "error", "definition"):
            size = len(getattr(report, name).encode(errors="surrogatepass"))
            if size > TEXT_SIZE_MAX:
                reason = f"{name} has {size} bytes, more than the {TEXT_SIZE_MAX} that a report may have"
                raise CommandRejected(ErrorCode.INVALID_COMMAND, reason)
        now = self._clock.now()
        if not report.definition and self._has_better(user_id, report.name, now):
            return
        # Again at the end: the first one is the oldest.
        self._reports.pop((user_id, report.name), None)
        self._reports[user_id, report.name] = now, report
        while len(self._reports) > COUNT_MAX:
            del self._reports[next(iter(self._reports))]

    def _has_better(self, user_id: int, name: str, now: int) -> bool:
        """A pipeline of ``courser pipeline`` and its Spark query both report, and the first one knows more."""
        return any(
            owner == user_id and report.definition and name in (report.name, report.consumer) and now - time < _FRESH
            for (owner, _), (time, report) in self._reports.items()
        )

    def all(self) -> list[tuple[int, int, ReportPipeline]]:
        """User, time and report, by name and user."""
        now = self._clock.now()
        self._reports = {key: found for key, found in self._reports.items() if now - found[0] < LIFE}
        rows = ((name, user_id, *found) for (user_id, name), found in self._reports.items())
        return [(user_id, time, report) for _, user_id, time, report in sorted(rows, key=lambda row: row[:2])]
