"""The dead-letter topic: messages that a handler could not handle, with the reason in their headers."""

from contextlib import suppress

from courser.client.administration import Administration
from courser.client.messages import Headers, Message, write_headers
from courser.client.producer import Producer
from courser.errors import AlreadyExists, InvalidBatch, NotFound
from courser.model.identifiers import Identifier
from courser.records.message_keys import KEY_HEADER
from courser.records.user_headers import FIELD_SIZE_MAX, HeaderValue, UserHeader

PREFIX = "courser.dead."
"""The names of the headers that are added begin with this."""
DELIVERY_TIMEOUT = 24 * 3600.0
"""Seconds. While the server is away, dead letters wait for it, as reading does."""


class DeadLetters:
    """Sends messages to a dead-letter topic. They keep payload, key and headers."""

    def __init__(
        self,
        client: Administration,
        place: tuple[Identifier, Identifier],
        producer: Producer,
        *,
        origin: str,
        group: str,
    ) -> None:
        """``origin`` names the topic that is processed, ``group`` the group that processes it."""
        self._client = client
        self._place = place
        self._producer = producer
        self._origin = origin
        self._group = group

    async def open(self) -> None:
        """Create the topic if it does not exist. Raises ``NotFound`` if its stream does not exist."""
        stream, topic = self._place
        try:
            await self._client.get_topic(stream, topic)
        except NotFound:
            if not isinstance(topic, str):
                raise
            with suppress(AlreadyExists):
                await self._client.create_topic(stream, topic)
        await self._producer.open()

    async def close(self) -> None:
        """Close the producer. Nothing is left to send: each dead letter was waited for."""
        self._producer.abandon()

    async def send(self, message: Message, error: Exception, attempts: int) -> None:
        """Send one message, and wait until it is stored."""
        reason: dict[str, HeaderValue | UserHeader] = {
            f"{PREFIX}topic": self._origin,
            f"{PREFIX}partition": message.partition_id,
            f"{PREFIX}offset": message.offset,
            f"{PREFIX}group": self._group,
            f"{PREFIX}attempts": attempts,
            f"{PREFIX}error": _shortened(f"{type(error).__name__}: {error}"),
        }
        headers = _headers_of(message) | reason
        await self._producer.send_and_wait(message.payload, key=message.key, headers=_fitting(message, headers, reason))


def _headers_of(message: Message) -> dict[str, HeaderValue | UserHeader]:
    """The headers of a message, without the key and without those of an earlier failure."""
    ours = PREFIX.encode()
    entries = [
        entry for entry in message.header_entries() if entry.key != KEY_HEADER and not entry.key.startswith(ours)
    ]
    return {f"{number}": entry for number, entry in enumerate(entries)}


def _fitting(message: Message, headers: Headers, reason: Headers) -> Headers:
    """All headers; only the reason if they are too large together."""
    try:
        write_headers(headers, message.key)
    except InvalidBatch:
        return reason
    return headers


def _shortened(text: str) -> str:
    """The text as far as it fits into a header."""
    return text.encode(errors="replace")[:FIELD_SIZE_MAX].decode(errors="ignore")
