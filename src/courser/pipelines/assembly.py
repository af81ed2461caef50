"""What belongs together in a pipeline's file, and what excludes what: values become a definition.

Relative paths are relative to the folder of the file, so that a pipeline is the same wherever the command is typed.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from courser.pipelines.definition import (
    Decoding,
    Definition,
    FileSource,
    ServerWish,
    Sink,
    Start,
    Supervision,
    TopicPlace,
    TopicSource,
    Transform,
)
from courser.pipelines.keys import BY_TABLE
from courser.pipelines.starting import parse_start

Values: TypeAlias = Mapping[str, dict[str, Any]]
"""Every key's value, by table and name."""

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


class Assembly:
    """Puts one pipeline together, and notes what does not fit."""

    def __init__(self, file: Path, problems: list[str]) -> None:
        self._file = file
        self._folder = file.parent
        self._problems = problems

    def build(self, values: Values) -> Definition | None:
        """The pipeline; None if something does not hold together."""
        pipeline, server = values["pipeline"], values["server"]
        name: str = pipeline["name"]
        source = self._source(values["source"], name)
        decoding = self._decoding(values["source"])
        transform = self._transform(values["transform"], values["sink"]["type"])
        sink = self._sink(values["sink"])
        if server["url"] and server["context"]:
            self._problems.append("server.url and server.context exclude each other")
        if server["token_file"] and (server["username"] or server["password_file"]):
            self._problems.append("server.token_file stands in place of server.username and server.password_file")
        if self._problems or source is None:
            return None
        return Definition(
            path=self._file,
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
                self._problems.append(f"source.schema is missing: files of {source['format']} do not have one")
            if source["on_bad_row"] == "quarantine":
                self._problems.append("source.on_bad_row of files is fail or drop: they stay where they are")
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
            self._problems.append(f"source.starting {error}")
            return None

    def _decoding(self, source: dict[str, Any]) -> Decoding:
        decode, rule = source["decode"], source["on_bad_row"]
        if source["type"] == "topic":
            if decode in ("json", "csv") and source["schema"] is None:
                self._problems.append(f'source.schema is missing: decode = "{decode}" needs to know the columns')
            if decode not in ("json", "csv") and source["schema"] is not None:
                self._problems.append(f'source.schema has no meaning with decode = "{decode}"')
            if (decode == "avro") != (source["avro_schema"] is not None):
                self._problems.append('source.avro_schema and decode = "avro" belong together')
        aside = [name for name in ("quarantine_topic", "quarantine_path") if source[name] is not None]
        if rule == "quarantine" and len(aside) != 1 and source["type"] == "topic":
            self._problems.append('on_bad_row = "quarantine" needs source.quarantine_topic or source.quarantine_path')
        if rule != "quarantine" and aside:
            self._problems.append(f'source.{aside[0]} needs source.on_bad_row = "quarantine"')
        topic = source["quarantine_topic"]
        return Decoding(
            decode,
            source["schema"],
            self._optional_path(source["avro_schema"]),
            source["delimiter"],
            source["metadata"],
            rule,
            TopicPlace(*topic.split("/")) if topic else None,
            self._lake(source["quarantine_path"], "source.quarantine_path"),
        )

    def _transform(self, transform: dict[str, Any], sink_type: str) -> Transform:
        mode, watermark = transform["output_mode"], None
        if mode not in _OUTPUT_MODES.get(sink_type, ("append",)):
            self._problems.append(f'transform.output_mode = "{mode}" cannot be written to a sink of type {sink_type}')
        if transform["watermark"] is not None:
            column, _, delay = transform["watermark"].strip().partition(" ")
            watermark = (column, delay.strip())
        if transform["sql"] is None and (watermark or mode != "append"):
            self._problems.append(
                "transform.watermark and transform.output_mode have a meaning with transform.sql only"
            )
        return Transform(transform["sql"], watermark, mode)

    def _sink(self, sink: dict[str, Any]) -> Sink:
        kind = sink["type"]
        self._needs(sink, "sink", kind, _SINK_NEEDS.get(kind, ()))
        own = {"type", *_SINK_NEEDS.get(kind, ()), *_SINK_TAKES.get(kind, ())}
        self._refuses(sink, "sink", f'type = "{kind}"', tuple(name for name in sink if name not in own))
        path = self._lake(sink["path"], "sink.path")
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
                self._problems.append(f'{table}.{name} is missing: type = "{kind}" needs it')

    def _refuses(self, contents: Mapping[str, Any], table: str, why: str, names: Sequence[str]) -> None:
        for name in names:
            if contents[name] != BY_TABLE[table][name].default:
                self._problems.append(f"{table}.{name} has no meaning with {why}")

    def _path(self, path: Path) -> Path:
        return self._folder / path

    def _optional_path(self, path: Path | None) -> Path | None:
        return None if path is None else self._folder / path

    def _lake(self, text: str | None, key: str) -> str | None:
        """A folder that this process writes to."""
        path = self._place(text) if text else None
        if path is not None and "://" in path:
            self._problems.append(f"{key} is a folder of this machine, or one that is mounted like it, not an address")
        return path

    def _place(self, text: str) -> str:
        """A path, or an address such as ``hdfs://...`` that is left as it is."""
        return text if re.match(r"[a-z][a-z0-9+.-]*://", text) else str(self._folder / Path(text).expanduser())
