"""The parts that requests are made of: written, read back, cut, and with values that do not exist."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import Balanced, ByKey, PollingKind, ToPartition
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from courser.wire import writing as w
from courser.wire.reading import PERMISSIONS_SIZE_MAX, Malformed, Reader

PERMISSIONS = Permissions(
    GlobalPermissions(read_servers=True),
    {0: StreamPermissions(), 9: StreamPermissions(send_messages=True, topics={5: TopicPermissions(read_topic=True)})},
)
PARTS: dict[str, tuple[bytes, Callable[[Reader], object], object]] = {
    "u16": (b"\1\2", Reader.u16, 0x201),
    "u32": (b"\1\2\3\4", Reader.u32, 0x4030201),
    "u64": (b"\1\2\3\4\5\6\7\x80", Reader.u64, 0x8007060504030201),
    "text8": (w.text8("grün"), Reader.text8, "grün"),
    "name": (w.text8("n" * 255), Reader.name, "n" * 255),
    "text32": (w.text32("x" * 300), Reader.text32, "x" * 300),
    "number": (w.identifier(7), Reader.identifier, 7),
    "identifier": (w.identifier("7"), Reader.identifier, "7"),
    "consumer": (
        w.consumer(Consumer(ConsumerKind.GROUP, "g")),
        Reader.consumer,
        Consumer(ConsumerKind.GROUP, "g"),
    ),
    "balanced": (w.partitioning(Balanced()), Reader.partitioning, Balanced()),
    "partition": (w.partitioning(ToPartition(3)), Reader.partitioning, ToPartition(3)),
    "key": (w.partitioning(ByKey(b"key")), Reader.partitioning, ByKey(b"key")),
    "no partition": (w.optional_partition(None), Reader.optional_partition, None),
    "a partition": (w.optional_partition(4), Reader.optional_partition, 4),
    "polling kind": (b"\x04", Reader.polling_kind, PollingKind.LAST),
    "permissions": (w.optional_permissions_of_request(PERMISSIONS), Reader.optional_permissions, PERMISSIONS),
    "no permissions": (w.optional_permissions_of_request(None), Reader.optional_permissions, None),
}
every_part = pytest.mark.parametrize("name", PARTS)


@every_part
def test_a_part_is_read_to_its_end_and_no_further(name: str) -> None:
    data, read, value = PARTS[name]
    reader = Reader(memoryview(data + b"rest"))
    assert read(reader) == value
    assert (reader.remaining, bytes(reader.rest()), reader.remaining) == (4, b"rest", 0)


@every_part
def test_a_part_that_is_cut_is_refused(name: str) -> None:
    data, read, _ = PARTS[name]
    for size in range(len(data)):
        with pytest.raises(Malformed) as refusal:
            read(Reader(memoryview(data)[:size]))
        assert refusal.value.code is ErrorCode.INVALID_COMMAND


@pytest.mark.parametrize(
    ("data", "read", "code"),
    [
        ("00 04 00000000", Reader.identifier, 3),
        ("03 04 00000000", Reader.identifier, 3),
        ("02 02 fffe", Reader.identifier, 3),
        ("01 03 000000", Reader.identifier, 4),
        ("01 08 0000000000000000", Reader.identifier, 4),
        ("02 00", Reader.identifier, 4),
        ("00", Reader.name, 4),
        ("01 ff", Reader.name, 3),
        ("00 01 04 00000000", Reader.consumer, 3),
        ("03 01 04 00000000", Reader.consumer, 3),
        ("00 00", Reader.partitioning, 3),
        ("04 00", Reader.partitioning, 3),
        ("01 04 00000000", Reader.partitioning, 3),
        ("02 02 0000", Reader.partitioning, 3),
        ("02 08 0000000000000000", Reader.partitioning, 3),
        ("00", Reader.polling_kind, 3),
        ("06", Reader.polling_kind, 3),
        ("00", Reader.is_active, 3),
        ("03", Reader.is_active, 3),
        ("01 0a000000 0000000000000000000000", Reader.optional_permissions, 4),
        ("01 0c000000 0000000000000000000000", Reader.optional_permissions, 4),
    ],
)
def test_what_does_not_exist_is_refused(data: str, read: Callable[[Reader], object], code: int) -> None:
    with pytest.raises(Malformed) as refusal:
        read(Reader(memoryview(bytes.fromhex(data))))
    assert refusal.value.code == code
    assert str(refusal.value).startswith("malformed request: ")


def test_only_1_says_that_something_follows() -> None:
    assert Reader(memoryview(b"\2\5\0\0\0")).optional_partition() is None
    assert Reader(memoryview(b"\2")).optional_permissions() is None


def test_any_byte_but_0_is_true() -> None:
    assert [Reader(memoryview(bytes((byte,)))).flag() for byte in (0, 1, 2, 255)] == [False, True, True, True]
    reader = Reader(memoryview(b"\2" * 10 + b"\0"))
    assert reader.permissions().everywhere == GlobalPermissions(*[True] * 10)


@given(
    value=st.one_of(st.integers(0, 2**32 - 1), st.text(min_size=1).filter(lambda text: len(text.encode()) < 256)),
    first_id=st.sampled_from([0, 1]),
)
def test_identifiers_come_back(value: int | str, first_id: int) -> None:
    assert Reader(memoryview(w.identifier(value, first_id)), first_id=first_id).identifier() == value


topics = st.dictionaries(st.integers(0, 2**32 - 1), st.builds(TopicPermissions, *[st.booleans()] * 4), max_size=4)
streams = st.dictionaries(
    st.integers(0, 2**32 - 1), st.builds(StreamPermissions, *[st.booleans()] * 6, topics), max_size=4
)


@given(
    everywhere=st.builds(GlobalPermissions, *[st.booleans()] * 10), streams=streams, first_id=st.sampled_from([0, 1])
)
def test_permissions_come_back(
    everywhere: GlobalPermissions, streams: dict[int, StreamPermissions], first_id: int
) -> None:
    permissions = Permissions(everywhere, streams)
    data = w.optional_permissions_of_request(permissions, first_id)
    assert Reader(memoryview(data), first_id=first_id).optional_permissions() == permissions


def test_a_text_that_does_not_fit_its_length_byte_is_not_written() -> None:
    with pytest.raises(ValueError, match="bytes"):
        w.text8("x" * 256)


@pytest.mark.parametrize(
    "permissions",
    [
        Permissions(
            GlobalPermissions(), {number: StreamPermissions() for number in range((PERMISSIONS_SIZE_MAX - 20) // 12)}
        ),
        Permissions(
            GlobalPermissions(),
            {
                7: StreamPermissions(
                    topics={number: TopicPermissions() for number in range((PERMISSIONS_SIZE_MAX - 40) // 9)}
                )
            },
        ),
    ],
)
def test_permissions_may_be_long(permissions: Permissions) -> None:
    data = w.optional_permissions_of_request(permissions)
    assert Reader(memoryview(data)).optional_permissions() == permissions


def test_permissions_without_end_are_refused_before_they_fill_the_memory() -> None:
    longer = b"\1" + bytes(4) + (b"\0" * 10) + b"\1" + (bytes(10) + b"\0\1") * PERMISSIONS_SIZE_MAX
    reader = Reader(memoryview(longer))
    with pytest.raises(Malformed) as refusal:
        reader.optional_permissions()
    assert refusal.value.code is ErrorCode.INVALID_FORMAT
    assert reader.position < PERMISSIONS_SIZE_MAX + 100
