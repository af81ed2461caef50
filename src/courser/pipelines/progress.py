"""Parses Spark's progress records: offsets, rates, lag and losses of a batch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from courser.pipelines.decode import OBSERVED


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """One progress record of a streaming query."""

    batch: int
    rows: int
    rows_per_second: float
    milliseconds: int
    milliseconds_by_part: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    """The next offset by partition."""
    lag: Mapping[str, int] = field(default_factory=dict)
    """Empty before Spark 4.2, which does not ask sources for their newest offsets."""
    lost: int = 0
    bad_rows: int = 0
    watermark: str | None = None
    moment: str = ""
    """When the batch began, as Spark writes it."""
    files: int = 0
    """Of a table, that the batch has added."""
    fresh_at: int | None = None
    """All messages from before this time are in the table. Microseconds."""
    committed_at: int | None = None
    """When the table got its newest rows."""
    trouble: str | None = None
    """What it waits for to end by itself, in one line."""

    @property
    def is_batch(self) -> bool:
        """Whether a batch was run. The records of an idle query have the number of the next batch."""
        return bool(self.rows) or "addBatch" in self.milliseconds_by_part


def parse_progress(record: Mapping[str, Any]) -> QueryProgress:
    """Parse one record. Fields that this version of Spark does not write count as empty."""
    durations = {str(name): int(value) for name, value in (record.get("durationMs") or {}).items()}
    sources = record.get("sources") or [{}]
    end, latest = offsets_of(sources[0].get("endOffset")), offsets_of(sources[0].get("latestOffset"))
    observed = _observed((record.get("observedMetrics") or {}).get(OBSERVED))
    # Spark counts what a sink reads twice twice, and reports of files instead of their rows.
    rows = observed.get("rows") or sum(int(source.get("numInputRows") or 0) for source in sources)
    milliseconds = durations.get("triggerExecution", 0)
    return QueryProgress(
        batch=int(record.get("batchId", 0)),
        rows=rows,
        rows_per_second=rows * 1000 / max(1, milliseconds),
        milliseconds=milliseconds,
        milliseconds_by_part={name: value for name, value in durations.items() if name != "triggerExecution"},
        ends=end.next,
        lag={part: max(0, head - end.next.get(part, 0)) for part, head in latest.next.items()},
        lost=end.lost,
        bad_rows=observed.get("bad", 0),
        watermark=(record.get("eventTime") or {}).get("watermark"),
        moment=str(record.get("timestamp", "")),
    )


@dataclass(frozen=True, slots=True)
class _Offsets:
    next: Mapping[str, int]
    lost: int = 0

    def __bool__(self) -> bool:
        return bool(self.next)


def offsets_of(value: object) -> _Offsets:
    """The offsets of a topic in a progress record, as text or as an object; empty for other sources."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return _Offsets({})
    if not isinstance(value, dict) or not isinstance(value.get("p"), dict):
        return _Offsets({})
    return _Offsets({str(part): int(offset) for part, offset in value["p"].items()}, _lost(value.get("lost")))


def _lost(value: object) -> int:
    if isinstance(value, dict):
        return sum(int(count) for count in value.values())
    return value if isinstance(value, int) else 0


def _observed(found: Any) -> Mapping[str, int]:
    """Observed metrics by name, from a dictionary or a row."""
    if found is None:
        return {}
    values: dict[str, Any] = found if isinstance(found, dict) else found.asDict()
    if values.keys() == {"values", "schema"}:
        # A Spark server sends the row as its parts.
        values = dict(zip((part["name"] for part in values["schema"]["fields"]), values["values"], strict=True))
    return {name: int(value or 0) for name, value in values.items()}
