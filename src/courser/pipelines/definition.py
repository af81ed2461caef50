"""A pipeline definition as frozen values, and where it starts. ``definition_file`` builds it from TOML."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from courser.pipelines.definition_keys import alike

Mode = Literal["continuous", "once"]


@dataclass(frozen=True, slots=True)
class TopicName:
    """A stream and a topic in it."""

    stream: str
    topic: str

    def __str__(self) -> str:
        return f"{self.stream}/{self.topic}"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new checkpoint starts."""

    offsets: str = "earliest"
    """``earliest``, ``latest``, or a JSON object of offsets by partition."""
    timestamp: str | None = None
    """An ISO 8601 time, instead of offsets."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to decode payloads, and what to do with those that cannot be decoded."""

    format: str = "raw"
    schema: str | None = None
    avro_schema: Path | None = None
    delimiter: str = ","
    with_metadata: bool = True
    on_bad_row: str = "fail"
    quarantine_topic: TopicName | None = None
    quarantine_path: str | None = None


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A topic to read."""

    place: TopicName
    start: Start
    consumer: str
    max_messages_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    with_headers: bool = False
    fail_on_data_loss: bool = True

    def __str__(self) -> str:
        return str(self.place)


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files to read. Each file is read once."""

    path: str
    format: str
    schema: str | None
    delimiter: str = ","
    max_files_per_trigger: int | None = None
    on_bad_row: str = "fail"

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Transform:
    """The SQL query, if there is one."""

    sql: str | None = None
    watermark: tuple[str, str] | None = None
    """Column and delay."""
    output_mode: str = "append"


@dataclass(frozen=True, slots=True)
class SinkDefinition:
    """Where rows are written. Which fields are used depends on the type."""

    type: str
    path: str | None = None
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    table: str | None = None
    place: TopicName | None = None
    key: str | None = None
    partitioning: str | None = None
    create_partitions: int | None = None
    rows: int = 20

    def __str__(self) -> str:
        return f"{self.type} {self.place or self.path or ''}".strip()


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The server, as far as the file specifies it."""

    url: str | None = None
    context: str | None = None
    username: str | None = None
    password_file: Path | None = None
    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Supervision:
    """How to handle failures. Times are microseconds."""

    restarts: int
    delay: int
    delay_max: int


@dataclass(frozen=True, slots=True)
class Definition:
    """One pipeline."""

    path: Path
    name: str
    mode: Mode
    trigger: int
    """Microseconds between the starts of two batches."""
    checkpoint: Path
    supervision: Supervision
    server: ServerAccess
    source: TopicSource | FileSource
    decoding: Decoding
    transform: Transform
    sink: SinkDefinition
    spark: Mapping[str, str] = field(default_factory=dict)


# --- starting points ----------------------------------------------------------------------------------


def parse_start(text: str) -> Start:
    """Parse ``earliest``, ``latest``, a time, or offsets by partition. Raises ``ValueError`` with what is wrong."""
    word = text.strip()
    if word in ("earliest", "latest"):
        return Start(word)
    if word.startswith("{"):
        try:
            offsets = json.loads(word)
        except ValueError:
            offsets = None
        if isinstance(offsets, dict) and offsets and all(_is_offset(*item) for item in offsets.items()):
            return Start(json.dumps(dict(sorted(offsets.items(), key=lambda item: int(item[0])))))
        raise ValueError(f'must be offsets by partition such as {{"0": 1200, "1": 987}}, not {word[:80]}')
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        near = alike(word, ("earliest", "latest"))
        raise ValueError(f'must be "earliest", "latest", a time or offsets as JSON, not "{word[:80]}"{near}') from None
    if moment.tzinfo is None:
        raise ValueError(f'needs a time zone: "{word}Z" is UTC')
    return Start("earliest", moment.isoformat())


def completed(start: Start, partitions: Sequence[int]) -> Start:
    """The start with an offset for every partition. Partitions that it does not name start at their beginning.

    Otherwise Spark's stream would start them at their end, and nobody would notice the missing messages.
    """
    if not start.offsets.startswith("{"):
        return start
    offsets = {str(partition): -2 for partition in partitions} | json.loads(start.offsets)
    return Start(json.dumps(dict(sorted(offsets.items(), key=lambda item: int(item[0])))))


def _is_offset(partition: str, offset: object) -> bool:
    is_number = isinstance(offset, int) and not isinstance(offset, bool)
    return bool(re.fullmatch(r"[0-9]{1,9}", partition)) and is_number and -2 <= int(str(offset)) < 2**63
