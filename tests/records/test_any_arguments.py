"""Whatever the walk over frames is given, it answers or refuses: it touches no memory but its own, compiled or not.

Most of what it is given here is nearly right: cut, longer, with lengths that lie, in memory of the wrong kind. ``make
sanitize`` runs these tests, and all others of this directory, with a compiled walk that watches every access.
"""

import array
import random
import struct
from collections.abc import Callable
from itertools import accumulate
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.records import frame_walk_pure
from courser.records.batch import NewMessage, build_batch, sent_header
from courser.records.checksum import xxh3
from courser.records.producers import BatchProducer
from courser.records.stored_header import PartitionIdentity, blank_header, stamp
from tests.test_compiled_part import COMPILED_ONLY

REFUSALS = (TypeError, ValueError, AttributeError, OverflowError, BufferError, IndexError, struct.error)
GUARD = b"\xa5" * 64
"""What lies on both sides of memory that is written to."""
LENGTHS = (0, 1, 47, 48, 49, 2**31 - 1, 2**31, 2**32 - 49, 2**32 - 48, 2**32 - 1)
"""Of a payload, or of user headers: those that a sum of 32 bits, or of 31, takes for others."""
COUNTS = (0, 1, 2, 48, 56, 64, 2**31, 2**32 - 1, 2**32, 2**59, 2**60, 2**61, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1)
SIZES = (0, 1, 15, 16, 47, 48, 49, 55, 56, 255, 256, 257, 303, 304, 600)
CALLS = 5
"""Per example: to draw an example costs more than to make a call."""

IDENTITY = PartitionIdentity(bytes(range(16)), 3, 4)

Arguments = tuple[Any, ...]


class Dice:
    """Arguments, drawn from one number: the same number, the same arguments."""

    def __init__(self, number: int) -> None:
        self._source = random.Random(number)
        self.written: list[bytearray] = []
        """Memory that a function may write to, its guards included."""

    def some_bytes(self, size_max: int) -> bytes:
        return self._source.randbytes(self._source.randint(0, size_max))

    def messages(self) -> list[NewMessage]:
        one = self.some_bytes(100), self._source.choice((b"", bytes(20)))
        is_uniform = self._source.random() < 0.5
        pairs = [
            one if is_uniform else (self.some_bytes(300), self.some_bytes(30))
            for _ in range(self._source.randint(1, 9))
        ]
        return [NewMessage(payload, number, number, block) for number, (payload, block) in enumerate(pairs)]

    def body(self) -> tuple[bytes, int]:
        """Good frames, and how many."""
        messages = self.messages()
        return bytes(build_batch(messages).body), len(messages)

    def classic_section(self, header_size: int) -> tuple[bytes, int]:
        """Good messages of an older SDK behind their index, and how many."""
        messages = []
        for _ in range(self._source.randint(1, 9)):
            payload, block = self.some_bytes(200), self.some_bytes(20) if header_size == 64 else b""
            fields = 0, self._source.choice((0, 5)), 0, 0, 0, 7, len(block), len(payload)
            messages.append(struct.pack("<QQQQQQII", *fields) + bytes(header_size - 56) + payload + block)
        ends = accumulate(map(len, messages))
        return b"".join((*(struct.pack("<IIQ", 0, end, 0) for end in ends), *messages)), len(messages)

    def count(self, right: int) -> int:
        return right if self._source.random() < 0.85 else self._source.choice((*COUNTS, right - 1, right + 1))

    def choice(self, *values: int) -> int:
        return self._source.choice(values)

    def damaged(self, good: bytes) -> bytes:
        """Cut, longer, with a length that lies, with another byte, or none of it; or as it is."""
        where = self._source.randrange(0, len(good) + 1, 4)
        match self._source.randrange(7):
            case 0:
                return good[:where]
            case 1:
                return good + self.some_bytes(70)
            case 2:
                return good[:where] + struct.pack("<I", self._source.choice(LENGTHS)) + good[where + 4 :]
            case 3:
                return good[:where] + self._source.randbytes(1) + good[where + 1 :]
            case 4:
                return self._source.randbytes(self._source.choice(SIZES))
        return good

    def memory(self, data: bytes) -> object:
        """Memory to read from: mostly good for it."""
        match self._source.randrange(8):
            case 0:
                return bytearray(data)
            case 1:
                return memoryview(bytes(3) + data)[3:]
            case 2:
                return np.frombuffer(data, np.uint8)
            case 3:
                # Nothing lies behind it that belongs to the object: an access too far is seen.
                return array.array("B", data)
            case 4 if self._source.random() < 0.3:
                return memoryview(data * 2)[::2]
            case 5 if self._source.random() < 0.3:
                return self._source.choice(("text", None, 5, b"", memoryview(b"")))
        return data

    def readable(self, good: bytes) -> object:
        return self.memory(self.damaged(good))

    def writable(self, content: bytes) -> object:
        """Memory to write to, between guards: sometimes too much or too little of it, or not to be written to."""
        content += bytes(self._source.choice((0, 0, 0, 1, 48)))
        content = content[: len(content) - self._source.choice((0, 0, 0, 1, 48))]
        whole = bytearray(GUARD + content + GUARD)
        self.written.append(whole)
        view = memoryview(whole)[len(GUARD) : len(whole) - len(GUARD)]
        match self._source.randrange(12):
            case 0:
                return view.toreadonly()
            case 1:
                return view[::2]
            case 2:
                return content
        return view


