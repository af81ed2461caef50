"""Every key of a pipeline file: table, kind, default and meaning. Its reference is generated from it (``tools``)."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from courser.model import setting_kinds as kinds
from courser.model.quantities import SECOND
from courser.model.setting_kinds import SettingKind, quoted

MODES = ("continuous", "once")
DECODERS = ("raw", "json", "text", "csv", "avro")
FILE_FORMATS = ("parquet", "json", "csv", "text")
BAD_ROW_RULES = ("fail", "drop", "quarantine")
SINKS = ("parquet", "delta", "iceberg", "topic", "console")
OUTPUT_MODES = ("append", "update", "complete")
COMPRESSIONS = ("zstd", "snappy", "gzip", "none")
PARTITIONINGS = ("key", "balanced", "column")

NAME_LENGTH_MAX = 64
"""Characters. The name is also used for a folder, a consumer and a sink on the server."""
RESTARTS_MAX = 1_000
"""More restarts in a row would amount to never giving up, which nobody would notice."""
PARTITION_COLUMNS_MAX = 8
"""Levels of folders. Each one multiplies the number of files."""

_MINUTE = 60 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionKey:
    """One row of the table."""

    table: str
    name: str
    kind: SettingKind[Any]
    default: object = None
    help: str
    is_required: bool = False

    @property
    def path(self) -> str:
        """As in error messages: ``source.topic``."""
        return f"{self.table}.{self.name}"


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


_NAME = _matching(
    "name",
    f"up to {NAME_LENGTH_MAX} letters, digits, dots, dashes and underscores, beginning with a letter or digit",
    rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_LENGTH_MAX - 1}}}",
)
_SQL = _matching("SQL", "one SQL query that begins with SELECT or WITH", r"\s*(?i:select|with)\b.+")
_WATERMARK = _matching("watermark", 'a column and a delay, such as "at 10 minutes"', r"\s*\S+\s+[0-9]+\s+\S+.*")
_PLACE = _matching("topic", 'a stream and a topic, such as "shop/orders"', r"[^/]+/[^/]+")
_TABLE = _matching("name", 'a namespace and a table, such as "shop.orders"', r"[A-Za-z0-9_]+\.[A-Za-z0-9_]+")
_COLUMN = _matching("column", "the name of a column", r"[^\s].*")
_COLUMNS = _list_of(_COLUMN.from_toml, f"a list of up to {PARTITION_COLUMNS_MAX} different columns")
_COUNT = kinds.integer(1, 2**63 - 1)
_LINES = _matching("text", "a non-empty text", r".*\S.*")


def _keys() -> Iterator[DefinitionKey]:
    yield from _pipeline_keys()
    yield from _server_keys()
    yield from _source_keys()
    yield from _transform_keys()
    yield from _sink_keys()


def _pipeline_keys() -> Iterator[DefinitionKey]:
    def key(name: str, kind: SettingKind[Any], default: object, text: str, *, required: bool = False) -> DefinitionKey:
        return DefinitionKey(table="pipeline", name=name, kind=kind, default=default, help=text, is_required=required)

    yield key("name", _NAME, None, "its name in `courser pipeline list` and on the server", required=True)
    yield key(
        "mode",
        kinds.choice(*MODES),
        "continuous",
        "`once` processes what is there and exits; `continuous` keeps running. `--once` and `--continuous` override it",
    )
    yield key("trigger", kinds.duration(), 10 * SECOND, "time between the starts of two batches; 0: no pause")
    yield key(
        "checkpoint",
        kinds.FILE,
        None,
        "the folder that stores its progress; default: `checkpoints/NAME` next to the file",
    )
    yield key(
        "restarts",
        kinds.integer(0, RESTARTS_MAX),
        5,
        "consecutive failures without a finished batch in between before it gives up",
    )
    yield key("restart_delay", kinds.duration(), SECOND, "pause before the first restart; doubles with each restart")
    yield key("restart_delay_max", kinds.duration(), _MINUTE, "the longest pause before a restart")


def _server_keys() -> Iterator[DefinitionKey]:
    def key(name: str, kind: SettingKind[Any], text: str) -> DefinitionKey:
        return DefinitionKey(table="server", name=name, kind=kind, help=text)

    where = "default: as for all commands (`COURSER_URL`, `COURSER_CONTEXT`, the saved context)"
    yield key("url", kinds.TEXT, f"`iggy://host:port`; {where}")
    yield key("context", kinds.TEXT, "a saved context (`courser context list`) instead of a url")
    yield key("username", kinds.TEXT, "the user name; default: `COURSER_USERNAME`, or from the url or context")
    yield key("password_file", kinds.FILE, "a file whose first line is the password; default: `COURSER_PASSWORD`")
    yield key("token_file", kinds.FILE, "a file whose first line is a token, instead of user and password")


def _source_keys() -> Iterator[DefinitionKey]:
    def key(name: str, kind: SettingKind[Any], default: object, text: str) -> DefinitionKey:
        return DefinitionKey(table="source", name=name, kind=kind, default=default, help=text)

    yield key("type", kinds.choice("topic", "files"), "topic", "a topic on the server, or files for a backfill")
    yield key("stream", kinds.TEXT, None, "topic: the stream it is in")
    yield key("topic", kinds.TEXT, None, "topic: its name")
    yield key(
        "starting",
        kinds.TEXT,
        "earliest",
        "topic: where a new checkpoint starts: `earliest`, `latest`, a time such as `2026-11-01T00:00:00Z`, or offsets "
        'by partition as JSON: `{"0": 1200}`; partitions that are not named start at `earliest`',
    )
    yield key("max_messages_per_trigger", _COUNT, None, "topic: maximum number of messages in a batch")
    yield key(
        "max_bytes_per_trigger", kinds.size(1), None, "topic: maximum number of bytes in a batch; default: 512 MiB"
    )
    yield key("min_partitions", kinds.integer(1, 100_000), None, "topic: minimum number of tasks in a batch")
    yield key("headers", kinds.BOOL, False, "topic: whether to include `_headers`; reading it takes time")
    yield key(
        "fail_on_data_loss",
        kinds.BOOL,
        True,
        "topic: stop if messages are gone before they were read; `false` counts them",
    )
    yield key("consumer", _NAME, None, "topic: the consumer to store progress for; default: the pipeline's name")
    yield key("path", kinds.TEXT, None, "files: the folder, or a pattern such as `in/*.json`")
    yield key("format", kinds.choice(*FILE_FORMATS), None, "files: their format")
    yield key("max_files_per_trigger", _COUNT, None, "files: maximum number of files in a batch")
    yield key("decode", kinds.choice(*DECODERS), "raw", "topic: the format of payloads; `raw` leaves them as bytes")
    yield key("schema", _LINES, None, "json, csv and files: columns in SQL syntax: `id BIGINT, at TIMESTAMP`")
    yield key("avro_schema", kinds.FILE, None, "avro: the file (`.avsc`) with the schema of the payloads")
    yield key("delimiter", _matching("text", "one character", r"."), ",", "csv: the column separator")
    yield key(
        "metadata",
        kinds.BOOL,
        True,
        "topic, with decode: whether to add `_partition`, `_offset`, `_timestamp` and `_key` to the decoded columns",
    )
    yield key(
        "on_bad_row",
        kinds.choice(*BAD_ROW_RULES),
        "fail",
        "rows that cannot be decoded: stop with an error, drop and count them, or put them into quarantine",
    )
    yield key("quarantine_topic", _PLACE, None, "on_bad_row = quarantine: `stream/topic` for the bad rows, unchanged")
    yield key("quarantine_path", kinds.TEXT, None, "on_bad_row = quarantine: a folder for the bad rows, as Parquet")


def _transform_keys() -> Iterator[DefinitionKey]:
    yield DefinitionKey(
        table="transform",
        name="sql",
        kind=_SQL,
        help="a query over the table `source`; without it, rows pass unchanged, which is faster",
    )
    yield DefinitionKey(
        table="transform",
        name="watermark",
        kind=_WATERMARK,
        help="a time column and how late rows may be; older groups are closed and written",
    )
    yield DefinitionKey(
        table="transform",
        name="output_mode",
        kind=kinds.choice(*OUTPUT_MODES),
        default="append",
        help="`append`: closed groups; `update` (topic, console): changed groups; `complete` (console): all groups",
    )


def _sink_keys() -> Iterator[DefinitionKey]:
    def key(name: str, kind: SettingKind[Any], default: object, text: str, *, required: bool = False) -> DefinitionKey:
        return DefinitionKey(table="sink", name=name, kind=kind, default=default, help=text, is_required=required)

    yield key("type", kinds.choice(*SINKS), None, "where to write rows", required=True)
    yield key(
        "path",
        kinds.TEXT,
        None,
        "parquet, delta: the folder; iceberg: the warehouse, with its catalog in `catalog.db`",
    )
    yield key(
        "partition_by",
        _COLUMNS,
        (),
        "parquet, delta: columns to make folders from; `day` and `hour` are derived from `_timestamp` if no column "
        "has that name",
    )
    yield key("compression", kinds.choice(*COMPRESSIONS), "zstd", "parquet: compression of the files")
    yield key("table", _TABLE, None, "iceberg: namespace and table")
    yield key("stream", kinds.TEXT, None, "topic: the stream it is in")
    yield key(
        "topic",
        kinds.TEXT,
        None,
        "topic: its name; sends the column `payload` unchanged if there is one, else the row as JSON",
    )
    yield key("key", _COLUMN, None, "topic: the column with the message key")
    yield key("partitioning", kinds.choice(*PARTITIONINGS), None, "topic: as in the Spark sink")
    yield key(
        "create_partitions",
        kinds.integer(1, 1_000),
        None,
        "topic: create it if it is missing, with this many partitions",
    )
    yield key("rows", kinds.integer(1, 10_000), 20, "console: rows to show per batch")


KEYS: tuple[DefinitionKey, ...] = tuple(_keys())
TABLES: tuple[str, ...] = ("pipeline", "server", "source", "transform", "sink", "spark")
BY_TABLE: Mapping[str, Mapping[str, DefinitionKey]] = {
    table: {key.name: key for key in KEYS if key.table == table} for table in TABLES
}


def alike(word: str, known: Iterable[str], table: str = "") -> str:
    """A suggestion to append to an error about an unknown word: the closest known one, or all of them."""
    names = list(known)
    near = get_close_matches(word.lower(), names, n=1)
    if near:
        return f"; did you mean {f'{table}.' if table else ''}{near[0]}?"
    return f"; known: {', '.join(names)}"
