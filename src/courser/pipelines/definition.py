"""A pipeline as its TOML file says it: frozen values, every key checked, all problems told at once.

Relative paths are relative to the folder of the file, so that a pipeline is the same wherever the command is typed.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from courser.errors import ConfigurationRefused
from courser.pipelines.keys import BY_TABLE, TABLES, Key

Mode = Literal["continuous", "once"]

FILE_SIZE_MAX = 1024 * 1024
"""Bytes: a larger file is not a pipeline."""


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


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files: each one is read once."""

    path: str
    format: str
    schema: str | None
    delimiter: str = ","
    max_files_per_trigger: int | None = None
    on_bad_row: str = "fail"


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


def load_definition(path: Path) -> Definition:
    """Read a file.

    Raises:
        ConfigurationRefused: with every problem that was found, each beginning with the file's name.
    """
    try:
        if path.stat().st_size > FILE_SIZE_MAX:
            raise ConfigurationRefused([f"{path}: more than {FILE_SIZE_MAX:,} bytes: this is not a pipeline"])
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationRefused([f"{path}: cannot be read: {reason}"]) from error
    return parse_definition(text, path)


def parse_definition(text: str, path: Path) -> Definition:
    """Understand the text of a file. Raises ``ConfigurationRefused``."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationRefused([f"{path}: not TOML: {error}"]) from error
    reader = _Reader(path.resolve().parent)
    values = reader.read(document)
    definition = None if reader.problems else reader.build(values, path.resolve())
    if reader.problems or definition is None:
        raise ConfigurationRefused([f"{path}: {problem}" for problem in reader.problems])
    return definition


_Values = dict[str, dict[str, Any]]


class _Reader:
    """Gathers problems while it reads."""

    def __init__(self, folder: Path) -> None:
        self.problems: list[str] = []
        self._folder = folder

    # --- values ---

    def read(self, document: Mapping[str, object]) -> _Values:
        """Every key's value or default."""
        for table in document:
            if table not in TABLES:
                self.problems.append(f"there is no table [{table}]{_alike(table, TABLES)}")
            elif not isinstance(document[table], dict):
                self.problems.append(f"{table} is a table: write [{table}]")
        values: _Values = {}
        for table in TABLES:
            found = document.get(table, {})
            contents = found if isinstance(found, dict) else {}
            if table == "spark":
                values[table] = self._spark(contents)
            else:
                values[table] = self._table(table, contents)
        return values

    def _table(self, table: str, contents: Mapping[str, object]) -> dict[str, Any]:
        keys = BY_TABLE[table]
        for name in contents:
            if name not in keys:
                self.problems.append(f"there is no key {table}.{name}{_alike(name, keys, table)}")
        return {name: self._value(key, contents) for name, key in keys.items()}

    def _value(self, key: Key, contents: Mapping[str, object]) -> Any:
        if key.name not in contents:
            if key.is_required:
                self.problems.append(f"{key.path} is missing: {key.help}")
            return key.default
        try:
            return key.kind.from_toml(contents[key.name])
        except ValueError:
            shown = json.dumps(contents[key.name], default=str)[:80]
            self.problems.append(f"{key.path} takes {key.kind.expected}, not {shown}")
            return key.default

    def _spark(self, contents: Mapping[str, object]) -> dict[str, str]:
        settings: dict[str, str] = {}
        for name, value in _flattened(contents):
            if not name.startswith("spark."):
                self.problems.append(f'[spark] takes settings of Spark, whose names begin with "spark.", not "{name}"')
            elif name == "spark.master":
                self.problems.append("spark.master is not set here: courser pipeline run --master says where it runs")
            elif isinstance(value, bool):
                settings[name] = "true" if value else "false"
            elif isinstance(value, str | int | float):
                settings[name] = str(value)
            else:
                self.problems.append(f'[spark] "{name}" takes a text, a number or a switch')
        return settings

    # --- what belongs together ---

    def build(self, values: _Values, path: Path) -> Definition | None:
        """The pipeline; None if something does not hold together."""
        pipeline, server = values["pipeline"], values["server"]
        name: str = pipeline["name"]
        source = self._source(values["source"], name)
        decoding = self._decoding(values["source"])
        transform = self._transform(values["transform"], values["sink"]["type"])
        sink = self._sink(values["sink"])
        if server["url"] and server["context"]:
            self.problems.append("server.url and server.context exclude each other")
        if server["token_file"] and (server["username"] or server["password_file"]):
            self.problems.append("server.token_file stands in place of server.username and server.password_file")
        if self.problems or source is None:
            return None
        return Definition(
            path=path,
            name=name,
            mode=pipeline["mode"],
            trigger=pipeline["trigger"],
            checkpoint=self._path(pipeline["checkpoint"] or Path("checkpoints", name)),
            supervision=Supervision(pipeline["restarts"], pipeline["restart_delay"], pipeline["restart_delay_max"]),
            server=ServerWish(
                server["url"],
                server["context"],
                server["username"],
                self._optional_path(server["password_file"]),
                self._optional_path(server["token_file"]),
            ),
            source=source,
            decoding=decoding,
            transform=transform,
            sink=sink,
            spark=values["spark"],
        )

    def _source(self, source: dict[str, Any], name: str) -> TopicSource | FileSource | None:
        if source["type"] == "files":
            self._needs(source, "source", "files", ("path", "format"))
            self._refuses(source, "source", 'type = "files"', _TOPIC_ONLY)
            if source["format"] in ("json", "csv") and source["schema"] is None:
                self.problems.append(f"source.schema is missing: files of {source['format']} do not have one")
            if source["on_bad_row"] == "quarantine":
                self.problems.append("source.on_bad_row of files is fail or drop: they stay where they are")
            if not source["path"] or not source["format"]:
                return None
            return FileSource(
                self._place(source["path"]),
                source["format"],
                source["schema"],
                source["delimiter"],
                source["max_files_per_trigger"],
                source["on_bad_row"],
            )
        self._needs(source, "source", "topic", ("stream", "topic"))
        self._refuses(source, "source", 'type = "topic"', ("path", "format", "max_files_per_trigger"))
        start = self._start(source["starting"])
        if not source["stream"] or not source["topic"] or start is None:
            return None
        return TopicSource(
            TopicPlace(source["stream"], source["topic"]),
            start,
            source["consumer"] or name,
            source["max_messages_per_trigger"],
            source["max_bytes_per_trigger"],
            source["min_partitions"],
            source["headers"],
            source["fail_on_data_loss"],
        )

    def _start(self, text: str) -> Start | None:
        try:
            return parse_start(text)
        except ValueError as error:
            self.problems.append(f"source.starting {error}")
            return None

    def _decoding(self, source: dict[str, Any]) -> Decoding:
        decode, rule = source["decode"], source["on_bad_row"]
        if source["type"] == "topic":
            if decode in ("json", "csv") and source["schema"] is None:
                self.problems.append(f'source.schema is missing: decode = "{decode}" needs to know the columns')
            if decode not in ("json", "csv") and source["schema"] is not None:
                self.problems.append(f'source.schema has no meaning with decode = "{decode}"')
            if (decode == "avro") != (source["avro_schema"] is not None):
                self.problems.append('source.avro_schema and decode = "avro" belong together')
        aside = [name for name in ("quarantine_topic", "quarantine_path") if source[name] is not None]
        if rule == "quarantine" and len(aside) != 1 and source["type"] == "topic":
            self.problems.append('on_bad_row = "quarantine" needs source.quarantine_topic or source.quarantine_path')
        if rule != "quarantine" and aside:
            self.problems.append(f'source.{aside[0]} needs source.on_bad_row = "quarantine"')
        topic = source["quarantine_topic"]
        return Decoding(
            decode,
            source["schema"],
            self._optional_path(source["avro_schema"]),
            source["delimiter"],
            source["metadata"],
            rule,
            TopicPlace(*topic.split("/")) if topic else None,
            self._place(source["quarantine_path"]) if source["quarantine_path"] else None,
        )

    def _transform(self, transform: dict[str, Any], sink_type: str) -> Transform:
        mode, watermark = transform["output_mode"], None
        if mode not in _OUTPUT_MODES.get(sink_type, ("append",)):
            self.problems.append(f'transform.output_mode = "{mode}" cannot be written to a sink of type {sink_type}')
        if transform["watermark"] is not None:
            column, _, delay = transform["watermark"].strip().partition(" ")
            watermark = (column, delay.strip())
        if transform["sql"] is None and (watermark or mode != "append"):
            self.problems.append("transform.watermark and transform.output_mode have a meaning with transform.sql only")
        return Transform(transform["sql"], watermark, mode)

    def _sink(self, sink: dict[str, Any]) -> Sink:
        kind = sink["type"]
        self._needs(sink, "sink", kind, _SINK_NEEDS.get(kind, ()))
        own = {"type", *_SINK_NEEDS.get(kind, ()), *_SINK_TAKES.get(kind, ())}
        self._refuses(sink, "sink", f'type = "{kind}"', tuple(name for name in sink if name not in own))
        path = self._place(sink["path"]) if sink["path"] else None
        if path is not None and "://" in path:
            self.problems.append(
                "sink.path is a folder of this machine, or one that is mounted like it, not an address"
            )
        place = TopicPlace(sink["stream"], sink["topic"]) if sink["stream"] and sink["topic"] else None
        return Sink(
            kind,
            path,
            sink["partition_by"],
            sink["compression"],
            sink["table"],
            place,
            sink["key"],
            sink["partitioning"],
            sink["create_partitions"],
            sink["rows"],
        )

    # --- small things ---

    def _needs(self, contents: Mapping[str, Any], table: str, kind: str, names: Sequence[str]) -> None:
        for name in names:
            if contents[name] is None:
                self.problems.append(f'{table}.{name} is missing: type = "{kind}" needs it')

    def _refuses(self, contents: Mapping[str, Any], table: str, why: str, names: Sequence[str]) -> None:
        for name in names:
            if contents[name] != BY_TABLE[table][name].default:
                self.problems.append(f"{table}.{name} has no meaning with {why}")

    def _path(self, path: Path) -> Path:
        return self._folder / path

    def _optional_path(self, path: Path | None) -> Path | None:
        return None if path is None else self._folder / path

    def _place(self, text: str) -> str:
        """A path, or an address such as ``hdfs://...`` that is left as it is."""
        return text if re.match(r"[a-z][a-z0-9+.-]*://", text) else str(self._folder / Path(text).expanduser())


