"""A pipeline definition as frozen values, and every key of its file. ``definition_file`` builds it from TOML.

A key that is the value of a field is stated at that field. Keys that make up a value together with others, or that are
used by several classes, are constants. The reference of the keys is generated from them (``tools``).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from courser.configuration.key import Key, keys_in, setting, value_of
from courser.model import setting_kinds as kinds
from courser.model.quantities import SECOND
from courser.model.setting_kinds import SettingKind, quoted

Mode = Literal["continuous", "once"]
Kind = TypeVar("Kind")

NAME_LENGTH_MAX = 64
"""Characters. The name is also used for a folder, a consumer and a sink on the server."""
RESTARTS_MAX = 1_000
"""More restarts in a row would amount to never giving up, which nobody would notice."""
PARTITION_COLUMNS_MAX = 8
"""Levels of folders. Each one multiplies the number of files."""


# --- kinds --------------------------------------------------------------------------------------------


def _optional(kind: SettingKind[Kind]) -> SettingKind[Kind | None]:
    """The kind of a key that is None if it is absent."""
    return cast("SettingKind[Kind | None]", kind)


def _matching(name: str, expected: str, pattern: str) -> SettingKind[str]:
    def check(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.DOTALL):
            raise ValueError(value)
        return value

    return SettingKind(name, expected, check, check, quoted)


def _list_of(check: Callable[[object], str], expected: str) -> SettingKind[tuple[str, ...]]:
    def from_toml(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > PARTITION_COLUMNS_MAX or len(set(map(str, value))) < len(value):
            raise ValueError(value)
        return tuple(check(item) for item in value)

    def to_toml(value: tuple[str, ...]) -> str:
        return "[" + ", ".join(map(quoted, value)) + "]"

    return SettingKind("list", expected, from_toml, lambda text: from_toml(text.split(",")), to_toml)


_NAME = _optional(
    _matching(
        "name",
        f"up to {NAME_LENGTH_MAX} letters, digits, dots, dashes and underscores, beginning with a letter or digit",
        rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_LENGTH_MAX - 1}}}",
    )
)
_SQL = _optional(_matching("SQL", "one SQL query that begins with SELECT or WITH", r"\s*(?i:select|with)\b.+"))
_WATERMARK = _optional(
    _matching("watermark", 'a column and a delay, such as "at 10 minutes"', r"\s*\S+\s+[0-9]+\s+\S+.*")
)
_PLACE = _optional(_matching("topic", 'a stream and a topic, such as "shop/orders"', r"[^/]+/[^/]+"))
_TABLE = _optional(
    _matching("name", 'a namespace and a table, such as "shop.orders"', r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)+")
)
_COLUMN = _matching("column", "the name of a column", r"[^\s].*")
_COLUMNS = _list_of(_COLUMN.from_toml, f"a list of up to {PARTITION_COLUMNS_MAX} different columns")
_COUNT = _optional(kinds.integer(1, 2**63 - 1))
_LINES = _optional(_matching("text", "a non-empty text", r".*\S.*"))
_TEXT = _optional(kinds.TEXT)
LOCAL_PATH = "path"
"""The name of kinds whose values are paths of this machine. Addresses are refused."""
_FOLDER = _optional(replace(kinds.TEXT, name=LOCAL_PATH, expected="a path"))
_PATH_OR_ADDRESS = _optional(
    replace(kinds.TEXT, name="path or address", expected="a path, or an address such as s3a://lake/orders")
)


# --- the definition -----------------------------------------------------------------------------------


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


NAME = Key("pipeline.name", _NAME, None, "its name in `courser pipeline list` and on the server")
MODE = Key(
    "pipeline.mode",
    kinds.choice("continuous", "once"),
    "continuous",
    "`once` processes what is there and exits; `continuous` keeps running. `--once` and `--continuous` override it",
)
TRIGGER = Key(
    "pipeline.trigger",
    _optional(kinds.duration()),
    None,
    "time between the starts of two batches, or of two commits to a table; 0: no pause; default: 1 minute for rows "
    "that a table takes as they come, else 10 seconds",
)
TRIGGER_DEFAULT = 10 * SECOND
COMMIT_INTERVAL_DEFAULT = 60 * SECOND
"""Each commit to a table leaves files and a state of the table behind."""
CHECKPOINT = Key(
    "pipeline.checkpoint",
    _PATH_OR_ADDRESS,
    None,
    "the folder that stores its progress, also at an address such as `s3a://lake/checkpoints/orders`; default: "
    "`checkpoints/NAME` next to the file",
)


@dataclass(frozen=True, slots=True)
class Supervision:
    """How to handle failures. Times are microseconds."""

    restarts: int = setting(
        "pipeline.restarts",
        kinds.integer(0, RESTARTS_MAX),
        5,
        "consecutive failures without a finished batch in between before it gives up",
    )
    delay: int = setting(
        "pipeline.restart_delay",
        kinds.duration(),
        SECOND,
        "pause before the first restart; doubles with each restart",
    )
    delay_max: int = setting(
        "pipeline.restart_delay_max", kinds.duration(), 60 * SECOND, "the longest pause before a restart"
    )


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The server, as far as the file specifies it."""

    url: str | None = setting(
        "server.url",
        _TEXT,
        None,
        "`iggy://host:port`; default: as for all commands (`COURSER_URL`, `COURSER_CONTEXT`, the saved context)",
    )
    context: str | None = setting(
        "server.context", _TEXT, None, "a saved context (`courser context list`) instead of a url"
    )
    username: str | None = setting(
        "server.username", _TEXT, None, "the user name; default: `COURSER_USERNAME`, or from the url or context"
    )
    password_file: Path | None = setting(
        "server.password_file",
        kinds.FILE,
        None,
        "a file whose first line is the password; default: `COURSER_PASSWORD`",
    )
    token_file: Path | None = setting(
        "server.token_file", kinds.FILE, None, "a file whose first line is a token, instead of user and password"
    )


