"""Reads a pipeline's TOML file. Checks every key, which keys require or exclude each other, and reports all problems.

Relative paths are relative to the folder of the file, so that a pipeline does not depend on the current directory.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from courser.configuration.key import AnyKey, fields_with_keys
from courser.errors import ConfigurationRefused
from courser.lake.table_place import PlaceRefused
from courser.pipelines.definition import (
    BY_TABLE,
    COMMIT_INTERVAL_DEFAULT,
    INFER,
    LOCAL_PATH,
    REQUIRED,
    TABLE_FORMATS,
    TABLE_NAME,
    TABLES,
    TRIGGER_DEFAULT,
    VIEW,
    Decoding,
    Definition,
    FileSource,
    LookupTable,
    ServerAccess,
    SinkDefinition,
    Start,
    Supervision,
    TopicName,
    TopicSource,
    Transform,
    alike,
    is_own_checkpoint,
    parse_start,
)
from courser.pipelines.table_sinks import partition_fields, place_of
from courser.spark.addresses import AddressGiven, check_local, is_address, without_file_scheme

Part = TypeVar("Part")
Values: TypeAlias = Mapping[str, dict[str, Any]]
"""The value of every key, by table and name."""

FILE_SIZE_MAX = 1024 * 1024
"""Bytes. A larger file is not a pipeline."""
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
    "archive_config",
    "data_directory",
    "decode",
    "avro_schema",
    "metadata",
)
_OUTPUT_MODES = {"topic": ("append", "update"), "console": ("append", "update", "complete")}
_SINK_NEEDS = {"parquet": ("path",), "delta": ("path",), "iceberg": ("table",), "topic": ("stream", "topic")}
_SINK_TAKES = {
    "parquet": ("partition_by", "compression"),
    "delta": ("partition_by", "endpoint", "region"),
    "iceberg": ("path", "partition_by", "catalog", "endpoint", "region"),
    "topic": ("key", "partitioning", "create_partitions"),
    "console": ("rows",),
}


def load_definition(path: Path) -> Definition:
    """Read a file.

    Raises:
        ConfigurationRefused: lists every problem, each with the file's name.
    """
    try:
        if path.stat().st_size > FILE_SIZE_MAX:
            raise ConfigurationRefused([f"{path}: larger than {FILE_SIZE_MAX:,} bytes; this is not a pipeline file"])
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationRefused([f"could not read {path}: {reason}"]) from error
    return parse_definition(text, path)


def parse_definition(text: str, path: Path) -> Definition:
    """Parse the text of a file. Raises ``ConfigurationRefused``."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationRefused([f"{path}: invalid TOML: {error}"]) from error
    problems: list[str] = []
    values = _read_values(document, problems)
    definition = None if problems else _Assembly(path.resolve(), problems).build(values)
    if definition is None or problems:
        raise ConfigurationRefused([f"{path}: {problem}" for problem in problems])
    return definition


def _read_values(document: Mapping[str, object], problems: list[str]) -> Values:
    """The value or default of every key."""
    for table in document:
        if table not in TABLES:
            problems.append(f"unknown table [{table}]{alike(table, TABLES)}")
        elif not isinstance(document[table], dict):
            problems.append(f"{table} must be a table; write [{table}]")
    values: dict[str, dict[str, Any]] = {}
    for table in TABLES:
        found = document.get(table, {})
        contents = found if isinstance(found, dict) else {}
        if table == "spark":
            values[table] = _read_spark(contents, problems)
        elif table == "tables":
            values[table] = {name: _read_lookup(name, entry, problems) for name, entry in contents.items()}
        else:
            values[table] = _read_table(table, contents, problems)
    return values


