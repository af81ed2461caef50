"""Lists in Courser's own requests: each has a bound, and costs no more than what it says."""

from struct import pack

import pytest

from courser.api import commands as c
from courser.catalog import rules
from courser.model.consumers import ConsumerKind
from courser.model.identifiers import Consumer
from courser.wire import private_commands
from courser.wire import writing as w
from courser.wire.private_commands import PRIVATE_DECODERS, PRIVATE_WRITERS
from courser.wire.reading import Malformed, Reader

ALONE = Consumer(ConsumerKind.CONSUMER, 1)


def decoded(code: int, body: bytes) -> c.Command:
    return PRIVATE_DECODERS[code](Reader(memoryview(body)))


def wait_for(*positions: tuple[int, int]) -> bytes:
    command = c.WaitForArrivals(ALONE, "s", "t", positions, 0, 0)
    return PRIVATE_WRITERS[c.WaitForArrivals](command)


def test_a_partition_that_is_named_often_is_one_row() -> None:
    command = decoded(60004, wait_for((1, 7), (0, 5), (1, 3), (1, 9)))
    assert isinstance(command, c.WaitForArrivals)
    assert command.positions == ((1, 3), (0, 5))


def test_a_wait_has_a_thousand_rows_at_most() -> None:
    count = private_commands.POSITION_COUNT_MAX
    command = decoded(60004, wait_for(*((number, 0) for number in range(count))))
    assert isinstance(command, c.WaitForArrivals)
    assert len(command.positions) == count
    with pytest.raises(Malformed, match="1001 partitions, where 1000 are allowed"):
        decoded(60004, wait_for(*((0, 0) for _ in range(count + 1))))


def test_a_publish_has_as_many_parts_as_the_catalog_takes() -> None:
    count = private_commands.PUBLISHED_PART_COUNT_MAX
    assert count == rules.PUBLISHED_PART_COUNT_MAX
    head = w.text8("sink") + pack("<QQI", 1, 0, count + 1)
    with pytest.raises(Malformed, match="100001 parts, where 100000 are allowed"):
        decoded(60007, head + bytes((count + 1) * 12))
