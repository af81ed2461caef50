"""Convert classic messages to batches and back, compared with a bare copy of the bytes.

Figures are MB/s of payload. Cases are measured alternately, so that load on the machine affects all of them.
"""

import random
import struct
import time
from collections.abc import Callable, Iterator

from benchmarks.harness import Bench, Bound, Row, Target
from courser.records.batch import Batch
from courser.records.classic import Dialect, classic_size_max, decode_classic, encode_classic

COUNT = 1_000
SAME_SIZE = 1_000
SMALL_SIZE = 100
SIZE_RANGE = (200, 1_800)
ORIGIN = 1_700_000_000_000_000

Task = Callable[[], object]


def section_of(sizes: list[int], dialect: Dialect, user_headers: bytes, source: random.Random) -> bytes:
    """What a client of this dialect sends for messages with payloads of these sizes."""
    index, messages, end = [], [], 0
    for number, size in enumerate(sizes):
        header = struct.pack(
            "<Q16sQQQII", 0, source.randbytes(16), 0, 0, ORIGIN + number, len(user_headers), size
        ).ljust(dialect.header_size, b"\0")
        message = header + source.randbytes(size) + user_headers
        end += len(message)
        index.append(struct.pack("<IIQ", 0, end, 0))
        messages.append(message)
    return b"".join(index + messages)


def cases() -> dict[str, tuple[int, Task]]:
    """For each name: bytes of payload, and what moves them once."""
    source = random.Random(7)
    same = [SAME_SIZE] * COUNT
    mixed = [source.randint(*SIZE_RANGE) for _ in range(COUNT)]
    small = [SMALL_SIZE] * COUNT
    untyped = bytes.fromhex("04000000") + b"kind" + bytes.fromhex("0205000000") + b"order"
    tasks: dict[str, tuple[int, Task]] = {}
    for shape, sizes, user_headers in (
        ("same", same, b""),
        ("mixed", mixed, b""),
        ("small", small, b""),
        ("single", [SAME_SIZE], b""),
        ("same, user headers", same, untyped),
    ):
        size = sum(sizes)
        for dialect in (Dialect.SDK_0_6, Dialect.SDK_0_8):
            section = section_of(sizes, dialect, user_headers, source)
            batch = _decode(section, len(sizes), dialect)
            into = bytearray(classic_size_max(len(batch.body), batch.count, dialect))
            tasks[f"decode {shape} {dialect.header_size}"] = size, _decoding(section, len(sizes), dialect)
            tasks[f"encode {shape} {dialect.header_size}"] = size, _encoding(batch, dialect, into)
            tasks[f"memcpy {shape} {dialect.header_size}"] = size, _copying(section)
    return tasks


def measure(seconds: float) -> dict[str, list[float]]:
    """MB/s of every case, one sample a turn, for about so many seconds in all."""
    tasks = cases()
    samples: dict[str, list[float]] = {name: [] for name in tasks}
    stop = time.perf_counter() + seconds
    while not samples["decode same 64"] or time.perf_counter() < stop:
        for name, (size, task) in tasks.items():
            # A sample covers at least 2 MB: a single small task is too short to measure.
            repeats = max(1, 2_000_000 // size)
            task()
            begin = time.perf_counter()
            for _ in range(repeats):
                task()
            samples[name].append(size * repeats / (time.perf_counter() - begin) / 1e6)
    return samples


def _ids(count: int) -> bytes:
    return bytes([1]) * 16 * count


def _decode(section: bytes, count: int, dialect: Dialect) -> Batch:
    (batch,) = decode_classic(memoryview(section), count, dialect=dialect, ids=_ids)
    return batch


def _decoding(section: bytes, count: int, dialect: Dialect) -> Task:
    return lambda: _decode(section, count, dialect)


def _encoding(batch: Batch, dialect: Dialect, into: bytearray) -> Task:
    view = memoryview(into)
    return lambda: encode_classic(
        batch.body,
        batch.count,
        base_offset=5,
        base_timestamp=ORIGIN,
        origin_timestamp=batch.origin_timestamp,
        dialect=dialect,
        into=view,
    )


def _copying(section: bytes) -> Task:
    return lambda: bytearray(section)


def run(bench: Bench) -> Iterator[Row]:
    speeds = measure(bench.scale.transcoding_seconds)
    for name, found in speeds.items():
        way, _, shape = name.partition(" ")
        if way == "memcpy":
            continue
        # "same 56" and "mixed 64" are the cases with a target.
        goals = {"same": 1_000, "mixed": 400}
        goal = goals.get(shape.rpartition(" ")[0])
        yield Row(
            measure=f"{way}, {shape.rpartition(' ')[0]}, {shape.rpartition(' ')[2]}-byte headers",
            unit="MB/s",
            engine=found,
            bare=speeds[f"memcpy {shape}"],
            bare_name="a copy of the bytes",
            target=Target(Bound.AT_LEAST, goal) if goal else None,
        )
