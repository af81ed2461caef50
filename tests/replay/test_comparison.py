"""What counts as a difference: every byte, but for what varies from run to run and numbers that servers give out."""

import struct

import pytest

from tests.replay.bookkeeping import Books
from tests.replay.captures import Exchange, Wire, exchanges
from tests.replay.comparison import compare, translate
from tests.replay.connections import parse_vsr
from tests.replay.fields import Field, Kind, Record
from tests.replay.replies import parse_reply
from tests.replay.requests import Target, parse_request

MASKED = {Kind.VARIES, Kind.TIME, Kind.TOKEN, Kind.NEW_ID, Kind.SEEN_ID, Kind.MESSAGE_ID}
"""Kinds of which the first sight may be anything."""

STREAM, TOPIC, GROUP = ("stream", 3), ("topic", 3, 0), ("group", 3, 0, 1)
NAMED_TOPIC = b"\x02\x01s\x02\x01t"


def representative_replies() -> list[Exchange]:
    """Of each command the longest recorded reply that is not very long."""
    longest: dict[tuple[Wire, str], Exchange] = {}
    for exchange in (*exchanges(Wire.CLASSIC), *exchanges(Wire.VSR)):
        key = (exchange.wire, exchange.command)
        size = len(exchange.reply.data)
        if exchange.channel != "ok" or exchange.reply.is_cut or size > 1500 or exchange.command == "GetSnapshot":
            continue
        if key not in longest or size > len(longest[key].reply.data):
            longest[key] = exchange
    return [exchange for exchange in longest.values() if body_of(exchange)]


def body_of(exchange: Exchange) -> bytes:
    return exchange.reply.data if exchange.wire is Wire.CLASSIC else parse_vsr(exchange.reply.data).body


def known_books() -> Books:
    """Stream 3 (s) is 12 here, its topic 0 (t) is 5, the group 1 (g) in it 8."""
    books = Books()
    for key, ours, name in ((STREAM, 12, b"s"), (TOPIC, 5, b"t"), (GROUP, 8, b"g")):
        books.bind(key, ours)
        books.rename(str(key[0]), key[1:-1], key[-1], name)
    books.set_partition_count((3, 0), 2)
    return books


def differing_fields(recorded: Record, ours: Record, books: Books | None = None) -> list[str]:
    return [difference.field for difference in compare(Wire.CLASSIC, recorded, ours, books or Books())]


@pytest.mark.parametrize(
    "exchange", representative_replies(), ids=lambda exchange: f"{exchange.wire.value}-{exchange.command}"
)
def test_every_byte_of_a_reply_counts_unless_it_varies(exchange: Exchange) -> None:
    body = body_of(exchange)
    recorded = parse_reply(exchange.wire, exchange.command, Target(), body)
    assert compare(exchange.wire, recorded, recorded, Books()) == []
    position = 0
    for field in recorded.fields():
        for at in range(position, position + len(field.data)):
            changed = body[:at] + bytes([body[at] ^ 0x01]) + body[at + 1 :]
            ours = parse_reply(exchange.wire, exchange.command, Target(), changed)
            is_different = bool(compare(exchange.wire, recorded, ours, Books()))
            assert is_different or field.kind in MASKED, f"byte {at} of {exchange.title}"
        position += len(field.data)


def test_a_reply_that_is_longer_or_shorter_differs() -> None:
    exchange = next(one for one in exchanges(Wire.CLASSIC) if one.name == "get group with one member")
    recorded = parse_reply(Wire.CLASSIC, exchange.command, Target(), exchange.reply.data)
    for data in (exchange.reply.data + b"\0", exchange.reply.data[:-1]):
        assert differing_fields(recorded, parse_reply(Wire.CLASSIC, exchange.command, Target(), data))


# --- numbers that servers give out ---


def test_numbers_in_requests_are_translated() -> None:
    request = b"\x02\x01\x04\x01\0\0\0" + b"\x01\x04\x03\0\0\0" + b"\x01\x04\0\0\0\0" + b"\x01\0\0\0\0"
    record, target = parse_request(Wire.CLASSIC, "GetConsumerOffset", request, known_books())
    assert (target.stream, target.topic, target.group) == (3, 0, 1)
    ours = b"\x02\x01\x04\x08\0\0\0" + b"\x01\x04\x0c\0\0\0" + b"\x01\x04\x05\0\0\0" + b"\x01\0\0\0\0"
    assert translate(record, known_books()) == ours