SOURCE_TYPE = Key(
    "source.type", kinds.choice("topic", "files"), "topic", "a topic on the server, or files for a backfill"
)
SOURCE_STREAM = Key("source.stream", _TEXT, None, "topic: the stream it is in")
SOURCE_TOPIC = Key("source.topic", _TEXT, None, "topic: its name")
STARTING = Key(
    "source.starting",
    kinds.TEXT,
    "earliest",
    "topic: where a new checkpoint starts: `earliest`, `latest`, a time such as `2026-11-01T00:00:00Z`, or offsets "
    'by partition as JSON: `{"0": 1200}`; partitions that are not named start at `earliest`',
)
CONSUMER = Key(
    "source.consumer", _NAME, None, "topic: the consumer to store progress for; default: the pipeline's name"
)


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A topic to read."""

    place: TopicName
    start: Start
    consumer: str
    max_messages_per_trigger: int | None = setting(
        "source.max_messages_per_trigger", _COUNT, None, "topic: maximum number of messages in a batch"
    )
    max_bytes_per_trigger: int | None = setting(
        "source.max_bytes_per_trigger",
        _optional(kinds.size(1)),
        None,
        "topic: maximum number of bytes in a batch; default: 512 MiB",
    )
    min_partitions: int | None = setting(
        "source.min_partitions",
        _optional(kinds.integer(1, 100_000)),
        None,
        "topic: minimum number of tasks in a batch",
    )
    with_headers: bool = setting(
        "source.headers", kinds.BOOL, False, "topic: whether to include `_headers`; reading it takes time"
    )
    fail_on_data_loss: bool = setting(
        "source.fail_on_data_loss",
        kinds.BOOL,
        True,
        "topic: stop if messages are gone before they were read; `false` counts them",
    )
    archive_config: Path | None = setting(
        "source.archive_config",
        kinds.FILE,
        None,
        "topic: the server's configuration file, which says where its archive is; old messages are then read from the "
        "archive, without the server",
    )
    data_directory: str | None = setting(
        "source.data_directory",
        _FOLDER,
        None,
        "topic: the server's data directory, as seen by the workers; sealed segments are then read from their files",
    )

    def __str__(self) -> str:
        return str(self.place)


SOURCE_PATH = Key(
    "source.path",
    _PATH_OR_ADDRESS,
    None,
    "files: the folder, or a pattern such as `in/*.json`, also at an address that Spark can read",
)
FILE_FORMAT = Key(
    "source.format", _optional(kinds.choice("parquet", "json", "csv", "text")), None, "files: their format"
)
SCHEMA = Key(
    "source.schema",
    _LINES,
    None,
    "json, csv and files: columns in SQL syntax: `id BIGINT, at TIMESTAMP`; json into a table: or `infer`, for the "
    "columns that the table has, or that a sample of the topic shows",
)
INFER = "infer"
"""The schema that a sample decides."""
DELIMITER = Key("source.delimiter", _matching("text", "one character", r"."), ",", "csv: the column separator")
ON_BAD_ROW = Key(
    "source.on_bad_row",
    _optional(kinds.choice("fail", "drop", "quarantine")),
    None,
    "rows that cannot be decoded: stop with an error, drop and count them, or put them into quarantine; default: "
    "`quarantine` for rows that a table takes as they come, in the table `NAME__bad` beside it, else `fail`",
)


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files to read. Each file is read once."""

    path: str
    format: str
    schema: str | None = value_of(SCHEMA)
    delimiter: str = value_of(DELIMITER)
    max_files_per_trigger: int | None = setting(
        "source.max_files_per_trigger", _COUNT, None, "files: maximum number of files in a batch"
    )
    on_bad_row: str = "fail"

    def __str__(self) -> str:
        return self.path


