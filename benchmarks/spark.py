"""The data source ``courser``, compared with Spark's Parquet reader and writer, and with idle Python sources.

Rows of 1 KB go to the sink ``noop``, two tasks at a time; figures are MB/s of payload. The first runs do not count,
because Java compiles its code then. Server and Spark share this machine.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.harness import MIB, Bench, Bound, Row, Target
from benchmarks.samples import Shape, make_sample, wire_batches
from benchmarks.spark_writes import write_rows
from benchmarks.wires.requests import TopicName
from benchmarks.wires.vsr_wire import VsrWire
from courser.bench.private_server import PrivateServer, private_server
from courser.client.sync import connect_sync
from courser.spark.session import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_COUNT = 2
MASTER = f"local[{TASK_COUNT}]"
SEGMENT_SIZE = 64 * MIB
DISTINCT_COUNT = 16
"""Number of different batches to send in turn: more than a Parquet dictionary holds."""
WARM_UP_COUNT = 8
"""Number of runs of each kind that are not counted: Java compiles code gradually, after it has run often."""
STREAM = "bench"
_PATIENCE = 600
_STEP = 0.05
"""Seconds between two looks at a query."""
_START = """
import time
begin = time.perf_counter()
{start}
print(time.perf_counter() - begin)
"""
_OURS = f"from courser.spark.session import spark_session\nspark_session('bench', {MASTER!r})"
_PLAIN = f"from pyspark.sql import SparkSession\nSparkSession.builder.master({MASTER!r}).getOrCreate()"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with messages."""

    name: str
    count: int
    payload_size: int
    """Bytes of all payloads."""

    def speed(self, seconds: float) -> float:
        """MB/s."""
        return self.payload_size / 1e6 / seconds


@contextmanager
def running_session(directory: Path) -> Iterator["SparkSession"]:
    """The session of this process, or one for this case only."""
    from pyspark import cloudpickle  # noqa: PLC0415 -- optional, and slow to import
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from benchmarks import spark_sources  # noqa: PLC0415
    from courser.spark.session import spark_session  # noqa: PLC0415

    running = SparkSession.getActiveSession()
    session = running or spark_session("benchmarks", MASTER, log=directory / "java.log")
    cloudpickle.register_pickle_by_value(spark_sources)  # type: ignore[no-untyped-call]
    session.dataSource.register(spark_sources.TrivialSource)
    try:
        yield session
    finally:
        cloudpickle.unregister_pickle_by_value(spark_sources)  # type: ignore[no-untyped-call]
        if running is None:
            session.stop()