def arguments_of_survey(dice: Dice) -> Arguments:
    body, count = dice.body()
    return dice.readable(body), dice.count(count)


def arguments_of_first_in_cells(dice: Dice) -> Arguments:
    # What `survey` found, and no more: it is the server's own.
    body, count = dice.body()
    frame_size, starts, *_ = frame_walk_pure.survey(body, count) or pytest.fail("a good body")
    position, interval = dice.choice(0, 256, 5000, 2**31), dice.choice(1, 48, 100, 4096)
    return (
        starts,
        frame_size,
        count,
        position,
        dice.choice(0, 2**31),
        interval,
        position // interval - dice.choice(0, 1),
    )


def sent_batch(dice: Dice) -> bytes:
    batch = build_batch(dice.messages())
    batch.producer = BatchProducer(5, 1, 2, batch.count) if dice.choice(0, 1) else None
    return bytes(sent_header(batch) + batch.body)


def arguments_of_check_batch(dice: Dice) -> Arguments:
    return (dice.readable(sent_batch(dice)),)


def arguments_of_stamp_header(dice: Dice) -> Arguments:
    body, count = dice.body()
    sizes = (dice.count(5), dice.count(6), dice.count(7), dice.count(count), dice.count(0))
    return bytes(dice.choice(256, 256, 256, 255, 257, 0)), bytes(8 * count), dice.readable(body), *sizes


def arguments_of_survey_classic(dice: Dice) -> Arguments:
    header_size = dice.choice(56, 64)
    section, count = dice.classic_section(header_size)
    return dice.readable(section), dice.count(count), dice.count(header_size), dice.count(2**26), dice.count(100_000)


def arguments_of_frames_from_classic(dice: Dice) -> Arguments:
    header_size = dice.choice(56, 64)
    section, count = dice.classic_section(header_size)
    into = dice.writable(bytes(len(section) - count * (16 + header_size - 48)))
    ids = bytes(16 * dice.choice(count, count, count, 0))
    return dice.readable(section), ids, into, dice.count(count), dice.count(header_size), dice.count(7)


def arguments_of_take_classic_send(dice: Dice) -> Arguments:
    header_size = dice.choice(56, 64)
    section, count = dice.classic_section(header_size)
    metadata = bytes((1, 4, 0, 0, 0, 0, 2, 1, 65, 1, 0)) + struct.pack("<I", min(abs(dice.count(count)), 2**32 - 1))
    frame = struct.pack("<III", 8 + len(metadata) + len(section), dice.choice(101, 101, 101, 100), len(metadata))
    written = dice.writable(dice.damaged(frame + metadata + section))
    ids = dice.choice(16, 16, 16, 15, 17, 0)
    sizes = dice.count(header_size), dice.count(2**26), dice.count(100_000), dice.count(dice.choice(0, 10_000))
    return written, lambda wanted: bytes(ids * wanted), *sizes


def arguments_of_take_vsr_send(dice: Dice) -> Arguments:
    batch = sent_batch(dice)
    body = struct.pack("<I5s", dice.choice(5, 5, 5, 4, 800, 2**32 - 1), b"where") + batch
    checksum = dice.choice(0, 0, xxh3(body), 5)
    fields = 256 + len(body), dice.choice(5, 5, 5, 8), b"client", checksum, 9, dice.choice(160, 160, 2), 8
    header = struct.pack("<48xI8xB67x16sQ8x8xQB7xQ64x", *fields)
    return (dice.readable(header + body),)


