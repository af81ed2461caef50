"""What a real server of release 0.8 was asked and said: the codec understands the one and writes the other."""

from itertools import groupby

import pytest

from courser.api import replies as r
from courser.api.commands import COMMANDS as TABLE
from courser.api.commands import ROW_BY_CODE, Command, Ping, PollMessages
from courser.api.table import SDK_0_10
from courser.records.classic import Dialect
from courser.wire.classic import ClassicCodec
from courser.wire.codec import FrameRefused, Incoming
from tests.wire.classic_captures import Exchange, exchanges
from tests.wire.classic_client import parse_polled, parse_reply, polled

SECTIONS = {name: tuple(members) for name, members in groupby(exchanges(), key=lambda exchange: exchange.section)}

DECODING_STATUSES = {3, 4, 6}
"""What only a request that cannot be decoded gets."""

DELIBERATE = {
    "send zero messages, count 1 no index": 3,  # The original waits for bytes beyond the frame.
    "send empty frame payload": 3,
    "send two byte payload": 3,
    "send reserved not 0": 4101,  # The original stores it, and then its clients refuse the message.
}
"""Statuses that are not the recorded ones."""

DAMAGED_POLLS = {
    "poll what was accepted",  # Its reserved bytes are not zero.
    "poll after purge of unsaved, new message and flush",  # It counts messages that are not in it.
}
"""Defects of the original."""


def ids(count: int) -> bytes:
    return bytes(range(1, 17)) * count


def status_of(answer: object) -> int:
    assert isinstance(answer, bytes)
    assert answer[4:] == bytes(4), "an error has no payload"
    return int.from_bytes(answer[:4], "little")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_request_becomes_a_command_or_gets_the_recorded_status(section: str) -> None:
    codecs: dict[str, ClassicCodec] = {}
    for exchange in SECTIONS[section]:
        if exchange.is_close:
            codecs.pop(exchange.connection, None)
            continue
        codec = codecs.setdefault(exchange.connection, ClassicCodec(None, ids))
        outcome = handle(codec, exchange.request)
        assert codec.dialect is Dialect.SDK_0_8, exchange
        if isinstance(outcome, int):
            assert outcome == DELIBERATE.get(exchange.name, exchange.status), exchange
        elif exchange.status in DECODING_STATUSES:
            # The original had lost its place in the stream: it took the rest of an unread send for requests.
            assert (outcome, exchange.is_in_step) == (Ping(), False), exchange


def handle(codec: ClassicCodec, request: bytes) -> Command | int:
    """The command, or the status that the codec answers with."""
    try:
        assert codec.frame_size(memoryview(request)) == len(request)
    except FrameRefused as refusal:
        return status_of(refusal.answer)
    incoming = codec.decode(memoryview(request), is_logged_in=True)
    if incoming.command is not None:
        assert incoming.answer is None
        return incoming.command
    assert incoming.answer is not None
    assert incoming.reason
    assert not incoming.closes
    return status_of(incoming.answer[0])


WITH_REPLY = [exchange for exchange in exchanges() if exchange.status == 0 and exchange.reply]
POLLS = [exchange for exchange in WITH_REPLY if ROW_BY_CODE[exchange.code].reply is r.Polled]
OTHERS = [exchange for exchange in WITH_REPLY if exchange not in POLLS]


def test_replies_of_every_kind_were_recorded() -> None:
    seen = {ROW_BY_CODE[exchange.code].reply for exchange in WITH_REPLY}
    # The recorded server had neither Courser's own commands nor those of SDK 0.9.
    later = {row.reply for row in TABLE if row.is_private} | {r.OptionList, r.Assignment}
    later |= {row.reply for row in TABLE if row.since >= SDK_0_10}
    assert seen | later | {r.Sent, None} == {entry.reply for entry in TABLE}


@pytest.mark.parametrize("exchange", OTHERS, ids=str)
def test_a_recorded_reply_is_written_byte_for_byte(exchange: Exchange) -> None:
    codec = ClassicCodec(Dialect.SDK_0_8, ids)
    incoming = codec.decode(memoryview(exchange.request), is_logged_in=True)
    reply = parse_reply(exchange.code, exchange.reply)
    assert written(codec, incoming, reply) == exchange.reply


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("exchange", [exchange for exchange in POLLS if exchange.name not in DAMAGED_POLLS], ids=str)
def test_a_recorded_poll_is_written_byte_for_byte_checksums_included(exchange: Exchange, is_merged: bool) -> None:
    codec = ClassicCodec(Dialect.SDK_0_8, ids)
    incoming = codec.decode(memoryview(exchange.request), is_logged_in=True)
    assert type(incoming.command) is PollMessages
    reply = polled(parse_polled(exchange.reply), is_merged=is_merged)
    assert written(codec, incoming, reply) == exchange.reply


def written(codec: ClassicCodec, incoming: Incoming, reply: r.Reply | None) -> bytes:
    """The payload of a reply, without its status and length."""
    data = b"".join(codec.encode_reply(incoming, reply))
    assert data[:8] == bytes(4) + (len(data) - 8).to_bytes(4, "little")
    return data[8:]
