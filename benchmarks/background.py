"""What the archiver and the scrubber cost the clients: sends and polls with and without them, in turns.

One producer sends small batches to a partition of a broker, and a consumer reads what was sent, one request after
another. Windows with and without the work alternate, many in each round: a stall of the machine then spoils one of
them and not the median.

The archiver works all through its windows: what was sent without it is its backlog, and a window ends when that is
archived. What was sent meanwhile is archived after the window. The archive is in memory, as if it were on another
device: archives are not kept on the disk that they are a copy of. The scrubber reads at its default rate. Between two
requests, the event loop runs once, and threads take turns as often as in a server.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Protocol

from benchmarks.appending import Timing, Watch
from benchmarks.archiving import archiver_of, broker_settings, partition_of, running
from benchmarks.harness import Bench, Bound, Row, Target, switching_as_a_server, touch_memory
from benchmarks.samples import Shape, wire_batches
from courser.archive.settings import StoreSettings
from courser.broker.partition.partition import Partition
from courser.model.topic_options import TOPIC_OPTIONS
from courser.records.batch import parse_batch
from courser.storage.read_result import ReadBuffer
from courser.testing.broker import TestBroker

MESSAGE_COUNT = 10
"""Messages of a batch: enough batches for a p99."""
POLL_COUNT = 100
"""Messages of a poll."""
PAIR_COUNT = 4
"""Pairs of windows in each round."""
WINDOW_SHARE = 8
"""Each window sends this fraction (1/n) of what other cases append."""
_TOUCHED_WINDOWS = 4
"""What a window needs of the page cache at most: its sends, and archived copies of them and of the backlog."""
SPEED_GOAL = Target(Bound.RATIO_AT_LEAST, 0.9)
LATENCY_GOAL = Target(Bound.RATIO_AT_MOST, 2.0)

Traffic = tuple[Timing, Timing]
"""Sends and polls of one window."""


class Window(Protocol):
    """A window of a size, which may end before."""

    def __call__(self, is_over: Callable[[], bool] = ...) -> Awaitable[Traffic]: ...


Work = Callable[[TestBroker, Window], Awaitable[Traffic]]


def run(bench: Bench) -> Iterator[Row]:
    for name, work in (("archiving", _archive), ("scrubbing", _scrub)):
        other_device = Bench(bench.memory_directory, bench.scale)
        with bench.fresh_directory() as path, other_device.fresh_directory() as archive, switching_as_a_server():
            yield from _rows(name, bench.run(_compare(bench, path, archive, work)))


async def _archive(broker: TestBroker, window: Window) -> Traffic:
    """Traffic while the archiver archives its backlog."""
    archiver = archiver_of(broker)
    run = asyncio.create_task(archiver.run_once(gives_way=True))
    found = await window(run.done)
    # Otherwise each backlog would be larger than the last one.
    assert await archiver.run_once()
    assert await run
    return found


async def _scrub(broker: TestBroker, window: Window) -> Traffic:
    """Traffic while the scrubber reads. A round of it takes long; it goes on where it stopped."""
    task = asyncio.create_task(_scrub_again(broker))
    try:
        return await window()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _scrub_again(broker: TestBroker) -> None:
    while True:
        await broker.broker.scrubber.scrub()


async def _compare(bench: Bench, path: Path, archive: Path, work: Work) -> list[tuple[Traffic, Traffic]]:
    """Windows with and without the work, in turns."""
    wires = wire_batches(Shape.SAME, MESSAGE_COUNT)
    size = max(bench.scale.append_size // WINDOW_SHARE, len(wires[0]))
    segment_size = max(bench.scale.rolling_segment_size, TOPIC_OPTIONS["segment_size"].low)
    settings = broker_settings(segment_size, StoreSettings(path=archive))
    found = []
    async with running(path / "data", settings) as broker:
        window = partial(_window, partition_of(broker), wires, size)
        await window()
        for _ in range(PAIR_COUNT * bench.scale.rounds):
            touch_memory(path / "touched", _TOUCHED_WINDOWS * size)
            without = await window()
            touch_memory(path / "touched", _TOUCHED_WINDOWS * size)
            found.append((await work(broker, window), without))
    return found


async def _window(
    partition: Partition, wires: Sequence[bytes], size: int, is_over: Callable[[], bool] = lambda: False
) -> Traffic:
    """Send, and poll what was sent, until so many bytes were sent or it is over before."""
    buffer, sends, polls = ReadBuffer(), Watch(), Watch()
    offset, sent_size, polled_size = partition.log.next_offset, 0, 0
    for number, wire in enumerate(cycle(wires), 1):
        sends.start()
        await partition.append(parse_batch(wire))
        sends.sent()
        sends.stop()
        sent_size += len(wire)
        await asyncio.sleep(0)
        if number * MESSAGE_COUNT % POLL_COUNT == 0:
            buffer.used = 0
            polls.start()
            result = await partition.reader.read(offset, count=POLL_COUNT, size_max=sent_size, buffer=buffer)
            polls.sent()
            polls.stop()
            offset, polled_size = result.next_offset, polled_size + result.size
            await asyncio.sleep(0)
            if sent_size >= size or is_over():
                break
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
