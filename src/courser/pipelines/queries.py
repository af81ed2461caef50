"""Builds the Spark queries of a pipeline from its definition.

One query moves the rows. If bad rows go to quarantine, a second one writes them: it reads the same topic and has its
own checkpoint, so that each of the two is exactly once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from courser.client.targets import Target
from courser.pipelines.checkpoint import Checkpoint
from courser.pipelines.decode import (
    HEADERS,
    KEY,
    METADATA,
    OBSERVED,
    OFFSET,
    PARTITION,
    PAYLOAD,
    bad_rows,
    decode,
    good_rows,
)
from courser.pipelines.definition import Definition, FileSource, SinkDefinition, Start, TopicSource, completed
from courser.pipelines.lake_publishing import staging_root
from courser.pipelines.query import Query, SparkQuery
from courser.pipelines.sink_writers import (
    DECODED_NAMES,
    RAW_NAMES,
    ConsoleSink,
    RowNames,
    lake_writer,
    staging_order,
    topic_writer,
    with_folder_columns,
)
from courser.pipelines.source_frames import read_source, topic_options
from courser.pipelines.transform import apply_transform
from courser.spark.connect import check_shared, runs_remotely

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_MILLISECOND = 1_000


Show = Callable[[int, str], None]
"""For the console sink: called with a batch and its rows as a text table."""


def output_rows(
    spark: "SparkSession", definition: Definition, messages: "DataFrame"
) -> "tuple[DataFrame, DataFrame | None, RowNames]":
    """The rows for the sink, those for the quarantine, and the columns that tell where a row comes from."""
    decoding = definition.decoding
    bad = None
    if isinstance(definition.source, FileSource):
        rows, names = messages, RowNames()
    elif decoding.format == "raw":
        rows, names = messages, RAW_NAMES
    else:
        wide = decode(messages, decoding)
        rows, names = good_rows(wide, decoding), DECODED_NAMES
        if decoding.on_bad_row == "quarantine":
            bad = bad_rows(decode(messages, decoding))
        if not decoding.with_metadata:
            names = replace(names, left_out=tuple(METADATA))
    if definition.transform.sql is not None:
        # A row of the query's output no longer corresponds to one message.
        return apply_transform(spark, rows, definition), bad, RowNames(timestamp=names.timestamp)
    return rows, bad, names


def start_queries(
    spark: "SparkSession",
    definition: Definition,
    checkpoint: Checkpoint,
    target: Target | None,
    show: Show,
    *,
    once: bool,
    partitions: Sequence[int] = (),
) -> list[Query]:
    """Start the queries of the definition. The first one moves the rows."""
    start = Start()
    if runs_remotely(spark):
        check_shared(spark, Path(checkpoint.folder.place, "facts.json"))
    if once:
        definition = _with_usable_limits(definition)
    if isinstance(definition.source, TopicSource):
        start = completed(checkpoint.start(definition.source.start), partitions)
    rows, bad, names = output_rows(spark, definition, read_source(spark, definition, target, start))
    if is_unchanged(definition):
        writer = _staged_writer(spark, definition, rows, checkpoint, target, start)
    else:
        writer = _writer(definition, rows, names, checkpoint, target, show)
    writers = [(definition.name, writer)]
    if bad is not None:
        quarantined = _without_consumer(definition)
        messages = read_source(spark, quarantined, target, start)
        _, bad, _ = output_rows(spark, quarantined, messages)
        assert bad is not None
        writers.append((f"{definition.name}.quarantine", _quarantine_writer(definition, bad, checkpoint, target)))
    started: list[Query] = []
    try:
        for name, writer in writers:
            writer = writer.queryName(name)
            if once:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{definition.trigger // _MILLISECOND} milliseconds")
            started.append(SparkQuery(writer.start()))
    except BaseException:
        for query in started:
            query.stop()
        raise
    return started


def _with_usable_limits(definition: Definition) -> Definition:
    """A copy without limits for Spark 4.0 and 4.1: there a run that ends is one batch, which has to take everything."""
    from courser.spark.releases import HAS_ADMISSION_CONTROL  # noqa: PLC0415 -- needs pyspark

    source = definition.source
    if HAS_ADMISSION_CONTROL or not isinstance(source, TopicSource):
        return definition
    return replace(definition, source=replace(source, max_messages_per_trigger=None, max_bytes_per_trigger=None))


def is_unchanged(definition: Definition) -> bool:
    """Whether messages are written to a lake unchanged, so that the tasks that read them can also write them."""
    is_lake = definition.sink.type in ("parquet", "delta", "iceberg")
    # The folders of a table come from columns that only the table's own writer derives.
    derives = definition.sink.type != "parquet" and bool(definition.sink.partition_by)
    is_raw = isinstance(definition.source, TopicSource) and definition.decoding.format == "raw"
    return is_lake and is_raw and definition.transform.sql is None and not derives


def _staged_writer(
    spark: "SparkSession",
    definition: Definition,
    rows: "DataFrame",
    checkpoint: Checkpoint,
    target: Target | None,
    start: Start,
) -> "DataStreamWriter":
    from pyspark.sql import functions as f  # noqa: PLC0415 -- optional

    from courser.pipelines import staging_source  # noqa: PLC0415 -- needs pyspark

    assert isinstance(definition.source, TopicSource)
    assert target is not None, "a topic has a server"
    assert definition.sink.path is not None
    with_folder_columns(rows, definition.sink, RAW_NAMES)
    root = staging_root(Path(definition.sink.path), definition.name)
    order = staging_order(definition.sink, RAW_NAMES, rows.columns, root)
    spark.dataSource.register(staging_source.StagingSource)
    options = topic_options(definition.source, target, start)
    options[staging_source.ORDER] = staging_source.order_text(order)
    reports = spark.readStream.format(staging_source.FORMAT).options(**options).load()
    # Spark counts the reports.
    reports = reports.observe(OBSERVED, f.sum("rows").alias("rows"))
    return lake_writer(definition.name, reports, definition.sink, RAW_NAMES, checkpoint, is_staged=True)


def _writer(
    definition: Definition,
    rows: "DataFrame",
    names: RowNames,
    checkpoint: Checkpoint,
    target: Target | None,
    show: Show,
) -> "DataStreamWriter":
    sink, mode = definition.sink, definition.transform.output_mode
    if sink.type == "topic":
        assert sink.place is not None
        assert target is not None, "a topic has a server"
        return topic_writer(_shown(rows, names), sink.place, sink, target, checkpoint.spark).outputMode(mode)
    if sink.type == "console":
        handler = ConsoleSink(sink.rows, show)
        writer = _shown(rows, names).writeStream.foreachBatch(handler).outputMode(mode)
        return writer.option("checkpointLocation", checkpoint.spark.place)
    return lake_writer(definition.name, rows, sink, names, checkpoint).outputMode(mode)


def _shown(rows: "DataFrame", names: RowNames) -> "DataFrame":
    return rows.drop(*names.left_out) if names.left_out else rows


def _quarantine_writer(
    definition: Definition, bad: "DataFrame", checkpoint: Checkpoint, target: Target | None
) -> "DataStreamWriter":
    from pyspark.sql import functions as f  # noqa: PLC0415 -- optional

    decoding, name = definition.decoding, f"{definition.name}.quarantine"
    if decoding.quarantine_path is not None:
        sink = SinkDefinition("parquet", path=decoding.quarantine_path)
        return lake_writer(name, bad, sink, DECODED_NAMES, checkpoint, is_quarantine=True)
    assert decoding.quarantine_topic is not None
    assert target is not None, "a topic has a server"
    told = {"courser-error": f.col("_error"), "courser-partition": f.col(PARTITION), "courser-offset": f.col(OFFSET)}
    pairs = [item for name, value in told.items() for item in (f.lit(name), value.cast("string").cast("binary"))]
    headers = f.create_map(*pairs)
    if HEADERS in bad.columns:
        headers = f.map_concat(f.coalesce(f.col(HEADERS), f.create_map().cast("map<string,binary>")), headers)
    messages = bad.select(f.col(PAYLOAD).alias("payload"), f.col(KEY).alias("key"), headers.alias("headers"))
    return topic_writer(messages, decoding.quarantine_topic, SinkDefinition("topic"), target, checkpoint.quarantine)


def _without_consumer(definition: Definition) -> Definition:
    """A copy with another consumer: the second query must not overwrite the progress of the first."""
    assert isinstance(definition.source, TopicSource)
    return replace(definition, source=replace(definition.source, consumer=f"{definition.source.consumer}.quarantine"))
