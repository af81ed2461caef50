"""Compression, encryption and deduplication: sizes, speeds, and what they cost a send and a poll.

Figures are MB/s of messages before compression. Sends and polls go through ``Partition``, one at a time, and are
compared with those of a partition that stores batches as they are.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from benchmarks.appending import Timing, Watch
from benchmarks.engine import new_engine
from benchmarks.harness import Bench, Row
from benchmarks.reading import READ_SIZE_MAX
from courser.records.batch import Batch, NewMessage, build_batch
from courser.records.encryption import EncryptionKey, KeyRing
from courser.records.layout import Compression
from courser.records.stored_body import PLAIN, EncodedBatch, Encoding, Encryption, decode, encode, stamp_encoded
from courser.records.stored_header import PartitionIdentity, blank_header, read_header
from courser.storage.message_window import FEW, Deduplication, MessageWindow, few_ids, message_ids
from courser.storage.read_result import ReadBuffer
from courser.storage.settings import LogSettings

BATCH_COUNT = 8
PAYLOAD_SIZE = 1_000
DEDUPLICATED_SIZE = 100
"""Bytes of the messages whose sends are deduplicated."""
KEY = EncryptionKey(bytes(range(32)))
ENCRYPTION = Encryption(KEY, os.urandom)
IDENTITY = PartitionIdentity(bytes(16), 0, 1)
ENCODINGS = {
    **{codec.name.lower(): Encoding(codec) for codec in Compression if codec},
    "encrypted": Encoding(encryption=ENCRYPTION),
    "zstd, encrypted": Encoding(Compression.ZSTD, ENCRYPTION),
}
WINDOW = Deduplication(count_max=10_000, age_max=3_600_000_000)


@dataclass(frozen=True, slots=True)
class Sample:
    """Batches of one kind."""

    name: str
    batches: Sequence[Batch]

    @property
    def size(self) -> int:
        return sum(batch.size for batch in self.batches)


def samples(count: int) -> Iterator[Sample]:
    source = random.Random(7)
    for name, payload in (("JSON-like", _record), ("random", lambda source, _: source.randbytes(PAYLOAD_SIZE))):
        batches = [
            build_batch([NewMessage(payload(source, number), source.getrandbits(128)) for number in range(count)])
            for _ in range(BATCH_COUNT)
        ]
        yield Sample(name, batches)


def _record(source: random.Random, number: int) -> bytes:
    """An order with a few items, as a shop would send it."""
    items = [
        {
            "sku": f"SKU-{source.randrange(100_000):06}",
            "quantity": source.randrange(1, 9),
            "price": source.random() * 90,
        }
        for _ in range(source.randrange(2, 18))
    ]
    customer = {"id": source.randrange(10**7), "country": source.choice(("DE", "FR", "PL", "US")), "segment": "retail"}
    return json.dumps({"order": number, "state": "paid", "customer": customer, "items": items}).encode()


def run(bench: Bench) -> Iterator[Row]:
    for sample in samples(bench.scale.message_count):
        for name, encoding in ENCODINGS.items():
            yield from _coding(bench, sample, name, encoding)
            yield from bench.run(_traffic(bench, sample, name, encoding))
    yield from _deduplication(bench)
    yield from bench.run(_deduplicated_sends(bench))


def _coding(bench: Bench, sample: Sample, name: str, encoding: Encoding) -> Iterator[Row]:
    encoded = [encode(batch, encoding) for batch in sample.batches]
    label = f"{name}, {sample.name}"
    share = 100 * sum(batch.size for batch in encoded) / sample.size
    yield Row(measure=f"stored size, {label}", unit="% of plain", engine=[share])
    speeds = [
        _speed(lambda: [encode(batch, encoding) for batch in sample.batches], sample.size) for _ in _rounds(bench)
    ]
    yield Row(measure=f"encode, {label}", unit="MB/s", engine=speeds)
    stored = [_stored(batch) for batch in encoded if isinstance(batch, EncodedBatch)]
    if stored:
        speeds = [_speed(lambda: [_decode(data) for data in stored], sample.size) for _ in _rounds(bench)]
        yield Row(measure=f"decode, {label}", unit="MB/s", engine=speeds)


def _rounds(bench: Bench) -> range:
    return range(bench.scale.rounds)


def _speed(work: Callable[[], object], size: int) -> float:
    begin = time.perf_counter()
    work()
    return size / (time.perf_counter() - begin) / 1e6


def _stored(batch: EncodedBatch) -> memoryview:
    return memoryview(bytes(stamp_encoded(batch, blank_header(IDENTITY), 0, 0)) + bytes(batch.body))


def _decode(data: memoryview) -> memoryview:
    return decode(read_header(data, 0, IDENTITY), data, KeyRing([KEY]))


async def _traffic(bench: Bench, sample: Sample, name: str, encoding: Encoding) -> list[Row]:
    """Sends and polls, encoded and plain in turn."""
    found = [(await _round(bench, sample, encoding), await _round(bench, sample, PLAIN)) for _ in _rounds(bench)]
    rows = []
    for number, way in enumerate(("sends", "polls")):
        encoded, plain = [pair[0][number] for pair in found], [pair[1][number] for pair in found]
        label = f"{way}, {name}, {sample.name}"
        rows += [
            Row(
                measure=label,
                unit="MB/s",
                engine=[timing.speed for timing in encoded],
                bare=[timing.speed for timing in plain],
                bare_name="stored as it is",
            ),
            Row(
                measure=f"{label}, p99",
                unit="ms",
                engine=[timing.latency(0.99) for timing in encoded],
                bare=[timing.latency(0.99) for timing in plain],
                bare_name="stored as it is",
            ),
        ]
    return rows


async def _round(bench: Bench, sample: Sample, encoding: Encoding) -> tuple[Timing, Timing]:
    """Sends, and polls. Sizes are those of messages before compression."""
    repeats = max(bench.scale.append_size // 8 // sample.size, 1)
    size = sample.size * repeats
    with bench.fresh_directory() as path:
        async with new_engine(path) as engine:
            partition = engine.create(LogSettings(encoding=encoding, keys=KeyRing([KEY])))
            sends, polls = Watch(), Watch()
            for batch in islice(cycle(sample.batches), repeats * len(sample.batches)):
                sends.start()
                await partition.append(batch)
                sends.sent()
                sends.stop()
            buffer, offset = ReadBuffer(), 0
            while offset < partition.log.next_offset:
                buffer.used = 0
                polls.start()
                result = await partition.reader.read(
                    offset, count=sample.batches[0].count, size_max=READ_SIZE_MAX, buffer=buffer
                )
                polls.sent()
                polls.stop()
                offset = result.next_offset
    return sends.timing(size), polls.timing(size)


def _deduplication(bench: Bench) -> Iterator[Row]:
    source = random.Random(7)
    window = MessageWindow(WINDOW, 1)
    for size in (1, bench.scale.message_count):
        batches = [
            build_batch([NewMessage(b"", source.getrandbits(128)) for _ in range(size)])
            for _ in range(max(bench.scale.lookup_count // size, 1))
        ]
        costs = []
        for _ in _rounds(bench):
            window, offset = MessageWindow(WINDOW, 1), 0
            begin = time.perf_counter()
            for batch in batches:
                ids = (few_ids if size <= FEW else message_ids)(batch.body, batch.frames)
                assert window.has_none_of(ids, 0, 0)
                window.remember(ids, offset, 0)
                offset += size
            costs.append((time.perf_counter() - begin) * 1e6 / offset)
        yield Row(measure=f"deduplication, batches of {size:,}", unit="us/message", engine=costs)
    size_per_id = window.size_in_memory / max(len(window), 1)
    yield Row(measure="deduplication, memory", unit="bytes/id", engine=[size_per_id], note=f"{len(window):,} ids")


async def _deduplicated_sends(bench: Bench) -> list[Row]:
    """Sends of batches whose ids are all new, with and without deduplication in turn."""
    rows = []
    for size in (1, 10, bench.scale.message_count):
        costs: dict[bool, list[float]] = {True: [], False: []}
        for _ in _rounds(bench):
            for is_on, found in costs.items():
                found.append(await _cost_of_sends(bench, size, WINDOW if is_on else None))
        row = Row(
            measure=f"sends, deduplicated, batches of {size:,}",
            unit="us/message",
            engine=costs[True],
            bare=costs[False],
            bare_name="without deduplication",
            note="processor time of the event loop",
        )
        rows.append(row)
    return rows


async def _cost_of_sends(bench: Bench, size: int, window: Deduplication | None) -> float:
    """Microseconds of processor time for each message, once the window is full."""
    source = random.Random(7)
    full, count = (WINDOW.count_max if bench.scale.rounds > 1 else size) // size, bench.scale.lookup_count // size
    batches = [
        build_batch([NewMessage(bytes(DEDUPLICATED_SIZE), source.getrandbits(128)) for _ in range(size)])
        for _ in range(full + max(count, 1))
    ]
    with bench.fresh_directory() as path:
        async with new_engine(path) as engine:
            partition = engine.create(LogSettings(deduplication=window))
            for batch in batches[:full]:
                await partition.append(batch)
            begin = time.thread_time()
            for batch in batches[full:]:
                await partition.append(batch)
            seconds = time.thread_time() - begin
            assert partition.log.next_offset == len(batches) * size, "all ids are new"
    return seconds * 1e6 / (len(batches) - full) / size
