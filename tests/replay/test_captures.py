"""The recordings are read whole: every byte of every reply is understood, and requests that were cut are made again."""

import pytest

from tests.replay.bookkeeping import Books
from tests.replay.captures import Exchange, Wire, exchanges, parse_bytes, sections
from tests.replay.connections import parse_vsr
from tests.replay.replies import parse_reply
from tests.replay.requests import Target, parse_request

BOTH = pytest.mark.parametrize("wire", Wire, ids=lambda wire: wire.value)


def body_of(exchange: Exchange) -> bytes:
    return exchange.reply.data if exchange.wire is Wire.CLASSIC else parse_vsr(exchange.reply.data).body


def good_replies(wire: Wire) -> list[Exchange]:
    return [exchange for exchange in exchanges(wire) if exchange.channel == "ok" and not exchange.is_action]


def test_zeros_and_constants_are_written_short() -> None:
    assert parse_bytes("01{3}ff").data == b"\x01\0\0\0\xff"
    assert len(parse_bytes("{C}").data) == 16


def test_what_was_cut_is_known_to_be_cut() -> None:
    recorded = parse_bytes("0102030...(1000 bytes)")
    assert (recorded.data, recorded.is_cut, recorded.size) == (b"\x01\x02\x03", True, 1000)
    assert parse_bytes("504b...(ZIP data)").size is None


@BOTH
def test_all_sections_are_there(wire: Wire) -> None:
    assert len(exchanges(wire)) == {Wire.CLASSIC: 1068, Wire.VSR: 1086}[wire]
    assert len(sections(wire)) == {Wire.CLASSIC: 13, Wire.VSR: 18}[wire]


@BOTH
def test_every_reply_is_understood_to_its_last_byte(wire: Wire) -> None:
    for exchange in good_replies(wire):
        if exchange.reply.is_cut:
            continue
        record = parse_reply(wire, exchange.command, Target(), body_of(exchange))
        assert b"".join(field.data for field in record.fields()) == body_of(exchange), exchange.title
        assert not {"surplus", "body"} & set(record), exchange.title


@BOTH
def test_a_request_taken_apart_is_still_the_same_request(wire: Wire) -> None:
    header_size = 8 if wire is Wire.CLASSIC else 256
    for exchange in exchanges(wire):
        if exchange.recorded_request.is_cut:
            continue
        body = exchange.request[header_size:]
        record, _ = parse_request(wire, exchange.command, body, Books())
        assert b"".join(field.data for field in record.fields()) == body, exchange.title


@BOTH
def test_requests_that_were_cut_are_made_again_at_their_size(wire: Wire) -> None:
    cut = [exchange for exchange in exchanges(wire) if exchange.recorded_request.is_cut]
    assert len(cut) == {Wire.CLASSIC: 5, Wire.VSR: 11}[wire]
    for exchange in cut:
        assert len(exchange.request) == exchange.recorded_request.size, exchange.title