def _read_lookup(name: str, entry: object, problems: list[str]) -> dict[str, Any]:
    """The values of ``[tables.NAME]``."""
    table = f"tables.{name}"
    try:
        TABLE_NAME.from_toml(name)
    except ValueError:
        problems.append(f"{table}: the name of a table must be {TABLE_NAME.expected}")
    if name.lower() == VIEW:
        problems.append(f"{table}: {VIEW} is the name of the source; choose another one")
    if not isinstance(entry, dict):
        problems.append(f"{table} must be a table; write [{table}]")
        entry = {}
    return _read_table(
        table, entry, problems, {key.path.rpartition(".")[2]: key for key in BY_TABLE["tables"].values()}
    )


def _read_table(
    table: str, contents: Mapping[str, object], problems: list[str], keys: Mapping[str, AnyKey] | None = None
) -> dict[str, Any]:
    keys = BY_TABLE[table] if keys is None else keys
    unknown = [name for name in contents if name not in keys]
    problems += [f"unknown key {table}.{name}{alike(name, keys, table)}" for name in unknown]
    return {name: _read_value(key, f"{table}.{name}", contents, problems) for name, key in keys.items()}


def _read_value(key: AnyKey, path: str, contents: Mapping[str, object], problems: list[str]) -> Any:
    name = path.rpartition(".")[2]
    if name not in contents:
        if key in REQUIRED:
            problems.append(f"{path} is missing: {key.description}")
        return key.default
    try:
        value = key.kind.from_toml(contents[name])
        if key.kind.name == LOCAL_PATH:
            check_local(value, key.path)
    except ValueError:
        shown = json.dumps(contents[name], default=str)[:80]
        problems.append(f"{path} must be {key.kind.expected}, not {shown}")
    except AddressGiven as error:
        problems.append(str(error))
    else:
        return value
    return key.default


