"""The checks of ``courser pipeline check``: everything that can be verified without reading or writing a message."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from courser.jobs.folders import Folder
from courser.lake.tables import TopicPosition
from courser.pipelines.checkpoint import makes_groups, open_checkpoint
from courser.pipelines.definition import INFER, Definition, FileSource, Start, TopicSource
from courser.pipelines.lake_publishing import check_origin
from courser.pipelines.queries import output_rows
from courser.pipelines.server_side import PartitionFacts, SourceFacts, check_topics, lakes_by_offset, needs_server
from courser.pipelines.sink_writers import with_folder_columns
from courser.pipelines.source_frames import FORMAT, batch_options, read_source, target_of, topic_options
from courser.pipelines.table_sinks import partition_fields, place_of
from courser.pipelines.transform import TransformRefused, as_messages
from courser.spark.connect import runs_remotely

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a run would do."""

    name: str
    file: str
    mode: str
    source: str
    sink: str
    generation: int
    is_fresh: bool
    """Whether it would start at ``starting`` rather than continue where it stopped."""
    starting: str
    partitions: list[PartitionFacts] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    """Name and type of the columns that reach the sink. Empty if Spark was not used."""


def check_without_query(definition: Definition, root: Folder, environment: Mapping[str, str] = os.environ) -> Findings:
    """Check server, login, topics and checkpoint, whose folder is ``root``.

    Raises:
        CourserError: the pipeline would not run.
    """
    checkpoint = open_checkpoint(root)
    if not definition.has_table:
        checkpoint.check(definition, write=False)
    facts = SourceFacts()
    if needs_server(definition):
        facts = check_topics(definition, target_of(definition.server, environment), may_create=False)
    for lake, origin in lakes_by_offset(definition, facts):
        check_origin(lake, origin)
    starting = "every file"
    if isinstance(definition.source, TopicSource):
        start = checkpoint.start(definition.source.start)
        starting = start.timestamp or start.offsets
    refuse_endless_groups(definition)
    is_fresh = checkpoint.is_fresh
    if definition.has_table:
        is_fresh = _position_of(definition, facts, environment) is None
    return Findings(
        name=definition.name,
        file=str(definition.path),
        mode=definition.mode,
        source=str(definition.source),
        sink=str(definition.sink),
        generation=checkpoint.generation,
        is_fresh=is_fresh,
        starting=starting,
        partitions=list(facts.partitions),
    )


def refuse_endless_groups(definition: Definition) -> None:
    """Refuse groups without a watermark in append mode: they never close, so nothing would ever be written."""
    transform = definition.transform
    if transform.output_mode == "append" and transform.watermark is None and makes_groups(transform.sql):
        raise TransformRefused(
            "the query groups rows but transform.watermark is not set, so no group ever closes; set it to the time "
            'column and the maximum lateness of rows, such as watermark = "at 10 minutes"'
        )


def plan_columns(
    spark: "SparkSession", definition: Definition, environment: Mapping[str, str] = os.environ
) -> list[str]:
    """Let Spark plan and run the query over an empty source. Returns the columns that reach the sink.

    Raises:
        CourserError, PySparkException: the query is invalid.
    """
    is_remote = runs_remotely(spark)
    session = spark if is_remote else spark.newSession()
    if definition.has_table:
        return _plan_table(session, definition, environment)
    with tempfile.TemporaryDirectory(prefix="courser-check-") as folder:
        place = Path(folder)
        if is_remote and isinstance(definition.source, TopicSource):
            messages = _end_of_topic(session, definition, definition.source, environment)
        else:
            (place / "empty").mkdir()
            messages = _empty_source(session, definition, place / "empty")
        rows, bad, names = output_rows(session, definition, messages)
        sink = definition.sink
        if sink.type == "topic":
            rows = as_messages(rows, sink)
        elif sink.type != "console":
            with_folder_columns(rows, sink, names)
        for number, planned in enumerate(planned for planned in (rows, bad) if planned is not None):
            writer = planned.writeStream.format("noop")
            # A Spark server makes a folder of its own.
            if not is_remote:
                writer = writer.option("checkpointLocation", str(place / str(number)))
            writer = writer.outputMode(definition.transform.output_mode if number == 0 else "append")
            # Nothing is read or written, but Spark reports errors here that it would report in a run.
            writer.trigger(availableNow=True).start().awaitTermination()
        kept = [column for column in rows.schema.fields if column.name not in names.left_out]
        return [f"{column.name} {column.dataType.simpleString()}" for column in kept]


def _plan_table(spark: "SparkSession", definition: Definition, environment: Mapping[str, str]) -> list[str]:
    """The columns of a table that takes rows as they come."""
    from courser.jobs.source_topic import open_topic  # noqa: PLC0415 -- these need pyarrow, which is optional
    from courser.lake.schemas import type_text  # noqa: PLC0415
    from courser.lake.table_opening import find_table  # noqa: PLC0415
    from courser.pipelines.table_opening import reading_of, sample_of  # noqa: PLC0415
    from courser.pipelines.table_rows import TopicRows  # noqa: PLC0415

    source = definition.source
    assert isinstance(source, TopicSource)
    is_inferred = definition.decoding.schema == INFER
    table = find_table(place_of(definition.sink), environment=environment) if is_inferred else None

    def sample() -> Iterator[bytes]:
        return sample_of(open_topic(batch_options(source, target_of(definition.server, environment))))

    reading = reading_of(definition, table, sample)
    columns = TopicRows(spark, definition, {}).columns(reading)
    return [f"{field.name} {type_text(field.type)}" for field in columns]


def _position_of(definition: Definition, facts: SourceFacts, environment: Mapping[str, str]) -> TopicPosition | None:
    """Where a table goes on; None: it has nothing of the topic, or is not there."""
    from courser.lake.table_opening import find_table  # noqa: PLC0415 -- needs pyarrow, which is optional

    sink = definition.sink
    table = find_table(place_of(sink), partition_fields(sink), environment=environment)
    return None if table is None else table.standing(facts.uuid).position


def _end_of_topic(
    spark: "SparkSession", definition: Definition, source: TopicSource, environment: Mapping[str, str]
) -> "DataFrame":
    """The topic without its messages: a Spark server need not see a folder of this machine, but has to find Courser."""
    options = topic_options(source, target_of(definition.server, environment), Start("latest"))
    # A check stores no progress.
    del options["consumer"]
    return spark.readStream.format(FORMAT).options(**options).load()


def _empty_source(spark: "SparkSession", definition: Definition, folder: Path) -> "DataFrame":
    source = definition.source
    if isinstance(source, FileSource):
        return read_source(spark, definition, None, Start())
    from courser.spark.schema import default_schema  # noqa: PLC0415 -- needs pyspark

    schema = default_schema("native", include_headers=source.with_headers)
    return spark.readStream.schema(schema).format("parquet").load(str(folder))
