"""``courser send``: send messages from the command line or from stdin to a topic."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass

import click

from courser.api.replies import Sent
from courser.cli.connecting import ask_server
from courser.cli.failures import ExitCode, Failure
from courser.cli.naming import TopicPath, Word, topic_argument
from courser.cli.payloads import INPUT_KINDS, headers_of, payload_of
from courser.cli.records import Field, RecordWriter
from courser.cli.server_options import server_command
from courser.cli.terminal import flush, say
from courser.client.client import Client
from courser.client.messages import AnyPartitioning, Headers, Partitioning, SendMessage
from courser.errors import AlreadyExists, NotFound

_BATCH_COUNT = 1000
_BATCH_SIZE = 1024 * 1024
"""Maximum messages and bytes of one request; a single message may be larger."""
_FIELDS = (
    Field("stream"),
    Field("topic"),
    Field("partition_id"),
    Field("base_offset"),
    Field("message_count"),
)


@dataclass(slots=True)
class _Sending:
    """The target, the options, and the progress."""

    place: TopicPath
    partitioning: AnyPartitioning
    headers: Headers
    key: str | None
    payload_kind: str
    partition_count: int | None
    """Partitions of a topic to create if it is missing; None does not create it."""
    writer: RecordWriter | None
    count: int = 0
    first: Sent | None = None
    """The acknowledgement of the first batch."""
    is_in_a_row: bool = True
    """Whether all messages have consecutive offsets in one partition."""

    @property
    def is_created(self) -> bool:
        """Whether to create a missing topic."""
        return self.partition_count is not None

    def note(self, sent: Sent, count: int) -> None:
        """Count an acknowledged batch."""
        first = self.first = self.first or sent
        expected = (first.partition_id, first.base_offset + self.count)
        self.is_in_a_row = self.is_in_a_row and (sent.partition_id, sent.base_offset) == expected
        self.count += count


@server_command(
    "send",
    "courser send demo/orders 'hello' 'world'",
    """echo '{"n":1}' | courser send demo/orders --create""",
    "courser send demo/orders --key customer-7 --header source=shop 'paid'",
    "tail -f app.log | courser send logs/app",
)
@topic_argument(Word("messages", takes_all=True, is_required=False))
@click.option("--create", "is_created", is_flag=True, help="Create the stream and the topic if they do not exist.")
@click.option(
    "--partitions",
    "partition_count",
    type=click.IntRange(1, 1000),
    metavar="COUNT",
    default=1,
    show_default=True,
    help="The number of partitions that --create creates.",
)
@click.option(
    "-k", "--key", metavar="TEXT", help="Messages with the same key go to the same partition. The key is stored."
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Send to this partition. Default: use all partitions in turn.",
)
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="KEY=VALUE",
    help="A header for each message; also key:kind:value. May be repeated.",
)
@click.option(
    "--as",
    "payload_kind",
    type=click.Choice(INPUT_KINDS),
    default="text",
    show_default=True,
    help="The format of the input: text, JSON (which is validated), or hexadecimal digits.",
)
def send_command(
    *,
    place: TopicPath,
    messages: tuple[str, ...],
    is_created: bool,
    partition_count: int,
    key: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    payload_kind: str,
    output: str,
) -> None:
    """Send messages from the command line, or each line of stdin. Returns when they are acknowledged."""
    if key is not None and partition is not None:
        raise click.UsageError("--key and --partition cannot be combined")
    sending = _Sending(
        TopicPath(place.stream, place.topic, partition),
        Partitioning.key(key) if key is not None else partition,
        headers_of(headers),
        key,
        payload_kind,
        partition_count if is_created else None,
        None if output == "table" else RecordWriter(_FIELDS, output),
    )
    given = [word.encode(errors="surrogateescape") for word in messages]
    if not given and sys.stdin.isatty():
        say("type one message per line; press Ctrl-D to finish")
    try:
        ask_server(lambda client: _send_all(client, sending, given), sending.place)
    except Failure as failure:
        raise _with_create_hint(failure, sending) from failure
    finally:
        if sending.writer is not None:
            sending.writer.close()
        elif sending.count:
            say(_sentence(sending))


async def _send_all(client: Client, sending: _Sending, given: list[bytes]) -> None:
    if given:
        await _send(client, sending, given)
        return
    async for lines in _stdin():
        for batch in _batches(lines):
            await _send(client, sending, batch)
    if not sending.count:
        say("nothing to send: stdin was empty")


async def _stdin() -> AsyncIterator[list[bytes]]:
    try:
        async for lines in lines_of(sys.stdin.fileno()):
            yield lines
    except OSError as error:
        raise Failure(f"cannot read stdin: {error.strerror or error}", "pass messages on the command line") from error


def _batches(lines: list[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == _BATCH_COUNT or size + len(line) > _BATCH_SIZE):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line)
    if batch:
        yield batch


async def _send(client: Client, sending: _Sending, payloads: list[bytes]) -> None:
    first = sending.count + 1
    messages = [
        SendMessage(
            payload_of(payload, sending.payload_kind, number),
            headers=sending.headers or None,
            key=sending.key,
        )
        for number, payload in enumerate(payloads, first)
    ]
    sent = await _send_or_create(client, sending, messages)
    sending.note(sent, len(messages))
    if sending.writer is not None:
        sending.writer.put(
            {
                "stream": sending.place.stream,
                "topic": sending.place.topic,
                "partition_id": sent.partition_id,
                "base_offset": sent.base_offset,
                "message_count": len(messages),
            }
        )
        flush()


async def _send_or_create(client: Client, sending: _Sending, messages: list[SendMessage]) -> Sent:
    names = sending.place.names
    try:
        return await client.send_messages(*names, sending.partitioning, messages)
    except NotFound:
        if not sending.is_created or sending.count:
            raise
    await _create(client, sending)
    return await client.send_messages(*names, sending.partitioning, messages)


async def _create(client: Client, sending: _Sending) -> None:
    """Create the stream and the topic if they are missing. Another client may do so at the same time."""
    stream, topic = sending.place.names
    if isinstance(stream, str):
        with suppress(AlreadyExists):
            await client.create_stream(stream)
            say(f'created stream "{stream}"')
    if isinstance(topic, str):
        with suppress(AlreadyExists):
            await client.create_topic(stream, topic, sending.partition_count or 1)
            say(f'created topic "{stream}/{topic}"')


def _with_create_hint(failure: Failure, sending: _Sending) -> Failure:
    if failure.code is not ExitCode.NOT_FOUND or sending.is_created or sending.place.partition_id is not None:
        return failure
    if failure.hint.startswith("courser partition create"):
        return failure
    meant = failure.hint.partition("?")
    advice = "pass --create to create it" if not meant[1] else "or pass --create to create a new one"
    return Failure(failure.message, f"{meant[0]}? {advice}" if meant[1] else advice, ExitCode.NOT_FOUND)


def _sentence(sending: _Sending) -> str:
    count = f"{sending.count} message" + ("s" if sending.count != 1 else "")
    text = f"sent {count} to {sending.place}"
    first = sending.first
    if first is None or not sending.is_in_a_row:
        return text
    last = first.base_offset + sending.count - 1
    offsets = f"offset {last}" if sending.count == 1 else f"offsets {first.base_offset} to {last}"
    return f"{text}, partition {first.partition_id}, {offsets}"


# --- stdin ---


_CHUNK_SIZE = 256 * 1024
LINE_SIZE_MAX = 64_000_000
"""Bytes: the maximum size of a message."""


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lists of available lines without line ends. An incomplete last line counts.

    A daemon thread reads stdin: reading from a keyboard cannot be interrupted.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(4)
    """Chunks that may be queued."""

    def read() -> None:
        data: bytes | OSError = b"-"
        while data and isinstance(data, bytes):
            room.acquire()
            try:
                data = os.read(descriptor, _CHUNK_SIZE)
            except OSError as error:
                data = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, data)
            except RuntimeError:
                # The loop is closed: the line is not needed.
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest: list[bytes] = []
    while data := await chunks.get():
        if isinstance(data, OSError):
            raise data
        room.release()
        *lines, last = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*rest, lines[0]))
            rest = []
            yield [line.removesuffix(b"\r") for line in lines]
        rest.append(last)
    if end := b"".join(rest):
        yield [end.removesuffix(b"\r")]
