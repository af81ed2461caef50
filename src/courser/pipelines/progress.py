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

    @property
    def is_batch(self) -> bool:
        """Whether a batch was run. The records of an idle query have the number of the next batch."""
        return bool(self.rows) or "addBatch" in self.milliseconds_by_part


def parse_progress(record: Mapping[str, Any]) -> QueryProgress:
    """Parse one record. Fields that this version of Spark does not write count as empty."""
    durations = {str(name): int(value) for name, value in (record.get("durationMs") or {}).items()}
    sources = record.get("sources") or [{}]
    end, latest = offsets_of(sources[0].get("endOffset")), offsets_of(sources[0].get("latestOffset"))
    observed = (record.get("observedMetrics") or {}).get(OBSERVED) or {}
    return QueryProgress(
        batch=int(record.get("batchId", 0)),
        rows=int(record.get("numInputRows") or 0),
        rows_per_second=float(record.get("processedRowsPerSecond") or 0.0),
        milliseconds=durations.get("triggerExecution", 0),
        milliseconds_by_part={name: value for name, value in durations.items() if name != "triggerExecution"},
        ends=end.next,
        lag={part: max(0, head - end.next.get(part, 0)) for part, head in latest.next.items()},
        lost=end.lost,
        bad_rows=_count(observed, "bad"),
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


def _count(observed: Any, name: str) -> int:
    """The value of an observed metric, from a dictionary or from an object."""
    value = observed.get(name) if isinstance(observed, dict) else getattr(observed, name, None)
    return int(value or 0)
