"""The rules of a wire batch once more, slowly and with nothing of Courser in it: what a strict client would check."""

from dataclasses import dataclass

import xxhash


@dataclass(frozen=True)
class WireMessage:
    """One message as a client sees it."""

    offset: int
    timestamp: int
    origin_timestamp: int
    message_id: int
    payload: bytes
    user_headers: bytes


def number(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "little")


def wire_batches(data: bytes) -> list[bytes]:
    """Batches behind one another, told apart by their length fields."""
    batches = []
    while data:
        length = number(data, 32, 8)
        assert 256 < length <= len(data), f"a length of {length} in {len(data)} bytes"
        batches.append(data[:length])
        data = data[length:]
    return batches


def check_wire_batch(data: bytes) -> list[WireMessage]:
    """Every message of one batch; an assertion fails if a single rule is broken."""
    assert number(data, 32, 8) == len(data), "batch_length"
    assert data[52:256] == bytes(204), "reserved bytes of the batch header"
    count = number(data, 48, 4)
    base_offset, base_timestamp, origin_timestamp = (number(data, position, 8) for position in (8, 16, 24))
    messages = []
    checksums = b""
    position = 256
    for _ in range(count):
        assert position + 48 <= len(data), "a frame header beyond the end"
        headers_length, payload_length = number(data, position + 32, 4), number(data, position + 36, 4)
        end = position + 48 + payload_length + headers_length
        assert end <= len(data), "a frame beyond the end"
        assert number(data, position, 8) == xxhash.xxh3_64_intdigest(data[position + 8 : end]), "frame checksum"
        assert number(data, position + 40, 8) == 0, "reserved bytes of a frame header"
        checksums += data[position : position + 8]
        payload_end = position + 48 + payload_length
        messages.append(
            WireMessage(
                offset=base_offset + number(data, position + 24, 4),
                timestamp=base_timestamp,
                origin_timestamp=origin_timestamp + number(data, position + 28, 4),
                message_id=number(data, position + 8, 16),
                payload=data[position + 48 : payload_end],
                user_headers=data[payload_end:end],
            )
        )
        position = end
    assert position == len(data), "bytes behind the last frame"
    offsets = [message.offset for message in messages]
    assert offsets == list(range(offsets[0], offsets[0] + count)), "offsets go up by one"
    assert number(data, 40, 8) == xxhash.xxh3_64_intdigest(data[:40] + data[48:52] + checksums), "batch checksum"
    return messages


def read_wire(data: bytes) -> list[WireMessage]:
    """Every message of batches behind one another."""
    return [message for batch in wire_batches(data) for message in check_wire_batch(batch)]
