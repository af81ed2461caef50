"""A pipeline as frozen values. ``definition_file`` makes them from TOML."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Mode = Literal["continuous", "once"]


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """A topic."""

    stream: str
    topic: str

    def __str__(self) -> str:
        return f"{self.stream}/{self.topic}"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new checkpoint begins."""

    offsets: str = "earliest"
    """``earliest``, ``latest``, or a JSON object from partition to offset."""
    timestamp: str | None = None
    """ISO 8601, in place of offsets."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """What a payload is, and what becomes of those that are not."""

    format: str = "raw"
    schema: str | None = None
    avro_schema: Path | None = None
    delimiter: str = ","
    with_metadata: bool = True
    on_bad_row: str = "fail"
    quarantine_topic: TopicPlace | None = None
    quarantine_path: str | None = None


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A topic, read from a starting point on."""

    place: TopicPlace
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
    """Files: each one is read once."""

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
    """The query, if there is one."""

    sql: str | None = None
    watermark: tuple[str, str] | None = None
    """Column and delay."""
    output_mode: str = "append"


@dataclass(frozen=True, slots=True)
class Sink:
    """Where rows go. Which fields mean something depends on the type."""

    type: str
    path: str | None = None
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    table: str | None = None
    place: TopicPlace | None = None
    key: str | None = None
    partitioning: str | None = None
    create_partitions: int | None = None
    rows: int = 20

    def __str__(self) -> str:
        return f"{self.type} {self.place or self.path or ''}".strip()


@dataclass(frozen=True, slots=True)
class ServerWish:
    """Which server, as far as the file says."""

    url: str | None = None
    context: str | None = None
    username: str | None = None
    password_file: Path | None = None
    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Supervision:
    """What becomes of a failure. Times are microseconds."""

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
    """Microseconds between the beginnings of two batches."""
    checkpoint: Path
    supervision: Supervision
    server: ServerWish
    source: TopicSource | FileSource
    decoding: Decoding
    transform: Transform
    sink: Sink
    spark: Mapping[str, str] = field(default_factory=dict)
