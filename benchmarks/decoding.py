"""JSON payloads of ten columns into a typed table and Parquet, on one core, beside Arrow's parser without any check.

Figures are MB/s of JSON by processor time, so that other work on the machine counts little.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness import Bench, Bound, Row, Target, Weight

_SCHEMA = (
    "order_id BIGINT NOT NULL, customer STRING, amount DOUBLE, quantity INT, country STRING, at TIMESTAMP, "
    "paid BOOLEAN, status STRING, note STRING, score DOUBLE"
)
_BAD_EVERY = 1_000
"""Payloads for each bad one, in the measure of a topic with bad ones."""
_SHARE = 8
"""The JSON is this part of what sequential reads read."""


def _payloads(size: int) -> list[bytes]:
    source = random.Random(7)
    payloads: list[bytes] = []
    total = 0
    while total < size:
        row = {
            "order_id": len(payloads),
            "customer": f"customer-{source.randrange(10_000)}",
            "amount": source.random() * 1000,
            "quantity": source.randrange(100),
            "country": source.choice(("DE", "FR", "US")),
            "at": f"2026-11-17T10:{source.randrange(60):02d}:{source.randrange(60):02d}.{source.randrange(10**6):06d}Z",
            "paid": source.random() < 0.5,
            "status": source.choice(("new", "paid", "sent")),
            "note": f"a note to order {len(payloads)}",
            "score": source.random(),
        }
        payloads.append(json.dumps(row).encode())
        total += len(payloads[-1])
    return payloads


def _write(table: Any) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 -- optional
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    pq.write_table(table, pa.BufferOutputStream(), compression="zstd", compression_level=1)


def _unchecked(lines: bytes, schema: Any) -> Any:
    """All lines as one block, with times as Arrow reads them."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.json as arrow_json  # type: ignore[import-untyped]  # noqa: PLC0415

    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    parsing = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return arrow_json.read_json(pa.BufferReader(lines), reading, parsing)


def _speed(size: int, work: Callable[[], object]) -> float:
    """MB/s of processor time."""
    begin = time.process_time()
    work()
    return size / 1e6 / max(time.process_time() - begin, 1e-6)


def run(bench: Bench) -> Iterator[Row]:
    import pyarrow as pa  # noqa: PLC0415

    from courser.lake.json_format import JsonFormat  # noqa: PLC0415
    from courser.lake.payloads import decode  # noqa: PLC0415
    from courser.lake.schemas import parse_schema  # noqa: PLC0415

    payloads = _payloads(bench.scale.read_size // _SHARE)
    size = sum(map(len, payloads))
    orders = JsonFormat(parse_schema(_SCHEMA))
    good = pa.array(payloads, pa.binary())
    spoilt = [payload if number % _BAD_EVERY else b'{"order_id": "?"}' for number, payload in enumerate(payloads)]
    bad = pa.array(spoilt, pa.binary())
    lines = b"\n".join(payloads)
    bare_schema = pa.schema([field.with_nullable(True) for field in orders.schema])
    whole: list[float] = []
    whole_bare: list[float] = []
    decoding: list[float] = []
    decoding_bare: list[float] = []
    with_bad: list[float] = []
    for _ in range(bench.scale.rounds):
        whole_bare.append(_speed(size, lambda: _write(_unchecked(lines, bare_schema))))
        whole.append(_speed(size, lambda: _write(decode(orders, good).rows)))
        decoding_bare.append(_speed(size, lambda: _unchecked(lines, bare_schema)))
        decoding.append(_speed(size, lambda: decode(orders, good)))
        with_bad.append(_speed(size, lambda: decode(orders, bad)))
    bare_name = "pyarrow.json of one buffer, unchecked"
    note = f"{size / len(payloads):.0f} B each"
    for weight, speed in ((Weight.MUST, 40), (Weight.AIM, 90)):
        yield Row(
            measure="JSON to Parquet (zstd 1), one core",
            unit="MB/s",
            engine=whole,
            bare=whole_bare,
            bare_name=bare_name,
            target=Target(Bound.AT_LEAST, speed, weight),
            note=note,
        )
    yield Row(
        measure="JSON to columns, one core",
        unit="MB/s",
        engine=decoding,
        bare=decoding_bare,
        bare_name=bare_name,
        note=note,
    )
    yield Row(
        measure=f"JSON to columns, one bad in {_BAD_EVERY:,}",
        unit="MB/s",
        engine=with_bad,
        bare=decoding,
        bare_name="the same without bad ones",
    )
