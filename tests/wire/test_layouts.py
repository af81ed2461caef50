"""Layouts that follow from the fields of commands and replies: every list has its bound."""

from struct import pack

import pytest

from courser.api import commands as c
from courser.catalog import rules
from courser.model.identifiers import Consumer, ConsumerKind
from courser.wire import writing as w
from courser.wire.layouts import layout_of
from courser.wire.reading import Malformed, Reader

ALONE = Consumer(ConsumerKind.CONSUMER, 1)
WAIT, PUBLISH = layout_of(c.WaitForArrivals), layout_of(c.PublishStaged)


def wait_for(count: int) -> Reader:
    positions = tuple((number, 0) for number in range(count))
    return Reader(memoryview(WAIT.write(c.WaitForArrivals(ALONE, "s", "t", positions, 0, 0))))


def test_a_wait_has_a_thousand_rows_at_most() -> None:
    assert len(WAIT.read(wait_for(c.POSITION_COUNT_MAX)).positions) == c.POSITION_COUNT_MAX
    with pytest.raises(Malformed, match="1001 rows, but at most 1000 are allowed"):
        WAIT.read(wait_for(c.POSITION_COUNT_MAX + 1))


def test_a_publish_has_as_many_parts_as_the_catalog_takes() -> None:
    count = c.PUBLISHED_PART_COUNT_MAX
    assert count == rules.PUBLISHED_PART_COUNT_MAX
    head = w.text8("sink") + pack("<QQI", 1, 0, count + 1)
    with pytest.raises(Malformed, match="100001 rows, but at most 100000 are allowed"):
        PUBLISH.read(Reader(memoryview(head)))


def test_fields_travel_in_the_order_of_the_row() -> None:
    data = PUBLISH.write(c.PublishStaged("sink", 1, ((2, 3),), 4))
    assert data == w.text8("sink") + pack("<QQIIQ", 1, 4, 1, 2, 3)
    assert PUBLISH.read(Reader(memoryview(data))) == c.PublishStaged("sink", 1, ((2, 3),), 4)


def test_ids_are_shifted_and_other_numbers_are_not() -> None:
    layout = layout_of(c.DeleteSegments)
    data = layout.write(c.DeleteSegments(0, "t", 5, 7), first_id=1)
    assert data == pack("<BBI", 1, 4, 1) + b"\x02\x01t" + pack("<II", 6, 7)
    assert layout.read(Reader(memoryview(data), first_id=1)) == c.DeleteSegments(0, "t", 5, 7)
