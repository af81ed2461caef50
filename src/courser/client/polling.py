"""Replies of polls into messages: one object each, for programs that want to look at every message."""

from collections.abc import Callable, Iterator

from courser.api.replies import Polled
from courser.client.messages import Message
from courser.records import layout

Decrypt = Callable[[bytes], bytes]

_unpack_header = layout.WIRE_HEADER.unpack_from
_unpack_frame = layout.FRAME_HEADER.unpack_from
_HEADER_SIZE = layout.BATCH_HEADER_SIZE
_FRAME_SIZE = layout.FRAME_HEADER_SIZE


def messages_of(polled: Polled, decrypt: Decrypt | None = None) -> list[Message]:
    """All messages of a reply, in order."""
    return [message for piece in polled.pieces for message in _messages_in(piece, decrypt)]


def _messages_in(records: memoryview, decrypt: Decrypt | None) -> Iterator[Message]:
    """The messages of batch records behind one another."""
    start, size = 0, len(records)
    while start < size:
        partition_id, base_offset, timestamp, origin, length, _, count = _unpack_header(records, start)
        position = start + _HEADER_SIZE
        for _ in range(count):
            _, message_id, offset_delta, time_delta, headers_length, payload_length, _ = _unpack_frame(
                records, position
            )
            position += _FRAME_SIZE
            payload = bytes(records[position : position + payload_length])
            position += payload_length
            headers = bytes(records[position : position + headers_length]) if headers_length else b""
            position += headers_length
            if decrypt is not None:
                payload = decrypt(payload)
                headers = decrypt(headers) if headers else headers
            yield Message(
                payload,
                base_offset + offset_delta,
                partition_id,
                timestamp,
                origin + time_delta,
                int.from_bytes(message_id, "little"),
                headers,
            )
        start += length