def test_a_number_below_a_named_stream_belongs_to_that_stream() -> None:
    record, _ = parse_request(Wire.CLASSIC, "GetTopic", b"\x02\x01s\x01\x04\0\0\0\0", known_books())
    assert translate(record, known_books()) == b"\x02\x01s\x01\x04\x05\0\0\0"


def test_numbers_of_single_consumers_are_the_clients_own() -> None:
    request = b"\x01\x01\x04\x01\0\0\0" + NAMED_TOPIC + b"\x01\0\0\0\0"
    record, _ = parse_request(Wire.CLASSIC, "GetConsumerOffset", request, known_books())
    assert translate(record, known_books()) == request


def test_a_malformed_request_is_sent_as_it_is() -> None:
    record, _ = parse_request(Wire.CLASSIC, "GetTopic", b"\x01\x04\x03\0\0\0\x01\x04\0", known_books())
    assert translate(record, known_books()) == b"\x01\x04\x0c\0\0\0\x01\x04\0"


def test_an_id_in_a_reply_has_to_be_ours() -> None:
    def reply(number: int) -> Record:
        return Record(id=Field(struct.pack("<I", number), Kind.ID, ("stream", number)))

    assert differing_fields(reply(3), reply(12), known_books()) == []
    assert differing_fields(reply(3), reply(3), known_books()) == ["id"]
    assert differing_fields(reply(7), reply(7), known_books()) == []


def test_a_new_id_is_remembered_and_must_never_have_been_used() -> None:
    def reply(number: int) -> Record:
        return Record(id=Field(struct.pack("<I", number), Kind.NEW_ID, ("stream", number)))

    books = known_books()
    books.remove(STREAM)
    assert differing_fields(reply(3), reply(12), books) == ["id"]
    assert differing_fields(reply(3), reply(13), books) == []
    assert books.ours(STREAM) == 13
    assert differing_fields(reply(3), reply(12), books) == ["id"]


def test_a_reply_that_is_sent_again_has_the_same_id_again() -> None:
    reply = Record(id=Field(struct.pack("<I", 3), Kind.NEW_ID, STREAM))
    again = Record(id=Field(struct.pack("<I", 12), Kind.NEW_ID, STREAM))
    assert differing_fields(reply, again, known_books()) == []


def test_a_number_that_is_used_again_has_no_past() -> None:
    books = known_books()
    books.bind(STREAM, 13)
    assert books.ours(TOPIC) is None
    assert books.number("group", (3, 0), b"g") is None


def test_the_first_sight_of_a_client_binds_it() -> None:
    def reply(number: int, key: int) -> Record:
        return Record(client=Field(struct.pack("<I", number), Kind.SEEN_ID, ("client", key)))

    books = Books()
    assert differing_fields(reply(500, 500), reply(7, 0), books) == []
    assert differing_fields(reply(500, 500), reply(7, 0), books) == []
    assert differing_fields(reply(500, 500), reply(8, 0), books) == ["client"]
    assert differing_fields(reply(501, 501), reply(7, 0), books) == ["client"]


# --- offsets ---


def test_offsets_go_on_after_a_purge() -> None:
    books = known_books()
    offsets = books.partition(3, 0, 0)
    offsets.sent(5, was_accepted=True, is_accepted=True)
    assert offsets.ours(4) == 4
    books.purge(3, 0)
    offsets.sent(2, was_accepted=True, is_accepted=True)
    assert [offsets.ours(offset) for offset in (0, 1, 2)] == [5, 6, 7]
    assert (offsets.recorded_current, offsets.our_current) == (1, 6)


def test_a_request_for_an_offset_asks_for_ours() -> None:
    books = known_books()
    offsets = books.partition(3, 0, 0)
    offsets.sent(5, was_accepted=True, is_accepted=True)
    books.purge(3, None)
    offsets.sent(1, was_accepted=True, is_accepted=True)
    store = b"\x01\x01\x04\0\0\0\0" + NAMED_TOPIC + b"\x01\0\0\0\0"
    record, _ = parse_request(Wire.CLASSIC, "StoreConsumerOffset", store + struct.pack("<Q", 0), books)
    assert translate(record, books) == store + struct.pack("<Q", 5)


def test_messages_that_are_refused_here_are_missing_and_the_others_still_compared() -> None:
    books = known_books()
    offsets = books.partition(3, 0, 0)
    for is_accepted in (True, False, True):
        offsets.sent(1, was_accepted=True, is_accepted=is_accepted)

    def reply(*rows: tuple[int, bytes]) -> Record:
        messages = [
            Record(offset=Field(struct.pack("<Q", offset), Kind.OFFSET, ("partition", 3, 0, 0)), payload=Field(payload))
            for offset, payload in rows
        ]
        return Record(messages=messages)

    recorded = reply((0, b"a"), (1, b"b"), (2, b"c"))
    assert differing_fields(recorded, reply((0, b"a"), (1, b"c")), books) == ["messages"]
    assert differing_fields(recorded, reply((0, b"a"), (1, b"b")), books) == ["messages", "payload"]
    assert differing_fields(recorded, reply((0, b"a")), books) == ["messages"]
    assert differing_fields(recorded, reply((1, b"c"), (0, b"a")), books) == ["messages", "messages"]