QUARANTINE_TOPIC = Key(
    "source.quarantine_topic", _PLACE, None, "on_bad_row = quarantine: `stream/topic` for the bad rows, unchanged"
)


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to decode payloads, and what to do with those that cannot be decoded."""

    format: str = setting(
        "source.decode",
        kinds.choice("raw", "json", "text", "csv", "avro"),
        "raw",
        "topic: the format of payloads; `raw` leaves them as bytes",
    )
    schema: str | None = value_of(SCHEMA)
    avro_schema: Path | None = setting(
        "source.avro_schema", kinds.FILE, None, "avro: the file (`.avsc`) with the schema of the payloads"
    )
    delimiter: str = value_of(DELIMITER)
    with_metadata: bool = setting(
        "source.metadata",
        kinds.BOOL,
        True,
        "topic, with decode: whether to add `_partition`, `_offset`, `_timestamp` and `_key` to the decoded columns",
    )
    on_bad_row: str = "fail"
    quarantine_topic: TopicName | None = None
    quarantine_path: str | None = setting(
        "source.quarantine_path", _FOLDER, None, "on_bad_row = quarantine: a folder for the bad rows, as Parquet"
    )


VIEW = "source"
"""The name of the rows in the query."""
WATERMARK = Key(
    "transform.watermark",
    _WATERMARK,
    None,
    "a time column and how late rows may be; older groups are closed and written",
)


@dataclass(frozen=True, slots=True)
class Transform:
    """The SQL query, if there is one."""

    sql: str | None = setting(
        "transform.sql",
        _SQL,
        None,
        "a query over the table `source`; without it, rows pass unchanged, which is faster",
    )
    watermark: tuple[str, str] | None = None
    """Column and delay."""
    output_mode: str = setting(
        "transform.output_mode",
        kinds.choice("append", "update", "complete"),
        "append",
        "`append`: closed groups; `update` (topic, console): changed groups; `complete` (console): all groups",
    )


TABLE_NAME = _matching("name", "letters, digits and underscores, beginning with a letter", r"[A-Za-z][A-Za-z0-9_]*")
TABLE_PATH = Key(
    "tables.NAME.path",
    _PATH_OR_ADDRESS,
    None,
    "the folder or file of a table that `sql` can name, also at an address that Spark can read",
)
TABLE_FORMAT = Key(
    "tables.NAME.format", _optional(kinds.choice("parquet", "json", "csv")), None, "its format; csv with a header line"
)
TABLE_SCHEMA = Key(
    "tables.NAME.schema", _LINES, None, "json, csv: its columns in SQL syntax; default: what the files look like"
)


@dataclass(frozen=True, slots=True)
class LookupTable:
    """A table beside the source, which the query can join with."""

    path: str
    format: str
    schema: str | None


SINK_TYPE = Key(
    "sink.type",
    _optional(kinds.choice("parquet", "delta", "iceberg", "topic", "console")),
    None,
    "where to write rows",
)
SINK_STREAM = Key("sink.stream", _TEXT, None, "topic: the stream it is in")
SINK_TOPIC = Key(
    "sink.topic",
    _TEXT,
    None,
    "topic: its name; sends the column `payload` unchanged if there is one, else the row as JSON",
)


@dataclass(frozen=True, slots=True)
class SinkDefinition:
    """Where rows are written. Which fields are used depends on the type."""

    type: str
    path: str | None = setting(
        "sink.path",
        _PATH_OR_ADDRESS,
        None,
        "parquet: the folder; delta: the folder, or an address such as `s3://lake/orders`; iceberg: the warehouse, "
        "with its catalog in `catalog.db` unless `catalog` names one",
    )
    partition_by: tuple[str, ...] = setting(
        "sink.partition_by",
        _COLUMNS,
        (),
        "parquet: columns to make folders from; `day` and `hour` are derived from `_timestamp` if no column has that "
        "name. delta, iceberg: columns, or `day(at)`, `hour(at)`, `month(at)`, `year(at)`, `bucket(16, customer)`, "
        "`truncate(4, sku)` of them",
    )
    compression: str = setting(
        "sink.compression",
        kinds.choice("zstd", "snappy", "gzip", "none"),
        "zstd",
        "parquet: compression of the files",
    )
    table: str | None = setting("sink.table", _TABLE, None, "iceberg: namespace and table")
    catalog: str | None = setting(
        "sink.catalog",
        _TEXT,
        None,
        "iceberg: the catalog: `https://…` (REST), `thrift://…` (Hive), `sqlite:///…` or `postgresql://…` (SQL), "
        "`glue`, or a name of pyiceberg's own configuration",
    )
    endpoint: str | None = setting(
        "sink.endpoint", _TEXT, None, "delta, iceberg: the address of a store that is not the provider's own"
    )
    region: str | None = setting("sink.region", _TEXT, None, "delta, iceberg: the region of the store")
    place: TopicName | None = None
    key: str | None = setting("sink.key", _optional(_COLUMN), None, "topic: the column with the message key")
    partitioning: str | None = setting(
        "sink.partitioning",
        _optional(kinds.choice("key", "balanced", "column")),
        None,
        "topic: as in the Spark sink",
    )
    create_partitions: int | None = setting(
        "sink.create_partitions",
        _optional(kinds.integer(1, 1_000)),
        None,
        "topic: create it if it is missing, with this many partitions",
    )
    rows: int = setting("sink.rows", kinds.integer(1, 10_000), 20, "console: rows to show per batch")

    def __str__(self) -> str:
        return f"{self.type} {self.place or self.table or self.path or ''}".strip()


@dataclass(frozen=True, slots=True)
class Definition:
    """What a pipeline file says."""

    path: Path
    name: str
    mode: Mode
    trigger: int
    """Microseconds between the starts of two batches."""
    checkpoint: str
    """A path of this machine, or an address. A table that is the checkpoint needs none."""
    supervision: Supervision
    server: ServerAccess
    source: TopicSource | FileSource
    decoding: Decoding
    transform: Transform
    sink: SinkDefinition
    tables: Mapping[str, LookupTable] = field(default_factory=dict)
    """By the name that the query uses."""
    spark: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_table(self) -> bool:
        """Whether the sink is a table that stores the position with the rows, so that Spark keeps no checkpoint."""
        return is_own_checkpoint(self.sink.type, self.transform.sql, is_topic=isinstance(self.source, TopicSource))


_STATEFUL = re.compile(
    r"\b(group\s+by|distinct|join|over\s*\(|count|sum|avg|min|max|collect_\w+|first|last|dedup\w*|session_window|window"
    r"|limit)\b",
    re.IGNORECASE,
)
"""What makes a query stateful. A false positive costs an unnecessary reset; a false negative lets Spark fail in the
middle of a run, or applies the query to each step of a table apart."""
TABLE_FORMATS = ("delta", "iceberg")


def is_stateful(sql: str | None) -> bool:
    """Whether a query keeps state between batches, judging by its text."""
    return sql is not None and _STATEFUL.search(sql) is not None


def is_own_checkpoint(sink_type: str, sql: str | None, *, is_topic: bool) -> bool:
    """Whether a table takes the rows of a topic as they come."""
    return sink_type in TABLE_FORMATS and is_topic and not is_stateful(sql)


TABLES: tuple[str, ...] = ("pipeline", "server", "source", "transform", "tables", "sink", "spark")
REQUIRED = (NAME, TABLE_PATH, TABLE_FORMAT, SINK_TYPE)
BY_TABLE: Mapping[str, Mapping[str, Key[Any]]] = {
    table: {key.path.removeprefix(f"{table}."): key for key in keys_in(globals()) if key.path.startswith(f"{table}.")}
    for table in TABLES
}
"""Every key by its name in its table."""


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


def alike(word: str, known: Iterable[str], table: str = "") -> str:
    """A suggestion to append to an error about an unknown word: the closest known one, or all of them."""
    names = list(known)
    near = get_close_matches(word.lower(), names, n=1)
    if near:
        return f"; did you mean {f'{table}.' if table else ''}{near[0]}?"
    return f"; known: {', '.join(names)}"
