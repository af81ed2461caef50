"""What the archiver and the scrubber cost the clients: sends and polls with and without them, in turns.

One producer sends small batches to a partition of a broker, and a consumer reads what was sent, one request after
another. The archiver always has something to do: what was sent without it is its backlog. The archive is in memory, as
if it were on another device: archives are not kept on the disk that they are a copy of. The scrubber reads at its
default rate. Between two requests, the event loop runs once, as in a server.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice
from pathlib import Path

from benchmarks.appending import Timing, Watch
from benchmarks.archiving import archiver_of, broker_settings, partition_of, running
from benchmarks.harness import Bench, Bound, Row, Target, touch_memory
from benchmarks.samples import Shape, wire_batches
from courser.archive.settings import StoreSettings
from courser.broker.partition import Partition
from courser.broker.topic_settings import SEGMENT_SIZE_MIN
from courser.records.batch import parse_batch
from courser.storage.read_result import ReadBuffer
from courser.testing.broker import TestBroker

MESSAGE_COUNT = 10
"""Messages of a batch: enough batches for a p99."""
POLL_COUNT = 100
"""Messages of a poll."""
WINDOW_SHARE = 4
"""Each window sends this fraction (1/n) of what other cases append."""
_TOUCHED_WINDOWS = 4
"""What a window needs of the page cache at most: its sends, and archived copies of them and of the backlog."""
SPEED_GOAL = Target(Bound.RATIO_AT_LEAST, 0.9)
LATENCY_GOAL = Target(Bound.RATIO_AT_MOST, 2.0)

Traffic = tuple[Timing, Timing]
"""Sends and polls of one window."""
Work = Callable[[TestBroker], Awaitable[object]]


def run(bench: Bench) -> Iterator[Row]:
    for name, work in (("archiving", _archive), ("scrubbing", _scrub)):
        other_device = Bench(bench.memory_directory, bench.scale)
        with bench.fresh_directory() as path, other_device.fresh_directory() as archive:
            yield from _rows(name, bench.run(_compare(bench, path, archive, work)))


async def _archive(broker: TestBroker) -> None:
    assert await archiver_of(broker).run_once()


async def _scrub(broker: TestBroker) -> None:
    await broker.broker.scrubber.scrub()


async def _compare(bench: Bench, path: Path, archive: Path, work: Work) -> list[tuple[Traffic, Traffic]]:
    """Windows with and without the work, in turns."""
    wires = wire_batches(Shape.SAME, MESSAGE_COUNT)
    size = max(bench.scale.append_size // WINDOW_SHARE, len(wires[0]))
    segment_size = max(bench.scale.rolling_segment_size, SEGMENT_SIZE_MIN)
    settings = broker_settings(segment_size, StoreSettings(path=archive))
    found = []
    async with running(path / "data", settings) as broker:
        partition = partition_of(broker)
        await _window(partition, wires, size)
        for _ in range(bench.scale.rounds):
            touch_memory(path / "touched", _TOUCHED_WINDOWS * size)
            without = await _window(partition, wires, size)
            touch_memory(path / "touched", _TOUCHED_WINDOWS * size)
            async with _repeated(work, broker):
                found.append((await _window(partition, wires, size), without))
    return found


@asynccontextmanager
async def _repeated(work: Work, broker: TestBroker) -> AsyncIterator[None]:
    """The work goes on until the end of the block."""
    is_wanted = True

    async def go_on() -> None:
        while is_wanted:
            await work(broker)
            await asyncio.sleep(0)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        is_wanted = False
        if work is _scrub:
            # A round takes long. It goes on where it stopped.
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _window(partition: Partition, wires: Sequence[bytes], size: int) -> Traffic:
    """Send so many bytes, and poll as many."""
    buffer, sends, polls = ReadBuffer(), Watch(), Watch()
    offset, sent_size, polled_size = partition.log.next_offset, 0, 0
    for number, wire in enumerate(islice(cycle(wires), size // len(wires[0]))):
        sends.start()
        await partition.append(parse_batch(wire))
        sends.sent()
        sends.stop()
        sent_size += len(wire)
        await asyncio.sleep(0)
        if (number + 1) * MESSAGE_COUNT % POLL_COUNT == 0:
            buffer.reset()
            polls.start()
            result = await partition.read(offset, count=POLL_COUNT, size_max=sent_size, buffer=buffer)
            polls.sent()
            polls.stop()
            offset, polled_size = result.next_offset, polled_size + result.size
            await asyncio.sleep(0)
    return sends.timing(sent_size), polls.timing(polled_size)


def _rows(name: str, windows: Sequence[tuple[Traffic, Traffic]]) -> Iterator[Row]:
    for number, way in enumerate(("sends", "polls")):
        busy = [with_it[number] for with_it, _ in windows]
        quiet = [without[number] for _, without in windows]
        yield Row(
            measure=f"{way} during {name}",
            unit="MB/s",
            engine=[timing.speed for timing in busy],
            bare=[timing.speed for timing in quiet],
            bare_name=f"without {name}",
            target=SPEED_GOAL,
        )
        yield Row(
            measure=f"{way} during {name}, by processor time",
            unit="MB/s",
            engine=[timing.processor_speed for timing in busy],
            bare=[timing.processor_speed for timing in quiet],
            bare_name=f"without {name}",
            note="of the event loop; less noise",
        )
        yield Row(
            measure=f"{way} during {name}, p99",
            unit="ms",
            engine=[timing.latency(0.99) for timing in busy],
            bare=[timing.latency(0.99) for timing in quiet],
            bare_name=f"without {name}",
            target=LATENCY_GOAL,
        )