def fill_topic(server: PrivateServer, name: str, shape: Shape, size: int, message_count: int) -> Topic:
    """One partition for each task."""
    source = random.Random(7)
    samples = [make_sample(shape.payload_sizes(message_count, source), source) for _ in range(DISTINCT_COUNT)]
    place = TopicName(STREAM, name)
    turns = max(size // sum(sample.stored_size for sample in samples) // TASK_COUNT, 1)
    with closing(VsrWire(server.target)) as wire:
        wire.create_topic(place, TASK_COUNT)
        requests = [wire.make_send(place, partition, sample) for partition in range(TASK_COUNT) for sample in samples]
        for _ in range(turns):
            for request in requests:
                wire.send(request)
    times = turns * TASK_COUNT
    count = times * sum(sample.count for sample in samples)
    return Topic(name, count, times * sum(sample.payload_size for sample in samples))


def _options(server: PrivateServer, topic: Topic) -> dict[str, str]:
    target = server.target
    return {
        "url": f"iggy://{target.username}:{target.password}@{target.address}",
        "stream": STREAM,
        "topic": topic.name,
        # One task for each partition.
        "maxBytesPerPartition": str(2**40),
    }


def seconds_of(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def drop(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True)
class Reading:
    """Frames over the same rows."""

    files: "DataFrame"
    server: "DataFrame"
    parquet: "DataFrame"
    trivial: "DataFrame"


def _frames(spark: "SparkSession", server: PrivateServer, topic: Topic, path: Path) -> Reading:
    reader = spark.read.format("courser").options(**_options(server, topic))
    files = reader.option("source", "segments").option("path", str(server.data)).load()
    served = spark.read.format("courser").options(**_options(server, topic)).option("source", "server").load()
    place = str(path / f"{topic.name}.parquet")
    files.write.option("compression", "uncompressed").mode("overwrite").parquet(place)
    size = topic.payload_size // topic.count
    times = max(topic.count // TASK_COUNT // 2000, 1)
    trivial = spark.read.format("trivial").options(rows="2000", size=str(size), times=str(times)).load()
    return Reading(files, served, spark.read.parquet(place), trivial)


def _reads(bench: Bench, frames: Reading, topic: Topic, shape: Shape) -> Iterator[Row]:
    kinds = ("parquet", "files", "server", "trivial")
    for _ in range(min(WARM_UP_COUNT, bench.scale.spark_batch_count)):
        for kind in kinds:
            drop(getattr(frames, kind))
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(bench.scale.rounds):
        for kind in kinds:
            frame = getattr(frames, kind)
            speeds[kind].append(topic.speed(seconds_of(lambda frame=frame: drop(frame))))  # type: ignore[misc]
    for measure, engine, bare, name, least in (
        ("batch read of segment files", "files", "parquet", "Spark reads uncompressed Parquet", 0.8),
        ("batch read from the server", "server", "files", "segment files", 0.7),
        ("batch read of segment files", "files", "trivial", "a source with ready record batches", None),
    ):
        target = None if least is None else Target(Bound.RATIO_AT_LEAST, least)
        yield Row(
            measure=f"{measure}, {shape.value}",
            unit="MB/s",
            engine=speeds[engine],
            bare=speeds[bare],
            bare_name=name,
            target=target,
        )


def _progress(frame: "DataFrame", checkpoint: Path, count: int) -> list[Any]:
    """The micro-batches of a query that processes ``count`` messages.

    Not with the trigger ``availableNow``: before Spark 4.2, that is a single micro-batch.
    """
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    deadline = time.monotonic() + _PATIENCE
    try:
        while sum(progress["numInputRows"] for progress in query.recentProgress) < count:
            assert time.monotonic() < deadline, "the stream does not come to its end"
            assert query.isActive, query.exception()
            time.sleep(_STEP)
        return [progress for progress in query.recentProgress if progress["numInputRows"]]
    finally:
        query.stop()


def _catch_up(bench: Bench, spark: "SparkSession", server: PrivateServer, shape: Shape, path: Path) -> Row:
    """A stream that works through a backlog. The first micro-batch does not count."""
    from courser.spark.options import Use, parse_options  # noqa: PLC0415 -- optional, and slow to import

    size = bench.scale.spark_backlog_size
    topic = fill_topic(server, f"backlog-{shape.name}", shape, size, bench.scale.message_count)
    options = _options(server, topic) | {"startingOffsets": "earliest"}
    whole = spark.read.format("courser").options(**options).load()
    # The default, unless only one or two micro-batches would be left to measure.
    taken_size = min(parse_options({}, Use.STREAM)["maxBytesPerTrigger"], size // 4)
    frame = spark.readStream.format("courser").options(**options, maxBytesPerTrigger=str(taken_size)).load()
    speeds, batch_speeds = [], []
    # The first run would pay for memory that the machine has not used yet.
    drop(whole)
    for number in range(bench.scale.rounds):
        rest = _progress(frame, path / f"catch-up-{shape.name}-{number}", topic.count)[1:]
        seconds = sum(progress["durationMs"]["triggerExecution"] for progress in rest) / 1000
        share = sum(progress["numInputRows"] for progress in rest) / topic.count
        speeds.append(topic.speed(seconds) * share)
        batch_speeds.append(topic.speed(seconds_of(lambda: drop(whole))))
    return Row(
        measure=f"streaming catch-up, {shape.value}",
        unit="MB/s",
        engine=speeds,
        bare=batch_speeds,
        bare_name="batch read from the server",
        target=Target(Bound.RATIO_AT_LEAST, 0.6),
        note=f"{topic.payload_size // 10**6:,} MB, {taken_size // MIB or 1} MiB at a time",
    )


def _floor(bench: Bench, spark: "SparkSession", server: PrivateServer, path: Path) -> Row:
    """Micro-batches of one message."""
    count = bench.scale.spark_batch_count
    with connect_sync(server.target) as client:
        client.create_topic(STREAM, "floor", 1)
        for number in range(count):
            client.send_messages(STREAM, "floor", 0, [str(number)])
    options = _options(server, Topic("floor", count, count)) | {"startingOffsets": "earliest"}
    ours = spark.readStream.format("courser").options(**options).option("maxOffsetsPerTrigger", "1").load()
    trivial = spark.readStream.format("trivial").load()
    query = trivial.writeStream.format("noop").option("checkpointLocation", str(path / "floor-trivial")).start()
    try:
        while len(query.recentProgress) < count:
            time.sleep(_STEP)
        bare = _durations(query.recentProgress)
    finally:
        query.stop()
    return Row(
        measure="micro-batch of one message",
        unit="ms",
        engine=[median(_durations(_progress(ours, path / "floor-courser", count)))],
        bare=[median(bare)],
        bare_name="a trivial Python source",
    )


def _durations(progress: list[Any]) -> list[float]:
    """Without the first ones, which are slow."""
    return [one["durationMs"]["triggerExecution"] for one in progress[min(2, len(progress) - 1) :]]


def _exports(bench: Bench, spark: "SparkSession", server: PrivateServer, topic: Topic, path: Path) -> Iterator[Row]:
    """Segment files into Parquet: in the tasks, and through Spark's writer."""
    from courser.jobs.export import export  # noqa: PLC0415

    options = _options(server, topic) | {"path": str(server.data), "source": "segments"}
    frame = spark.read.format("courser").options(**options).load()
    ours, bare = [], []
    for number in range(max(bench.scale.rounds // 2, 1) + 1):
        place = str(path / f"plain-{number}")
        writer = frame.write.option("compression", "zstd").mode("overwrite")
        bare.append(topic.speed(seconds_of(lambda place=place, writer=writer: writer.parquet(place))))  # type: ignore[misc]
        lake = path / f"lake-{number}"
        ours.append(topic.speed(seconds_of(lambda lake=lake: export(spark, options, lake))))  # type: ignore[misc]
    yield Row(
        measure="export to Parquet (zstd), 1,000 B",
        unit="MB/s",
        engine=ours[1:],
        bare=bare[1:],
        bare_name="Spark's own Parquet writer",
        target=Target(Bound.RATIO_AT_LEAST, 1.5),
    )


def _decoding(bench: Bench, shape: Shape) -> Row:
    """Stored batches into record batches, on one core, without Spark."""
    from courser.spark.decoding import Decoder  # noqa: PLC0415
    from courser.spark.releases import arrow_schema  # noqa: PLC0415
    from courser.spark.schema import default_schema  # noqa: PLC0415

    records = memoryview(b"".join(wire_batches(shape, bench.scale.message_count, 2)))
    schema = arrow_schema(default_schema("native", include_headers=False))
    decoder = Decoder(schema, stream=STREAM, topic="decoded", size_max=2 * MIB)
    turns = max(bench.scale.spark_size // len(records), 1)
    speeds = []
    for _ in range(bench.scale.rounds):
        begin, count = time.process_time(), 0
        for _ in range(turns):
            count += sum(len(batch) for batch in decoder.decode(records, 0, 2**62))
        speeds.append(count / 1e6 / max(time.process_time() - begin, 1e-6))
    return Row(measure=f"decoding, one core, {shape.value}", unit="M messages/s", engine=speeds)


def _session_start(bench: Bench, directory: Path) -> Row:
    """Each start is a process of its own. Ours looks for Java, the plain one is told; both lack the class archive."""
    # An archive of classes belongs to whoever made it: in a cache of its own there is none.
    environment = dict(os.environ) | {"XDG_CACHE_HOME": str(directory / "cache")}
    told = dict(environment)
    prepare_environment(told, MASTER)

    def seconds(start: str, variables: dict[str, str]) -> float:
        command = [sys.executable, "-c", _START.format(start=start)]
        result = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=_PATIENCE)
        return float(result.stdout.split()[-1])

    pairs = [(seconds(_OURS, environment), seconds(_PLAIN, told)) for _ in range(bench.scale.rounds)]
    return Row(
        measure="session start",
        unit="s",
        engine=[ours for ours, _ in pairs],
        bare=[plain for _, plain in pairs],
        bare_name="a session of plain pyspark",
        target=Target(Bound.RATIO_AT_MOST, 1.1),
    )


def run(bench: Bench) -> Iterator[Row]:
    """Run the reads first. Writes come last, because they leave dirty pages."""
    scale = bench.scale
    size = scale.spark_size
    with bench.fresh_directory(max(2 * size, scale.spark_backlog_size)) as path, running_session(path) as spark:
        settings = [f"system.segment.size={SEGMENT_SIZE}"]
        for shape in (Shape.SAME, Shape.MIXED):
            with private_server(path, settings) as server:
                with connect_sync(server.target) as client:
                    client.create_stream(STREAM)
                topic = fill_topic(server, f"read-{shape.name}", shape, size, scale.message_count)
                frames = _frames(spark, server, topic, path)
                yield from _reads(bench, frames, topic, shape)
                yield _catch_up(bench, spark, server, shape, path)
                yield _decoding(bench, shape)
                if shape is Shape.SAME:
                    yield _floor(bench, spark, server, path)
                    yield from _exports(bench, spark, server, topic, path)
                yield from write_rows(bench, server, frames.parquet, _options(server, topic), topic.payload_size, shape)
    with bench.fresh_directory(0) as path:
        yield _session_start(bench, path)