_TOPIC_ONLY = (
    "stream",
    "topic",
    "starting",
    "max_messages_per_trigger",
    "max_bytes_per_trigger",
    "min_partitions",
    "headers",
    "consumer",
    "fail_on_data_loss",
    "decode",
    "avro_schema",
    "metadata",
)
_OUTPUT_MODES = {"topic": ("append", "update"), "console": ("append", "update", "complete")}
_SINK_NEEDS = {"parquet": ("path",), "delta": ("path",), "iceberg": ("path", "table"), "topic": ("stream", "topic")}
_SINK_TAKES = {
    "parquet": ("partition_by", "compression"),
    "delta": ("partition_by",),
    "topic": ("key", "partitioning", "create_partitions"),
    "console": ("rows",),
}


def parse_start(text: str) -> Start:
    """``earliest``, ``latest``, a time, or offsets by partition. Raises ``ValueError`` with a sentence."""
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
        raise ValueError(f'takes offsets by partition such as {{"0": 1200, "1": 987}}, not {word[:80]}')
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        near = _alike(word, ("earliest", "latest"))
        raise ValueError(f'takes "earliest", "latest", a time or offsets as JSON, not "{word[:80]}"{near}') from None
    if moment.tzinfo is None:
        raise ValueError(f'needs a time zone: "{word}Z" is UTC')
    return Start("earliest", moment.isoformat())