def test_a_partition_that_is_made_again_starts_at_the_beginning() -> None:
    books = known_books()
    books.partition(3, 0, 1).sent(4, was_accepted=True, is_accepted=True)
    books.set_partition_count((3, 0), 1)
    books.set_partition_count((3, 0), 2)
    assert books.partition(3, 0, 1).our_next == 0


# --- what varies ---


def test_a_poll_by_the_time_of_a_batch_asks_for_our_time_of_it() -> None:
    books = known_books()
    books.times[1_000] = 9_000
    assert [books.our_time(time) for time in (999, 1_000, 1_001, 5)] == [8_999, 9_000, 9_001, 5]


def test_a_time_that_our_server_cannot_have_stamped_differs() -> None:
    def reply(time: int) -> Record:
        return Record(created_at=Field(struct.pack("<Q", time), Kind.TIME))

    now = 1_800_000_000_000_000
    books = Books(lambda: now)
    assert differing_fields(reply(5), reply(now - 1_000_000), books) == []
    assert differing_fields(reply(5), reply(now + 1), books) == ["created_at"]
    assert differing_fields(reply(5), reply(0), books) == ["created_at"]


def test_ids_that_the_client_gave_come_back_and_others_stay_what_they_were() -> None:
    def reply(message_id: bytes) -> Record:
        return Record(id=Field(message_id, Kind.MESSAGE_ID))

    books = Books()
    books.sent_message_ids.add(b"a" * 16)
    assert differing_fields(reply(b"a" * 16), reply(b"b" * 16), books) == ["id"]
    assert differing_fields(reply(b"r" * 16), reply(b"s" * 16), books) == []
    assert differing_fields(reply(b"r" * 16), reply(b"t" * 16), books) == ["id"]
    assert differing_fields(reply(b"q" * 16), reply(bytes(16)), books) == ["id"]


def test_a_size_that_the_other_count_does_not_explain_is_called_so() -> None:
    def reply(size: int) -> Record:
        return Record(size=Field(struct.pack("<Q", size), Kind.SIZE), messages_count=Field(struct.pack("<Q", 3)))

    recorded = reply(3 * 64 + 30)
    assert differing_fields(recorded, reply(256 + 3 * 48 + 30)) == ["size"]
    assert differing_fields(recorded, reply(3 * 256 + 3 * 48 + 30)) == ["size"]
    assert differing_fields(recorded, reply(256 + 3 * 48 + 31)) == ["size, unexplained"]
    assert differing_fields(recorded, reply(4 * 256 + 3 * 48 + 30)) == ["size, unexplained"]


def test_lists_without_order_are_compared_without_order() -> None:
    def token(name: bytes) -> Record:
        return Record(name=Field(name))

    recorded = Record(tokens=[token(b"a"), token(b"b")])
    assert differing_fields(recorded, Record(tokens=[token(b"b"), token(b"a")])) == []
    assert differing_fields(recorded, Record(tokens=[token(b"b"), token(b"c")])) != []
    ordered = Record(members=[token(b"a"), token(b"b")])
    assert differing_fields(ordered, Record(members=[token(b"b"), token(b"a")])) != []


def test_lists_by_id_are_matched_by_our_ids() -> None:
    def reply(*rows: tuple[int, bytes]) -> Record:
        streams = [
            Record(id=Field(struct.pack("<I", number), Kind.ID, ("stream", number)), name=Field(name))
            for number, name in rows
        ]
        return Record(streams=streams)

    books = known_books()
    recorded = reply((3, b"s"), (4, b"x"))
    assert differing_fields(recorded, reply((4, b"x"), (12, b"s")), books) == []
    assert differing_fields(recorded, reply((12, b"s"), (4, b"x")), books) == ["streams"]
    assert differing_fields(recorded, reply((4, b"x")), books) == ["streams"]
    assert differing_fields(recorded, reply((4, b"y"), (5, b"z"), (12, b"s")), books) == ["streams", "name"]
    books.refuse(("stream", 4))
    assert differing_fields(recorded, reply((12, b"s")), books) == ["streams"]
