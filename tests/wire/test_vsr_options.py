"""Options of topics in SDK 0.9: which keys there are, what they take, how they are reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode
from courser.model.quantities import NEVER
from courser.model.topic_options import TOPIC_OPTIONS, TopicOption, TopicOptions
from courser.records.user_headers import HeaderKind as K
from courser.wire.reading import Malformed, Reader
from courser.wire.vsr import VsrCodec
from courser.wire.vsr_options import ENTRY_COUNT_MAX, read_options, read_topic_options, write_topic_options
from courser.wire.writing import identifier, text8
from tests.wire.vsr_captures import channel_of, frame, read

MIB, GIB = 2**20, 2**30
DAY = 86_400_000_000


def field(kind: int, data: bytes) -> bytes:
    return bytes((kind,)) + len(data).to_bytes(4, "little") + data


def entry(key: str, kind: int, data: bytes) -> bytes:
    return field(K.STRING, key.encode()) + field(kind, data)


def text(key: str, value: str) -> bytes:
    return entry(key, K.STRING, value.encode())


def u64(key: str, value: int) -> bytes:
    return entry(key, K.UINT64, value.to_bytes(8, "little"))


def options(block: bytes, *, is_update: bool = False) -> TopicOptions:
    return read_topic_options(Reader(memoryview(block)), is_update=is_update)


def code_of(block: bytes, *, is_update: bool = False) -> ErrorCode:
    with pytest.raises(Malformed) as refused:
        options(block, is_update=is_update)
    return refused.value.code


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"", TopicOptions()),
        (text("compression_algorithm", "none"), TopicOptions(compression=1)),
        (text("compression_algorithm", "gzip"), TopicOptions(compression=2)),
        (entry("compression_algorithm", K.UINT8, b"\x02"), TopicOptions(compression=2)),
        (u64("message_expiry", 60_000_000), TopicOptions(message_expiry=60_000_000)),
        (text("message_expiry", "7 days"), TopicOptions(message_expiry=7 * DAY)),
        (text("message_expiry", "none"), TopicOptions(message_expiry=NEVER)),
        (u64("message_expiry", NEVER), TopicOptions(message_expiry=NEVER)),
        (u64("message_expiry", 0), TopicOptions()),
        (text("message_expiry", "server_default"), TopicOptions()),
        (u64("max_topic_size", 2 * GIB), TopicOptions(max_topic_size=2 * GIB)),
        (text("max_topic_size", "2 GiB"), TopicOptions(max_topic_size=2 * GIB)),
        (text("max_topic_size", "unlimited"), TopicOptions(max_topic_size=NEVER)),
        (u64("max_topic_size", 0), TopicOptions()),
        (u64("segment_size", MIB), TopicOptions(segment_size=MIB)),
        (u64("segment_size", GIB), TopicOptions(segment_size=GIB)),
        (text("segment_size", "128 MiB"), TopicOptions(segment_size=128 * MIB)),
        (u64("segment_size", 0), TopicOptions()),
        (entry("enforce_fsync", K.BOOL, b"\x01"), TopicOptions(enforce_fsync=True)),
        (text("enforce_fsync", "false"), TopicOptions(enforce_fsync=False)),
        (entry("messages_required_to_save", K.UINT32, b"\x01\0\0\0"), TopicOptions(messages_required_to_save=1)),
        (text("messages_required_to_save", "16777216"), TopicOptions(messages_required_to_save=16_777_216)),
        (u64("size_of_messages_required_to_save", GIB), TopicOptions(size_of_messages_required_to_save=GIB)),
        (text("size_of_messages_required_to_save", "1 KB"), TopicOptions(size_of_messages_required_to_save=1000)),
        (u64("size_of_messages_required_to_save", 0), TopicOptions()),
        (entry("preallocate_segments", K.BOOL, b"\x00"), TopicOptions(preallocate_segments=False)),
        (text("durability", "persisted"), TopicOptions(durability="persisted")),
        (entry("keep_latest_by_key", K.BOOL, b"\x01"), TopicOptions(keep_latest_by_key=True)),
        (text("keep_latest_by_key", "false"), TopicOptions(keep_latest_by_key=False)),
        (text("consumer_offset_durability", "replicated"), TopicOptions(consumer_offset_durability="replicated")),
        (
            u64("segment_size", MIB) + text("enforce_fsync", "true"),
            TopicOptions(segment_size=MIB, enforce_fsync=True),
        ),
    ],
)
def test_what_can_be_set(block: bytes, expected: TopicOptions) -> None:
    assert options(block) == expected


@pytest.mark.parametrize(
    "block",
    [
        text("compression_algorithm", "lzma"),
        entry("compression_algorithm", K.UINT8, b"\x06"),
        entry("compression_algorithm", K.RAW, b"gzip"),
        entry("compression_algorithm", 16, b"gzip"),
        text("message_expiry", "never"),
        text("message_expiry", "5000000"),
        entry("message_expiry", K.UINT32, b"\x01\0\0\0"),
        entry("message_expiry", K.UINT64, b"\x01\0\0\0"),
        entry("message_expiry", K.STRING, b"\xff\xfe"),
        text("max_topic_size", "big"),
        u64("segment_size", MIB - 512),
        u64("segment_size", MIB + 1),
        u64("segment_size", GIB + 512),
        text("segment_size", "junk"),
        text("enforce_fsync", "yes"),
        entry("enforce_fsync", K.BOOL, b"\x02"),
        entry("enforce_fsync", K.UINT8, b"\x01"),
        entry("messages_required_to_save", K.UINT32, b"\0\0\0\0"),
        entry("messages_required_to_save", K.UINT32, b"\x01\0\0\x01"),
        u64("messages_required_to_save", 5),
        text("messages_required_to_save", "-1"),
        text("messages_required_to_save", "9" * 200),
        text("messages_required_to_save", "\u0665"),
        u64("size_of_messages_required_to_save", GIB + 1),
        text("durability", "synced"),
        entry("durability", K.BOOL, b"\x01"),
    ],
)
def test_values_that_a_key_does_not_take(block: bytes) -> None:
    assert code_of(block) is ErrorCode.INVALID_OPTION_VALUE


@pytest.mark.parametrize(
    "block",
    [
        text("foo", "bar"),
        text("ENFORCE_FSYNC", "true"),
        text("replication_factor", "1"),
        text("segment_size", "junk") + text("foo", "bar"),
    ],
)
def test_unknown_keys_are_found_before_bad_values(block: bytes) -> None:
    assert code_of(block) is ErrorCode.UNSUPPORTED_OPTION_KEY


@pytest.mark.parametrize(
    "block",
    [
        b"\x02",
        field(K.STRING, b"durability"),
        text("durability", "persisted")[:-1],
        text("enforce_fsync", "true") * 2,
        field(K.RAW, b"enforce_fsync") + field(K.BOOL, b"\x01"),
        field(K.STRING, b"\xff\xfe") + field(K.BOOL, b"\x01"),
        entry("compression_algorithm", K.STRING, b""),
        entry("compression_algorithm", 0, b"gzip"),
        text("compression_algorithm", "x" * 256),
        field(K.STRING, b"k" * 256) + field(K.BOOL, b"\x01"),
        b"".join(text(str(number), "x") for number in range(ENTRY_COUNT_MAX + 1)),
        b"".join(text(str(number), "x" * 250) for number in range(400)),
    ],
)
def test_blocks_that_are_none(block: bytes) -> None:
    assert code_of(block) is ErrorCode.INVALID_COMMAND


UPDATABLE = {
    "compression_algorithm": ("gzip", TopicOptions(compression=2)),
    "message_expiry": ("1 m", TopicOptions(message_expiry=60_000_000)),
    "max_topic_size": ("1 GiB", TopicOptions(max_topic_size=GIB)),
    "durability": ("persisted", TopicOptions(durability="persisted")),
    "consumer_offset_durability": ("persisted", TopicOptions(consumer_offset_durability="persisted")),
}
FIXED = ("segment_size", "enforce_fsync", "messages_required_to_save", "size_of_messages_required_to_save")


def test_what_can_be_changed_later() -> None:
    for key, (value, expected) in UPDATABLE.items():
        assert options(text(key, value), is_update=True) == expected
    for key in (*FIXED, "preallocate_segments"):
        assert code_of(text(key, "true"), is_update=True) is ErrorCode.UNSUPPORTED_OPTION_KEY


def test_an_update_is_a_patch() -> None:
    body = identifier("s") + identifier("t") + text8("t") + text("durability", "persisted")
    incoming = VsrCodec().decode(memoryview(frame(133, body)), is_logged_in=True)
    assert incoming.command == c.UpdateTopic("s", "t", "t", TopicOptions(durability="persisted"), is_patch=True)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (128, text8("s")),
        (129, identifier("s") + text8("s")),
        (141, text8("bob") + text8("secret") + b"\x01\x00"),
        (142, identifier("bob") + b"\x00\x00"),
    ],
)
def test_streams_and_users_have_no_options(operation: int, body: bytes) -> None:
    for block, expected in (
        (b"", None),
        (text("durability", "persisted"), ErrorCode.UNSUPPORTED_OPTION_KEY),
        (b"\x00", ErrorCode.INVALID_COMMAND),
        (text("a", "b")[:-1], ErrorCode.INVALID_COMMAND),
    ):
        incoming = VsrCodec().decode(memoryview(frame(operation, body + block)), is_logged_in=True)
        if expected is None:
            assert incoming.command is not None
        else:
            assert incoming.answer is not None
            assert channel_of(b"".join(incoming.answer)) == ("status", expected)


# --- reports ------------------------------------------------------------------------------------------

USUAL = TopicOptions(
    message_expiry=NEVER,
    max_topic_size=NEVER,
    compression=1,
    replication_factor=1,
    segment_size=GIB,
    enforce_fsync=False,
    messages_required_to_save=1024,
    size_of_messages_required_to_save=MIB,
    preallocate_segments=False,
    durability="replicated",
    consumer_offset_durability="replicated",
    keep_latest_by_key=False,
)
KEYS = [
    "compression_algorithm",
    "consumer_offset_durability",
    "durability",
    "enforce_fsync",
    "max_topic_size",
    "message_expiry",
    "messages_required_to_save",
    "preallocate_segments",
    "segment_size",
    "size_of_messages_required_to_save",
]


def blocks(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = int.from_bytes(data[:4], "little")
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


def keys(block: bytes) -> list[str]:
    return list(read_options(Reader(memoryview(block))))


def test_what_was_set_and_what_holds_are_reported_sorted() -> None:
    explicit = TopicOptions(segment_size=128 * MIB, durability="persisted", compression=2)
    first, second = blocks(write_topic_options(explicit, USUAL))
    assert keys(first) == ["compression_algorithm", "durability", "segment_size"]
    assert sorted(keys(first) + keys(second)) == KEYS
    assert keys(second) == sorted(keys(second))
    assert first == text("compression_algorithm", "gzip") + text("durability", "persisted") + u64(
        "segment_size", 128 * MIB
    )


def values_of(option: TopicOption) -> st.SearchStrategy[object]:
    if option.kind.words:
        return st.sampled_from([*option.kind.words.values()])
    if option.kind.name == "flag":
        return st.booleans()
    return st.integers(-(-option.low // option.step), option.high // option.step).map(lambda count: count * option.step)


option_values = {option.field: values_of(option) for option in TOPIC_OPTIONS.values()}


@given(st.fixed_dictionaries({}, optional=option_values).map(lambda values: TopicOptions(**values)))  # type: ignore[arg-type]
def test_what_is_reported_could_be_set(explicit: TopicOptions) -> None:
    first, second = blocks(write_topic_options(explicit, USUAL))
    assert options(first) == explicit
    assert sorted(keys(first) + keys(second)) == sorted({*KEYS, *keys(first)})


@given(st.binary(max_size=300))
def test_any_block_is_options_or_malformed(block: bytes) -> None:
    for is_update in (False, True):
        try:
            assert isinstance(options(block, is_update=is_update), TopicOptions)
        except Malformed:
            continue


def test_descriptions() -> None:
    codec = VsrCodec()
    incoming = codec.decode(memoryview(read(13, b"\x01")), is_logged_in=True)
    assert incoming.command == c.DescribeOptions(1)
    rows = [
        r.OptionDescription("durability", "replicated", "what an acknowledgement promises"),
        r.OptionDescription("messages_required_to_save", 1024, "x"),
        r.OptionDescription("segment_size", GIB, "y"),
        r.OptionDescription("enforce_fsync", False, "z"),
    ]
    body = b"".join(codec.encode_reply(incoming, r.OptionList(rows)))[256:]
    assert body == b"".join(
        (
            b"\x04\0\0\0",
            text8("durability") + field(2, b"replicated") + field(0, b"what an acknowledgement promises")[1:],
            text8("messages_required_to_save") + field(11, b"\0\x04\0\0") + field(0, b"x")[1:],
            text8("segment_size") + field(12, GIB.to_bytes(8, "little")) + field(0, b"y")[1:],
            text8("enforce_fsync") + field(3, b"\0") + field(0, b"z")[1:],
        )
    )