def completed(start: Start, partitions: Sequence[int]) -> Start:
    """The same start, with a place for every partition: those that offsets do not name begin at their beginning.

    Spark's stream would begin them at their end, and nobody would notice what is missing.
    """
    if not start.offsets.startswith("{"):
        return start
    offsets = {str(partition): -2 for partition in partitions} | json.loads(start.offsets)
    return Start(json.dumps(dict(sorted(offsets.items(), key=lambda item: int(item[0])))))


def _is_offset(partition: str, offset: object) -> bool:
    is_number = isinstance(offset, int) and not isinstance(offset, bool)
    return bool(re.fullmatch(r"[0-9]{1,9}", partition)) and is_number and -2 <= int(str(offset)) < 2**63


def _alike(word: str, known: Sequence[str] | Mapping[str, object], table: str = "") -> str:
    names = list(known)
    alike = get_close_matches(word.lower(), names, n=1)
    if alike:
        return f": did you mean {f'{table}.' if table else ''}{alike[0]}?"
    return f"; there are {', '.join(names)}"


def _flattened(contents: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """``spark.sql.x = 1`` without quotes is a table within tables in TOML; both spellings mean the same."""
    found: list[tuple[str, object]] = []
    for name, value in contents.items():
        if isinstance(value, dict):
            found += _flattened(value, f"{prefix}{name}.")
        else:
            found.append((prefix + name, value))
    return found
