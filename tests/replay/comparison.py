"""Recorded replies and ours, field by field; and recorded requests in our numbers."""

import io
import re
import struct
import zipfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import xxhash

from tests.replay.bookkeeping import Books
from tests.replay.captures import Wire
from tests.replay.fields import Field, Key, Kind, Record
from tests.replay.replies import ORDERED, SETS

_CLASSIC_HEADER_SIZE, _FRAME_HEADER_SIZE, _BATCH_HEADER_SIZE = 64, 48, 256


@dataclass(frozen=True)
class Difference:
    """Something about an exchange that is not as it was recorded."""

    field: str
    recorded: str
    ours: str

    def __str__(self) -> str:
        return f"{self.field}: {self.recorded} was recorded, ours is {self.ours}"


# --- requests ---


def translate(request: Record, books: Books) -> bytes:
    """The bytes of a request, with every number that the real server gave out replaced by ours."""
    return b"".join(_translated(field, books) for field in request.fields())


def _translated(field: Field, books: Books) -> bytes:
    size = len(field.data)
    match field.kind:
        case Kind.ID if field.key is not None:
            ours = books.ours(field.key)
            return field.data if ours is None else ours.to_bytes(size, "little")
        case Kind.OFFSET if field.key is not None:
            return books.offsets(field.key).ours_from(field.value).to_bytes(size, "little")
        case Kind.TIME:
            return books.our_time(field.value).to_bytes(size, "little")
        case _:
            return field.data


# --- replies ---


def compare(wire: Wire, recorded: Record, ours: Record, books: Books, note: str = "") -> list[Difference]:
    """Every field that differs for no reason of the run. What the servers gave out is entered in the books."""
    return list(_Comparison(wire, books, note).records(recorded, ours))


