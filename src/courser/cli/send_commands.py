"""``courser send``: send messages from the command line, from stdin or from files to a topic."""

import secrets
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

import click

from courser.cli.connecting import ask_server
from courser.cli.failures import ExitCode, Failure
from courser.cli.fields import fields
from courser.cli.message_input import InputForm, batches_of_stdin, contents_of
from courser.cli.naming import TopicPath, Word, topic_argument
from courser.cli.options import option
from courser.cli.output import RecordWriter
from courser.cli.payloads import INPUT_KINDS, headers_of
from courser.cli.server_options import server_command
from courser.cli.terminal import flush, say
from courser.client.client import Client
from courser.client.messages import SendMessage
from courser.client.producer import Producer, Receipt, Ticket
from courser.errors import AlreadyExists, CourserError, NotAllowed, NotFound

_FIELDS = fields("stream, topic, partition_id, base_offset, message_count")
_CONFLICTS = (
    ("--key", "--partition"),
    ("--key", "--key-separator"),
    ("--key-separator", "--partition"),
    ("--file", "MESSAGES"),
    ("--file", "--key-separator"),
    *(("--input jsonl", other) for other in ("--file", "--key", "--key-separator", "--as")),
)


@dataclass(slots=True)
class _Sending:
    """The target, the options, and the progress."""

    place: TopicPath
    partition_count: int | None
    """Partitions of a topic to create if it is missing; None does not create it."""
    writer: RecordWriter | None
    turn: int | None = None
    """The partition of the next batch of messages without a key; None lets the server choose."""
    turn_count: int = 1
    """The number of partitions that take turns."""
    count: int = 0
    first: Receipt | None = None
    is_in_a_row: bool = True
    """Whether all messages have consecutive offsets in one partition."""

    @property
    def is_created(self) -> bool:
        """Whether to create a missing topic."""
        return self.partition_count is not None

    def partition_of(self, message: SendMessage) -> int | None:
        """The partition to send a message to; None if its key or the server selects one."""
        if self.place.partition_id is not None or message.key is not None:
            return self.place.partition_id
        return self.turn

    def note(self, receipts: Iterable[Receipt]) -> None:
        """Count acknowledged messages, and report consecutive ones in one record."""
        ordered = sorted(receipts, key=lambda receipt: (receipt.partition_id, receipt.offset))
        for _, group in groupby(enumerate(ordered), lambda item: (item[1].partition_id, item[1].offset - item[0])):
            row = [receipt for _, receipt in group]
            first = self.first = self.first or row[0]
            expected = Receipt(first.partition_id, first.offset + self.count)
            self.is_in_a_row = self.is_in_a_row and row[0] == expected
            self.count += len(row)
            self._report(row[0], len(row))

    def _report(self, first: Receipt, count: int) -> None:
        if self.writer is None:
            return
        names = {"stream": self.place.stream, "topic": self.place.topic, "partition_id": first.partition_id}
        self.writer.put({**names, "base_offset": first.offset, "message_count": count})
        flush()


def _separator(ctx: click.Context, param: click.Parameter, value: str | None) -> bytes | None:
    if value is None:
        return None
    if not value:
        raise click.BadParameter("the separator must not be empty", ctx, param)
    return (value if value != r"\t" else "\t").encode(errors="surrogateescape")


