"""The source of a pipeline, a topic or files, as a streaming DataFrame."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from courser.client.contexts import resolve_target
from courser.client.targets import Target
from courser.errors import TargetRefused
from courser.pipelines.definition import Definition, FileSource, ServerAccess, Start, TopicSource
from courser.spark.connectors import check_readable
from courser.spark.option_kinds import topic_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "courser"
"""Spark's format name for topics."""
_FILE_MODES = {"fail": "FAILFAST", "drop": "DROPMALFORMED"}


def target_of(wish: ServerAccess, environment: Mapping[str, str]) -> Target:
    """The server and the login. Raises ``TargetRefused``."""
    options: dict[str, object] = {}
    if wish.token_file is not None:
        options = {"token": _first_line(wish.token_file), "username": None, "password": None}
    elif wish.username is not None or wish.password_file is not None:
        password = environment.get("COURSER_PASSWORD") or environment.get("IGGY_PASSWORD")
        if wish.password_file is not None:
            password = _first_line(wish.password_file)
        options = {"password": password}
        if wish.username is not None:
            options |= {"username": wish.username, "token": None}
    return resolve_target(wish.url, context=wish.context, environment=environment, options=options).target


def _first_line(path: Path) -> str:
    try:
        return path.read_text("utf-8").split("\n", 1)[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TargetRefused(f"could not read {path}: {error}") from error


def connection_url(target: Target) -> str:
    """The whole connection in one option. Spark redacts options with this name wherever it prints them."""
    login = ""
    if target.token is not None:
        login = f"{quote(target.token, safe='')}@"
    elif target.username is not None:
        login = f"{quote(target.username, safe='')}:{quote(target.password or '', safe='')}@"
    options = {"tls": "true"} if target.tls else {}
    for name in ("tls_ca_file", "tls_domain"):
        if value := getattr(target, name):
            options[name] = value
    if not target.tls_verify:
        options["tls_verify"] = "false"
    return f"iggy://{login}{target.address}" + (f"?{urlencode(options)}" if options else "")


def connection_options(target: Target) -> dict[str, str]:
    """The connection options of Spark reads and writes."""
    return {
        "url": connection_url(target),
        "connectTimeout": f"{target.connect_timeout:g}",
        "requestTimeout": f"{target.request_timeout:g}",
    }


def read_source(spark: "SparkSession", definition: Definition, target: Target | None, start: Start) -> "DataFrame":
    """The rows of the source."""
    source = definition.source
    if isinstance(source, FileSource):
        return _read_files(spark, source)
    assert target is not None, "a topic has a server"
    options = topic_options(source, target, start)
    if definition.decoding.format != "raw":
        # Columns that are not read need not be transferred to Java.
        columns = ("partition", "offset", "timestamp", "key", "payload", *(("headers",) if source.with_headers else ()))
        options["columns"] = ",".join(columns)
    return spark.readStream.format(FORMAT).options(**options).load()


def batch_options(source: TopicSource, target: Target) -> dict[str, str]:
    """The options of the data source for reads that end."""
    options: dict[str, str | None] = {
        **connection_options(target),
        "stream": source.place.stream,
        "topic": topic_text(source.place.topic),
        "failOnDataLoss": "true" if source.fail_on_data_loss else "false",
        "minPartitions": _text(source.min_partitions),
        "archiveConfig": None if source.archive_config is None else str(source.archive_config),
        "path": source.data_directory,
    }
    return {name: value for name, value in options.items() if value is not None}


def topic_options(source: TopicSource, target: Target, start: Start) -> dict[str, str]:
    """The options of the data source."""
    options: dict[str, str | None] = {
        **batch_options(source, target),
        "consumer": source.consumer,
        "includeHeaders": "true" if source.with_headers else None,
        "maxOffsetsPerTrigger": _text(source.max_messages_per_trigger),
        "maxBytesPerTrigger": _text(source.max_bytes_per_trigger),
    }
    if start.timestamp is not None:
        options["startingTimestamp"] = start.timestamp
    else:
        options["startingOffsets"] = start.offsets
    return {name: value for name, value in options.items() if value is not None}


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _read_files(spark: "SparkSession", source: FileSource) -> "DataFrame":
    check_readable(spark, source.path)
    reader = spark.readStream.format(source.format)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    elif source.format == "parquet":
        # Streams need a schema up front; take it from the files that exist already.
        reader = reader.schema(spark.read.parquet(source.path).schema)
    if source.format in ("json", "csv"):
        reader = reader.option("mode", _FILE_MODES[source.on_bad_row])
    if source.format == "csv":
        reader = reader.option("sep", source.delimiter).option("header", "true")
    if source.max_files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", source.max_files_per_trigger)
    return reader.load(source.path)