class _Comparison:
    def __init__(self, wire: Wire, books: Books, note: str) -> None:
        self._wire = wire
        self._books = books
        self._note = note

    def records(self, recorded: Record, ours: Record) -> Iterator[Difference]:
        for name in dict.fromkeys((*recorded, *ours)):
            match recorded.get(name), ours.get(name):
                case Field() as theirs, Field() as own:
                    yield from self._fields(name, theirs, own, recorded, ours)
                case list() as theirs, list() as own:
                    yield from self._lists(name, theirs, own)
                case theirs, own:
                    yield Difference(name, _describe(theirs), _describe(own))

    def _lists(self, name: str, recorded: list[Record], ours: list[Record]) -> Iterator[Difference]:
        if name in SETS[self._wire]:
            recorded = sorted(recorded, key=lambda record: self._rank(record, is_ours=False))
            ours = sorted(ours, key=lambda record: self._rank(record, is_ours=True))
        elif name in ORDERED:
            recorded, ours = yield from self._matched(name, ORDERED[name], recorded, ours)
        if len(recorded) != len(ours):
            yield Difference(name, f"{len(recorded)} of them", f"{len(ours)} of them")
        for theirs, own in zip(recorded, ours, strict=False):
            yield from self.records(theirs, own)

    def _matched(
        self, name: str, number: str, recorded: list[Record], ours: list[Record]
    ) -> Generator[Difference, None, tuple[list[Record], list[Record]]]:
        """Match things by their numbers: what only one side has is a difference, and does not shift the others."""
        if any(number not in record for record in ours):
            yield Difference(name, "whole", "cut")
            return [], []
        our_numbers = [record.field(number).value for record in ours]
        if our_numbers != sorted(our_numbers):
            yield Difference(name, f"ordered by {number}", f"ordered {our_numbers}")
        theirs = {self._our_number(record.field(number)): record for record in recorded}
        own = dict(zip(our_numbers, ours, strict=True))
        common = sorted(value for value in own if value in theirs)
        if len(common) != len(recorded) or len(common) != len(ours):
            yield Difference(name, f"{len(recorded)} of them", f"{len(ours)} of them")
        return [theirs[value] for value in common], [own[value] for value in common]

    def _our_number(self, field: Field) -> int | tuple[str, int]:
        """Our number of a thing that the real server lists. What we refused has none."""
        if field.key is None:
            return field.value
        ours: int | None
        if field.kind is Kind.OFFSET:
            ours = self._books.offsets(field.key).ours(field.value)
            return ("refused", field.value) if ours is None else ours
        if self._books.is_refused(field.key):
            return ("refused", field.value)
        ours = self._books.ours(field.key)
        return field.value if ours is None else ours

    def _rank(self, record: Record, *, is_ours: bool) -> tuple[object, ...]:
        """What orders a list without order: known numbers first, then all that is the same in every run."""
        known, rest = [], []
        for field in record.fields():
            if field.kind in {Kind.ID, Kind.SEEN_ID}:
                known.append(self._known(field, is_ours=is_ours))
            elif field.kind is Kind.SAME:
                rest.append(field.data)
        return (*known, *rest)

    def _known(self, field: Field, *, is_ours: bool) -> int:
        unknown = 2**64
        if field.key is None:
            return field.value
        if is_ours:
            is_seen = field.kind is Kind.ID or self._books.is_bound(field.key[:-1], field.value)
            return field.value if is_seen else unknown
        ours = self._books.ours(field.key)
        return ours if ours is not None else (field.value if field.kind is Kind.ID else unknown)

    def _fields(
        self, name: str, recorded: Field, ours: Field, recorded_record: Record, our_record: Record
    ) -> Iterator[Difference]:
        difference = Difference(name, str(recorded), str(ours))
        match recorded.kind:
            case Kind.VARIES:
                is_same = True
            case Kind.TIME:
                is_same = self._books.is_plausible(ours.value)
                self._books.times[recorded.value] = ours.value
            case Kind.TOKEN:
                is_same = True
                self._books.tokens[recorded.data] = ours.data
            case _ if recorded.key is not None:
                is_same = self._is_same_number(recorded.kind, recorded.key, recorded.value, ours.value)
            case Kind.SIZE if self._wire is Wire.CLASSIC and recorded.data != ours.data:
                is_same = False
                if not _is_explained(name, recorded_record, our_record):
                    difference = Difference(f"{name}, unexplained", str(recorded), str(ours))
            case Kind.CHECKSUM:
                is_same = ours.value == _checksum(our_record)
                difference = Difference(name, "right", "wrong")
            case Kind.MESSAGE_ID if recorded.data not in self._books.sent_message_ids:
                is_same = self._books.message_ids.setdefault(recorded.data, ours.data) == ours.data and any(ours.data)
            case Kind.ZIP:
                expected, actual = self._zip_entries(recorded.data), zip_entries(ours.data)
                is_same = (
                    actual[: len(expected)] == expected if self._is_beginning(recorded.data) else actual == expected
                )
                difference = Difference(name, str(expected), str(actual))
            case _:
                is_same = recorded.data == ours.data
        if not is_same:
            yield difference

    def _is_same_number(self, kind: Kind, key: Key, recorded: int, ours: int) -> bool:
        """Whether a number that the servers gave out means the same thing."""
        match kind:
            case Kind.OFFSET:
                return self._books.offsets(key).ours(recorded) == ours
            case Kind.CURRENT_OFFSET:
                return self._expected_current(key, recorded) == ours
            case Kind.NEW_ID:
                return self._books.bind(key, ours)
            case Kind.SEEN_ID if self._books.ours(key) is None:
                return self._books.bind(key, ours)
            case _:
                known = self._books.ours(key)
                return ours == (recorded if known is None else known)

    def _expected_current(self, key: Key, recorded: int) -> int:
        offsets = self._books.offsets(key)
        # An answer without a partition says 0, however many messages there are.
        return offsets.our_current if recorded == offsets.recorded_current else recorded

    def _zip_entries(self, data: bytes) -> list[tuple[str, int]]:
        """The entries of a recorded archive. Of one that was cut a note may tell, and its first entry does."""
        if "entries: " in self._note:
            return [(name, int(method)) for name, method in re.findall(r"([\w.]+) \(method (\d+)\)", self._note)]
        if not self._is_beginning(data):
            return zip_entries(data)
        method, name_size = struct.unpack_from("<H", data, 8)[0], struct.unpack_from("<H", data, 26)[0]
        return [(data[30 : 30 + name_size].decode(), method)] if len(data) >= 30 + name_size else []

    def _is_beginning(self, data: bytes) -> bool:
        return "entries: " not in self._note and b"PK\x05\x06" not in data


def zip_entries(data: bytes) -> list[tuple[str, int]]:
    """Names and methods of the entries of an archive, in their order."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(entry.filename, entry.compress_type) for entry in archive.infolist()]


def _describe(part: "Field | list[Record] | None") -> str:
    if part is None:
        return "nothing"
    return str(part) if isinstance(part, Field) else f"{len(part)} of them"


def _is_explained(name: str, recorded: Record, ours: Record) -> bool:
    """Whether a size is what the 0.9 server would count: a header per batch, and a smaller one per message."""
    if "messages_count" not in ours:
        return False
    counts = [record.field("messages_count").value for record in (recorded, ours)]
    if counts[0] != counts[1]:
        return True
    count = counts[0]
    headers = ours.field(name).value - recorded.field(name).value + count * (_CLASSIC_HEADER_SIZE - _FRAME_HEADER_SIZE)
    batch_count, remainder = divmod(headers, _BATCH_HEADER_SIZE)
    return remainder == 0 and 0 < batch_count <= count


def _checksum(record: Record) -> int:
    """What the checksum of a polled message or batch has to be."""
    data = b"".join(field.data for field in record.fields())
    if "frames" not in record:
        return xxhash.xxh3_64_intdigest(data[8:])
    checksum = xxhash.xxh3_64(data[:40] + data[48:52])
    for frame in record.records("frames"):
        checksum.update(frame.field("frame checksum").data)
    return checksum.intdigest()
