"""The order of a scan over several partitions, where it continues, and how scans make room for others."""

import random

import pytest

from courser.api.scans import Hit, ScanOrder
from courser.broker.messages.scan_order import Merge, Row
from courser.broker.messages.scan_turns import ScanPace


def hit(partition_id: int, offset: int, timestamp: int) -> Hit:
    return Hit(partition_id, offset, timestamp, timestamp, 0, b"", 0, b"")


def places(hits: list[Hit]) -> list[tuple[int, int]]:
    return [(found.partition_id, found.offset) for found in hits]


def test_a_hit_waits_until_no_other_partition_can_have_an_earlier_one() -> None:
    rows = {0: Row(0, 0, 10, 100), 1: Row(1, 0, 10, 90)}
    merge = Merge(rows, ScanOrder.NEWEST, 10)
    assert merge.next_row() is rows[0]
    merge.add(hit(0, 9, 100))
    merge.add(hit(0, 5, 80))
    rows[0].end_offset, rows[0].frontier = 5, 80
    # Partition 1 may still have messages of time 90.
    assert places(list(merge.ready())) == [(0, 9)]
    assert merge.next_row() is rows[1]
    rows[1].end_offset, rows[1].frontier = 0, 60
    assert places(list(merge.ready())) == [(0, 5)]
    assert merge.positions() == {0: 5, 1: 0}
    assert not merge.is_complete


def test_what_is_not_returned_is_found_by_the_next_scan() -> None:
    rows = {0: Row(0, 0, 10, 0)}
    merge = Merge(rows, ScanOrder.OLDEST, 1)
    for offset in (2, 4, 6, 8):
        merge.add(hit(0, offset, offset))
    rows[0].first_offset = 10
    assert places(list(merge.ready())) == [(0, 2)]
    assert merge.is_full
    assert merge.positions() == {0: 4}
    assert not merge.is_complete


@pytest.mark.parametrize("order", ScanOrder)
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_any_number_of_scans_find_everything_once_and_in_order(order: ScanOrder, count: int, seed: int) -> None:
    chance = random.Random(seed)
    logs: dict[int, list[Hit]] = {}
    for number in range(3):
        times = sorted(chance.randrange(50) for _ in range(chance.randrange(20)))
        logs[number] = [hit(number, offset, time) for offset, time in enumerate(times)]
    sign = -1 if order is ScanOrder.NEWEST else 1
    found: list[Hit] = []
    positions: dict[int, int] = {}
    is_complete = False
    while not is_complete:
        rows = {}
        for number, log in logs.items():
            first = 0 if sign < 0 else positions.get(number, 0)
            end = positions.get(number, len(log)) if sign < 0 else len(log)
            edge = end - 1 if sign < 0 else first
            rows[number] = Row(number, first, end, log[edge].timestamp if first < end else 0)
        merge = Merge(rows, order, count)
        while not merge.is_full and (row := merge.next_row()) is not None:
            step = chance.randrange(1, 5)
            log = logs[row.partition_id]
            if sign < 0:
                begin = max(row.end_offset - step, row.first_offset)
                piece = log[begin : row.end_offset]
                row.end_offset, row.frontier = begin, piece[0].timestamp
            else:
                piece = log[row.first_offset : min(row.first_offset + step, row.end_offset)]
                row.first_offset, row.frontier = row.first_offset + len(piece), piece[-1].timestamp
            for one in piece:
                merge.add(one)
            found += merge.ready()
        found += merge.ready()
        positions, is_complete = merge.positions(), merge.is_complete
    assert sorted(places(found)) == sorted(places([one for log in logs.values() for one in log]))
    times_found = [sign * one.timestamp for one in found]
    assert times_found == sorted(times_found)


def test_scans_make_room_as_soon_as_others_use_the_server() -> None:
    pace = ScanPace(now=0.0, process_time=0.0)
    # Nobody else: all of the time was ours.
    assert pace.pause_after(0.03, now=0.03, process_time=0.03) == 0
    now, process_time, scanned = 0.1, 0.03, 0.0
    pauses = []
    for _ in range(100):
        # Others use half a core.
        now, process_time, scanned = now + 0.006, process_time + 0.006, scanned + 0.003
        pauses.append(pace.pause_after(0.003, now, process_time))
        now, process_time = now + pauses[-1], process_time + pauses[-1] / 2
    assert pace.is_busy
    assert scanned / (process_time - 0.03) < 0.06
    # They are gone: the next interval has nothing of them.
    pace.pause_after(0.003, now + 0.1, process_time + 0.004)
    assert pace.pause_after(0.003, now + 0.2, process_time + 0.008) == 0


def test_others_come_first_on_a_machine_that_gives_the_server_little_time() -> None:
    pace = ScanPace(now=0.0, process_time=0.0)
    # In a second, the server gets a tenth of a core, of which the scan had a half.
    assert pace.pause_after(0.05, now=1.0, process_time=0.1) > 0
    assert pace.is_busy
    # Alone, it takes all of what there is.
    assert pace.pause_after(0.1, now=3.0, process_time=0.2) == 0


def test_a_scan_after_a_while_finds_the_first_messages_without_a_pause() -> None:
    pace = ScanPace(now=0.0, process_time=0.0)
    now, process_time, piece_count = 10.0, 8.0, 0
    while pace.pause_after(0.001, now, process_time) == 0:
        now, process_time, piece_count = now + 0.002, process_time + 0.002, piece_count + 1
    assert pace.is_busy
    assert 0.004 < piece_count * 0.001 < 0.02