def arguments_of_classic_from_frames(dice: Dice) -> Arguments:
    header_size, position = dice.choice(56, 64), dice.choice(0, 16, 300)
    body, count = dice.body()
    into = dice.writable(bytes(position + len(body) + count * (header_size - 48)))
    places = dice.count(position), dice.count(count), dice.count(header_size)
    return dice.readable(body), into, *places, dice.count(5), dice.count(2**63), dice.count(9)


def arguments_of_spread_ids(dice: Dice) -> Arguments:
    seed = bytes(range(dice.choice(16, 16, 16, 15, 17)))
    return dice.readable(seed), dice.count(5), dice.count(dice.choice(0, 1, 2, 50))


def arguments_of_write_frames(dice: Dice) -> Arguments:
    messages = dice.messages()
    size = sum(48 + len(message.payload) + len(message.user_headers) for message in messages)
    payloads = [dice.memory(bytes(message.payload)) for message in messages]
    blocks = [message.user_headers for message in messages[dice.choice(0, 0, 0, 1) :]]
    return payloads, blocks, dice.memory(bytes(48 * len(messages))), dice.writable(bytes(size))


def arguments_of_fill_checksums(dice: Dice) -> Arguments:
    body, count = dice.body()
    return dice.writable(dice.damaged(body)), dice.count(count)


def arguments_of_cut_frames(dice: Dice) -> Arguments:
    body, count = dice.body()
    return dice.readable(body), max(0, dice.count(1)), dice.count(count), dice.count(len(body))


def arguments_of_good_batches(dice: Dice) -> Arguments:
    blank, stored = blank_header(IDENTITY), b""
    for number in range(dice.choice(1, 1, 2, 3)):
        batch = build_batch(dice.messages())
        stored += bytes(stamp(batch, blank, 7 + number, 5)) + bytes(batch.body)
    return dice.readable(stored), blank[: dice.choice(256, 256, 256, 255, 0)], dice.count(7)


FUNCTIONS = {
    "survey": arguments_of_survey,
    "first_in_cells": arguments_of_first_in_cells,
    "check_batch": arguments_of_check_batch,
    "stamp_header": arguments_of_stamp_header,
    "survey_classic": arguments_of_survey_classic,
    "frames_from_classic": arguments_of_frames_from_classic,
    "take_classic_send": arguments_of_take_classic_send,
    "take_vsr_send": arguments_of_take_vsr_send,
    "classic_from_frames": arguments_of_classic_from_frames,
    "spread_ids": arguments_of_spread_ids,
    "write_frames": arguments_of_write_frames,
    "fill_checksums": arguments_of_fill_checksums,
    "cut_frames": arguments_of_cut_frames,
    "good_batches": arguments_of_good_batches,
}


def outcome(walk: ModuleType, name: str, draw: Callable[[Dice], Arguments], number: int) -> tuple[object, list[bytes]]:
    """What a function answers, or that it refuses; and the memory it was given to write to."""
    dice = Dice(number)
    arguments = draw(dice)
    try:
        answer = getattr(walk, name)(*arguments)
    except REFUSALS:
        answer = REFUSALS
    for whole in dice.written:
        assert whole.startswith(GUARD), f"{name} wrote before its memory: {arguments}"
        assert whole.endswith(GUARD), f"{name} wrote behind its memory: {arguments}"
    return answer, [bytes(whole) for whole in dice.written]


@pytest.mark.parametrize("name", FUNCTIONS)
@given(numbers=st.lists(st.integers(0, 2**64), min_size=CALLS, max_size=CALLS))
def test_any_arguments_are_answered_or_refused(walk: ModuleType, name: str, numbers: list[int]) -> None:
    for number in numbers:
        answer, written = outcome(walk, name, FUNCTIONS[name], number)
        expected, expected_written = outcome(frame_walk_pure, name, FUNCTIONS[name], number)
        # One refuses memory that the other takes; and some things are done by the compiled walk only.
        if REFUSALS not in (answer, expected) and name not in COMPILED_ONLY:
            assert (answer, written) == (expected, expected_written)


def test_every_function_is_tried(walk: ModuleType) -> None:
    if walk is not frame_walk_pure:
        assert {name for name in dir(walk) if not name.startswith("_")} == {*FUNCTIONS, "xxh3", "INTERFACE"}