@server_command(
    "send",
    "courser send demo/orders 'hello' 'world'",
    """echo '{"n":1}' | courser send demo/orders --create""",
    "courser send demo/orders --key customer-7 --header source=shop 'paid'",
    "courser send demo/orders -K : < keys-and-payloads.txt",
    "courser send demo/images --file photo.jpg",
    "courser tail demo/orders -o jsonl | courser send demo/copy -i jsonl",
    "tail -f app.log | courser send logs/app",
)
@topic_argument(Word("messages", takes_all=True, is_required=False))
@option("--create", "Create the stream and the topic if they do not exist.", "is_created")
@option(
    "--partitions COUNT",
    "The number of partitions that --create creates.",
    "partition_count",
    type=click.IntRange(1, 1000),
    default=1,
)
@option("-k, --key TEXT", "Messages with the same key go to the same partition. The key is stored.")
@option(
    "-K, --key-separator SEP",
    "Each message starts with its own key, which ends at the first SEP; \\t is a tab.",
    "separator",
    callback=_separator,
)
@option(
    "-p, --partition NUMBER", "Send to this partition. Default: use all partitions in turn.", type=click.IntRange(min=0)
)
@option(
    "-H, --header KEY=VALUE",
    "A header for each message; also key:kind:value. May be repeated.",
    "headers",
    multiple=True,
)
@option(
    "-f, --file PATH",
    "Send a whole file, such as an image, as one message; - is stdin. May be repeated.",
    "files",
    multiple=True,
)
@option(
    "-i, --input",
    "What a line of stdin is: a payload, or a whole message with key and headers as tail -o jsonl prints it.",
    "input_format",
    type=click.Choice(("lines", "jsonl")),
    default="lines",
)
@option(
    "--as",
    "The format of the payloads: text, JSON (which is validated), or hexadecimal digits.",
    "payload_kind",
    type=click.Choice(INPUT_KINDS),
    default="text",
)
def send_command(
    *,
    place: TopicPath,
    messages: tuple[str, ...],
    is_created: bool,
    partition_count: int,
    key: str | None,
    separator: bytes | None,
    partition: int | None,
    headers: tuple[str, ...],
    files: tuple[str, ...],
    input_format: str,
    payload_kind: str,
    output: str,
) -> None:
    """Send messages from the command line, from files, or from stdin. Returns when they are acknowledged.

    In a line of JSON (-i jsonl), only "payload" is required: a string is sent as text, any other value as JSON. "key"
    and "headers" (an object) are optional. The other fields are those of courser tail -o jsonl; where the message was
    stored is ignored.
    """
    is_json_lines = input_format == "jsonl"
    _check(
        {
            "--key": key is not None,
            "--key-separator": separator is not None,
            "--partition": partition is not None,
            "--file": bool(files),
            "MESSAGES": bool(messages),
            "--input jsonl": is_json_lines,
            "--as": payload_kind != "text",
        }
    )
    form = InputForm(
        payload_kind=payload_kind,
        is_json_lines=is_json_lines,
        separator=separator,
        key=key,
        headers=headers_of(headers),
    )
    words = [word.encode(errors="surrogateescape") for word in messages]
    sending = _Sending(
        TopicPath(place.stream, place.topic, partition),
        partition_count if is_created else None,
        None if output == "table" else RecordWriter(_FIELDS, output),
    )
    if not words and not files and sys.stdin.isatty():
        say(f"type one message per line for {place}; press Ctrl-D to finish")
    try:
        ask_server(lambda client: _send_all(client, sending, form, _batches(words, files)), sending.place)
    except Failure as failure:
        raise _with_create_hint(failure, sending) from failure
    finally:
        if sending.writer is not None:
            sending.writer.close()
        elif sending.count:
            say(_sentence(sending))


def _check(given: Mapping[str, bool]) -> None:
    """Refuse options that contradict each other."""
    for first, second in _CONFLICTS:
        if given[first] and given[second]:
            raise click.UsageError(f"{first} and {second} cannot be combined")


async def _send_all(client: Client, sending: _Sending, form: InputForm, batches: AsyncIterator[list[bytes]]) -> None:
    producer: Producer | None = None
    async for batch in batches:
        lines = [line for line in batch if line.strip()] if form.is_json_lines else batch
        messages = [form.message(line, number) for number, line in enumerate(lines, sending.count + 1)]
        if messages:
            # Input without messages must not create a topic.
            producer = producer or await _open(client, sending)
            await _send(producer, sending, messages)
    if not sending.count:
        say("nothing to send: stdin was empty")


async def _batches(words: list[bytes], files: Sequence[str]) -> AsyncIterator[list[bytes]]:
    """What to send: words and files, or else stdin."""
    if words:
        yield words
    for path in files:
        yield [contents_of(path)]
    if not words and not files:
        async for lines in batches_of_stdin():
            yield lines


async def _send(producer: Producer, sending: _Sending, messages: list[SendMessage]) -> None:
    """Send messages and wait for their acknowledgements. If one fails, those before it are sent."""
    tickets: list[Ticket] = []
    receipts: list[Receipt] = []
    failure: CourserError | None = None
    try:
        for message in messages:
            ticket = await producer.send(
                message.payload,
                key=message.key,
                headers=message.headers or None,
                id=message.id,
                partition=sending.partition_of(message),
                timestamp=message.timestamp,
            )
            tickets.append(ticket)
    except CourserError as error:
        failure = error
    with suppress(CourserError):
        # The tickets have the reason.
        await producer.flush()
    for ticket in tickets:
        try:
            receipts.append(await ticket.acknowledged())
        except CourserError as error:
            failure = failure or error
    sending.note(receipts)
    if failure is not None:
        raise failure
    if sending.turn is not None:
        sending.turn = (sending.turn + 1) % sending.turn_count


async def _open(client: Client, sending: _Sending) -> Producer:
    """Look up the topic, and create it if it is missing and should be created."""
    try:
        details = await client.get_topic(*sending.place.names)
    except NotFound:
        if not sending.is_created:
            raise
        await _create(client, sending)
        details = await client.get_topic(*sending.place.names)
    except NotAllowed:
        # A user who may only send: the server chooses the partitions.
        return client.producer(*sending.place.names)
    if details.topic.partition_count:
        sending.turn_count = details.topic.partition_count
        # Random, because a command often sends one message: not all of them may go to the same partition.
        sending.turn = secrets.randbelow(sending.turn_count)
    return client.producer(*sending.place.names)


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
    last = first.offset + sending.count - 1
    offsets = f"offset {last}" if sending.count == 1 else f"offsets {first.offset} to {last}"
    return f"{text}, partition {first.partition_id}, {offsets}"
