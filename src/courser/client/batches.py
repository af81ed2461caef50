"""Results of polls: as whole batches for programs that move many messages, or as one object per message."""

from collections.abc import Iterator
from typing import Any

from courser.api.replies import Polled
from courser.client.batch_view import BatchView, batches_of
from courser.client.messages import Message
from courser.client.payload_encryption import Encryptor
from courser.records import layout

Fields = tuple[bytes, int, int, int, int, int, bytes]
"""The fields of ``Message``, in order."""

_unpack_header = layout.WIRE_HEADER.unpack_from
_unpack_frame = layout.FRAME_HEADER.unpack_from
_HEADER_SIZE = layout.BATCH_HEADER_SIZE
_FRAME_SIZE = layout.FRAME_HEADER_SIZE


def messages_of(polled: "Polled | PolledBatches", encryptor: Encryptor | None = None) -> list[Message]:
    """All messages of a reply, in order. Raises ``DecryptionFailed``."""
    return [Message(*fields) for fields in fields_of(polled, encryptor)]


def fields_of(polled: "Polled | PolledBatches", encryptor: Encryptor | None = None) -> Iterator[Fields]:
    """The fields of all messages. Raises ``DecryptionFailed``."""
    for piece in polled.pieces:
        yield from _fields_in(piece) if encryptor is None else _decrypted(_fields_in(piece), encryptor)


def _fields_in(records: memoryview) -> Iterator[Fields]:
    """The fields of the messages in consecutive batch records."""
    start, size = 0, len(records)
    while start < size:
        partition_id, base_offset, timestamp, origin, length, _, count = _unpack_header(records, start)
        position = start + _HEADER_SIZE
        for _ in range(count):
            _, message_id, offset_delta, time_delta, headers_length, payload_length, _ = _unpack_frame(
                records, position
            )
            payload_start = position + _FRAME_SIZE
            payload_end = payload_start + payload_length
            position = payload_end + headers_length
            yield (
                bytes(records[payload_start:payload_end]),
                base_offset + offset_delta,
                partition_id,
                timestamp,
                origin + time_delta,
                int.from_bytes(message_id, "little"),
                bytes(records[payload_end:position]) if headers_length else b"",
            )
        start += length


def _decrypted(rows: Iterator[Fields], encryptor: Encryptor) -> Iterator[Fields]:
    for payload, *others, headers in rows:
        yield (encryptor.decrypt(payload), *others, encryptor.decrypt_headers(headers))  # type: ignore[misc]


class PolledBatches:
    """The result of a bulk poll. Iterate over it for its batches.

    Example:
        polled = await client.poll_batches("shop/orders", partition_id=0)
        print(len(polled), polled.message_count, polled.next_offset, polled.current_offset, polled.size)
        for view in polled:
            print(view.base_offset, view.count)
    """

    def __init__(self, polled: Polled) -> None:
        self._polled = polled
        self.partition_id = polled.partition_id
        """The partition."""
        self.current_offset = polled.current_offset
        """The offset of the newest message of the partition."""
        self.message_count = polled.message_count
        """Messages in all batches."""
        self.size = polled.size
        """Bytes of all batches."""
        self._views: list[BatchView] | None = None

    @property
    def pieces(self) -> tuple[memoryview, ...]:
        """The bytes: whole batch records, one after another. Valid as long as a reference to them exists."""
        return self._polled.pieces

    @property
    def views(self) -> list[BatchView]:
        """The batches, each as columns."""
        # Not a cached_property: that of Python 3.11 takes a lock.
        if self._views is None:
            self._views = list(batches_of(self._polled))
        return self._views

    def __iter__(self) -> Iterator[BatchView]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.views)

    @property
    def next_offset(self) -> int | None:
        """The offset for the next poll; None if the result is empty."""
        views = self.views
        return views[-1].next_offset if views else None

    def messages(self) -> list[Message]:
        """The messages, one object each."""
        return messages_of(self)

    def to_arrow(self, *, headers: bool = False) -> Any:
        """A ``pyarrow.Table`` with a row per message. Needs ``pyarrow``: install ``courser[arrow]``.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
            OverflowError: an offset does not fit into a signed 64-bit integer.

        Example:
            polled = await client.poll_batches("shop/orders", partition_id=0)
            print(polled.to_arrow(headers=True).num_rows)
        """
        from courser.client.arrow import table_of  # noqa: PLC0415 - pyarrow is large, and not everybody has it

        return table_of(self.views, headers=headers)
