"""Which protocol a connection uses, found in its first bytes."""

import pytest

from courser.wire.codec import FrameRefused
from courser.wire.generation import Generation, generation_of
from tests.wire.vsr_captures import exchanges, frame

CLASSIC_PING = bytes.fromhex("04000000 01000000")


def test_a_classic_ping_byte_by_byte() -> None:
    found = [generation_of(memoryview(CLASSIC_PING)[:length]) for length in range(9)]
    assert found == [None] * 4 + [Generation.CLASSIC] * 5


def test_a_ping_of_sdk_0_9_byte_by_byte() -> None:
    ping = memoryview(frame(2, code=1))
    found = [generation_of(ping[:length]) for length in range(len(ping) + 1)]
    assert found == [None] * 8 + [Generation.VSR] * (len(ping) - 7)


def test_every_recorded_request_of_sdk_0_9() -> None:
    # Three of them fill the fields that the SDK leaves zero.
    odd = {"header checksum not zero"}
    for exchange in exchanges():
        expected = Generation.CLASSIC if exchange.name in odd else Generation.VSR
        assert generation_of(memoryview(exchange.request)) is expected, exchange.name


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("value", [1, 0x7F, 0xFF])
def test_any_length_is_classic(position: int, value: int) -> None:
    head = bytearray(8)
    head[position] = value
    assert generation_of(memoryview(head)[:4]) is Generation.CLASSIC


def test_a_classic_frame_of_length_0_is_known_by_its_code() -> None:
    head = memoryview(bytes.fromhex("00000000 0a000000"))
    assert [generation_of(head[:length]) for length in range(9)] == [None] * 5 + [Generation.CLASSIC] * 4


@pytest.mark.parametrize(
    ("greeting", "protocol"),
    [
        (b"\x16\x03\x01\x02", "TLS"),
        (b"\x16\x03\x03\x00\x01", "TLS"),
        (b"GET / HTTP/1.1", "HTTP"),
        (b"POST /streams", "HTTP"),
        (b"PRI * HTTP/2.0", "HTTP"),
    ],
)
def test_other_protocols_are_named(greeting: bytes, protocol: str) -> None:
    with pytest.raises(FrameRefused, match=f"uses {protocol}"):
        generation_of(memoryview(greeting))