def _read_spark(contents: Mapping[str, object], problems: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in _flattened(contents):
        if not name.startswith("spark."):
            problems.append(f'[spark] accepts only Spark settings, whose names begin with "spark.", not "{name}"')
        elif name == "spark.master":
            problems.append("spark.master cannot be set here; use courser pipeline run --master")
        elif isinstance(value, bool):
            settings[name] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            settings[name] = str(value)
        else:
            problems.append(f'[spark] "{name}" must be a text, a number or a boolean')
    return settings


def _flattened(contents: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Flatten nested tables: in TOML, ``spark.sql.x = 1`` without quotes is one. Both spellings are accepted."""
    found: list[tuple[str, object]] = []
    for name, value in contents.items():
        if isinstance(value, dict):
            found += _flattened(value, f"{prefix}{name}.")
        else:
            found.append((prefix + name, value))
    return found


# --- the definition from its values ------------------------------------------------------------------


class _Assembly:
    """Builds one pipeline and collects problems."""

    def __init__(self, file: Path, problems: list[str]) -> None:
        self._file = file
        self._folder = file.parent
        self._problems = problems

    def build(self, values: Values) -> Definition | None:
        """The pipeline; None if there are problems."""
        pipeline, server = values["pipeline"], values["server"]
        name: str = pipeline["name"]
        has_table = is_own_checkpoint(
            values["sink"]["type"], values["transform"]["sql"], is_topic=values["source"]["type"] == "topic"
        )
        if values["source"]["on_bad_row"] is None:
            values["source"]["on_bad_row"] = "quarantine" if has_table else "fail"
        if pipeline["trigger"] is None:
            pipeline["trigger"] = COMMIT_INTERVAL_DEFAULT if has_table else TRIGGER_DEFAULT
        source = self._source(values["source"], name)
        decoding = self._decoding(values["source"], has_table=has_table)
        transform = self._transform(values["transform"], values["sink"]["type"])
        sink = self._sink(values["sink"])
        if has_table and values["source"]["headers"]:
            self._problems.append("source.headers cannot be used with a table; leave it out")
        if sink.type in TABLE_FORMATS and not has_table:
            self._check_earlier_writer(sink)
        tables = {table: self._lookup(table, entry) for table, entry in values["tables"].items()}
        if tables and transform.sql is None:
            self._problems.append("tables require transform.sql, which joins with them")
        if server["url"] and server["context"]:
            self._problems.append("server.url and server.context are mutually exclusive")
        if server["token_file"] and (server["username"] or server["password_file"]):
            self._problems.append("server.token_file excludes server.username and server.password_file")
        if self._problems or source is None:
            return None
        return Definition(
            path=self._file,
            name=name,
            mode=pipeline["mode"],
            trigger=pipeline["trigger"],
            checkpoint=self._place(pipeline["checkpoint"] or f"checkpoints/{name}"),
            supervision=_filled(Supervision, pipeline),
            server=_filled(
                ServerAccess,
                server,
                password_file=self._path(server["password_file"]),
                token_file=self._path(server["token_file"]),
            ),
            source=source,
            decoding=decoding,
            transform=transform,
            sink=sink,
            tables=tables,
            spark=values["spark"],
        )

    def _source(self, source: dict[str, Any], name: str) -> TopicSource | FileSource | None:
        if source["type"] == "files":
            self._needs(source, "source", "files", ("path", "format"))
            self._refuses(source, "source", 'type = "files"', _TOPIC_ONLY)
            if source["format"] in ("json", "csv") and source["schema"] is None:
                self._problems.append(f"source.schema is missing: {source['format']} files do not contain a schema")
            if source["on_bad_row"] == "quarantine":
                self._problems.append("source.on_bad_row must be fail or drop for files")
            if not source["path"] or not source["format"]:
                return None
            return _filled(
                FileSource,
                source,
                path=self._place(source["path"]),
                format=source["format"],
                on_bad_row=source["on_bad_row"],
            )
        self._needs(source, "source", "topic", ("stream", "topic"))
        self._refuses(source, "source", 'type = "topic"', ("path", "format", "max_files_per_trigger"))
        start = self._start(source["starting"])
        if not source["stream"] or not source["topic"] or start is None:
            return None
        place = TopicName(source["stream"], source["topic"])
        return _filled(
            TopicSource,
            source,
            place=place,
            start=start,
            consumer=source["consumer"] or name,
            archive_config=self._path(source["archive_config"]),
            data_directory=self._folder_of(source["data_directory"]),
        )

    def _start(self, text: str) -> Start | None:
        try:
            return parse_start(text)
        except ValueError as error:
            self._problems.append(f"source.starting {error}")
            return None

    def _decoding(self, source: dict[str, Any], *, has_table: bool) -> Decoding:
        decode, rule = source["decode"], source["on_bad_row"]
        if source["type"] == "topic":
            if decode in ("json", "csv") and source["schema"] is None:
                self._problems.append(f'source.schema is missing: decode = "{decode}" requires it')
            if decode not in ("json", "csv") and source["schema"] is not None:
                self._problems.append(f'source.schema cannot be used with decode = "{decode}"')
            if source["schema"] == INFER and (decode != "json" or not has_table):
                needed = 'decode = "json", and a table that takes rows as they come'
                self._problems.append(f'source.schema = "infer" needs {needed}')
            if (decode == "avro") != (source["avro_schema"] is not None):
                self._problems.append('source.avro_schema and decode = "avro" require each other')
        aside = [name for name in ("quarantine_topic", "quarantine_path") if source[name] is not None]
        if has_table and aside:
            self._problems.append(f"source.{aside[0]} cannot be used with a table: bad rows go to the table NAME__bad")
        elif rule == "quarantine" and len(aside) != 1 and source["type"] == "topic" and not has_table:
            self._problems.append(
                'on_bad_row = "quarantine" requires either source.quarantine_topic or source.quarantine_path'
            )
        if rule != "quarantine" and aside:
            self._problems.append(f'source.{aside[0]} requires source.on_bad_row = "quarantine"')
        topic = source["quarantine_topic"]
        return _filled(
            Decoding,
            source,
            avro_schema=self._path(source["avro_schema"]),
            on_bad_row=rule,
            quarantine_topic=TopicName(*topic.split("/")) if topic else None,
            quarantine_path=self._folder_of(source["quarantine_path"]),
        )

    def _transform(self, transform: dict[str, Any], sink_type: str) -> Transform:
        mode, watermark = transform["output_mode"], None
        if mode not in _OUTPUT_MODES.get(sink_type, ("append",)):
            self._problems.append(f'transform.output_mode = "{mode}" is not supported by sinks of type {sink_type}')
        if transform["watermark"] is not None:
            column, _, delay = transform["watermark"].strip().partition(" ")
            watermark = (column, delay.strip())
        if transform["sql"] is None and (watermark or mode != "append"):
            self._problems.append("transform.watermark and transform.output_mode require transform.sql")
        return _filled(Transform, transform, watermark=watermark)

    def _lookup(self, name: str, entry: dict[str, Any]) -> LookupTable:
        if entry["format"] == "parquet" and entry["schema"] is not None:
            self._problems.append(f'tables.{name}.schema cannot be used with format = "parquet"')
        return LookupTable(self._place(entry["path"] or ""), entry["format"] or "", entry["schema"])

    def _check_earlier_writer(self, sink: SinkDefinition) -> None:
        """What a table cannot do whose rows Spark's engine for streams hands over."""
        why = "with files, or a query that groups, joins or counts"
        for name in ("catalog", "endpoint", "region"):
            if getattr(sink, name) is not None:
                self._problems.append(f"sink.{name} cannot be used {why}")
        if any("(" in text for text in sink.partition_by) or (sink.type == "iceberg" and sink.partition_by):
            self._problems.append(f"sink.partition_by of {sink.type} cannot be used {why}")
        if sink.path is None:
            self._problems.append(f"sink.path is missing: it must be a folder {why}")
        elif is_address(sink.path):
            self._problems.append(f"sink.path must be a folder {why}, not the address {sink.path}")

    def _sink(self, sink: dict[str, Any]) -> SinkDefinition:
        kind = sink["type"]
        self._needs(sink, "sink", kind, _SINK_NEEDS.get(kind, ()))
        own = {"type", *_SINK_NEEDS.get(kind, ()), *_SINK_TAKES.get(kind, ())}
        self._refuses(sink, "sink", f'type = "{kind}"', tuple(name for name in sink if name not in own))
        path = self._folder_of(sink["path"])
        place = TopicName(sink["stream"], sink["topic"]) if sink["stream"] and sink["topic"] else None
        found = _filled(SinkDefinition, sink, type=kind, path=path, place=place)
        try:
            if kind in TABLE_FORMATS:
                place_of(found)
                partition_fields(found)
            elif path is not None:
                check_local(path, "sink.path")
        except (PlaceRefused, AddressGiven) as error:
            self._problems.append(str(error))
        return found

    # --- helpers ---

    def _needs(self, contents: Mapping[str, Any], table: str, kind: str, names: Sequence[str]) -> None:
        for name in names:
            if contents[name] is None:
                self._problems.append(f'{table}.{name} is missing: type = "{kind}" requires it')

    def _refuses(self, contents: Mapping[str, Any], table: str, why: str, names: Sequence[str]) -> None:
        for name in names:
            if contents[name] != BY_TABLE[table][name].default:
                self._problems.append(f"{table}.{name} cannot be used with {why}")

    def _path(self, path: Path | None) -> Path | None:
        return None if path is None else self._folder / path

    def _folder_of(self, text: str | None) -> str | None:
        return self._place(text) if text else None

    def _place(self, text: str) -> str:
        """An absolute path, or an address."""
        text = without_file_scheme(text)
        return text.rstrip("/") if is_address(text) else str(self._folder / Path(text).expanduser())


def _filled(part: type[Part], table: Mapping[str, Any], **composed: object) -> Part:
    """A part of the definition: fields that have a key get its value, unless they are composed of several."""
    keys = fields_with_keys(part)
    return part(**{name: table[key.path.partition(".")[2]] for name, key in keys.items()} | composed)
