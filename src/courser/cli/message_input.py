"""What ``courser send`` sends: words of the command line, lines of stdin, or files; each becomes a message."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import click

from courser.cli.failures import Failure
from courser.cli.message_lines import message_of_line
from courser.cli.payloads import payload_of
from courser.client.messages import Headers, SendMessage
from courser.errors import TooLarge
from courser.wire.vsr_headers import FRAME_SIZE_MAX

_BATCH_COUNT = 1000
_BATCH_SIZE = 1024 * 1024
"""Maximum messages and bytes that are sent before the next ones are read; a single message may be larger."""
_CHUNK_SIZE = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class InputForm:
    """How a word, a line or a file becomes a message."""

    payload_kind: str = "text"
    is_json_lines: bool = False
    """Whether it is a whole message as JSON, with key and headers."""
    separator: bytes | None = None
    """What separates the key from the payload."""
    key: str | None = None
    """The key of all messages."""
    headers: Headers
    """Headers of all messages."""

    def message(self, data: bytes, number: int) -> SendMessage:
        """The message for some input; ``number`` counts the messages, for errors.

        Raises:
            click.UsageError: the input does not have this form.
        """
        if self.is_json_lines:
            line = message_of_line(data, number)
            return SendMessage(
                line.payload, line.id, {**self.headers, **(line.headers or {})}, line.key, line.timestamp
            )
        key: str | bytes | None = self.key
        if self.separator is not None:
            key, found, data = data.partition(self.separator)
            if not found or not key:
                shown = self.separator.decode(errors="replace")
                raise click.UsageError(f'message {number} has no key before "{shown}"')
        return SendMessage(payload_of(data, self.payload_kind, number), headers=self.headers, key=key)


async def batches_of_stdin() -> AsyncIterator[list[bytes]]:
    """The lines of stdin as they arrive."""
    try:
        async for lines in lines_of(sys.stdin.fileno()):
            for batch in _batches(lines):
                yield batch
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


def contents_of(path: str) -> bytes:
    """A whole file; ``-`` is stdin.

    Raises:
        Failure: it cannot be read.
        TooLarge: no server accepts so large a message. Not all of it was read.
    """
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            data = file.read(FRAME_SIZE_MAX + 1)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror or error}", "check the path and its permissions") from error
    if len(data) > FRAME_SIZE_MAX:
        what = path if size > len(data) else "the start of stdin" if path == "-" else f"the start of {path}"
        raise TooLarge(what, max(size, len(data)), FRAME_SIZE_MAX, None)
    return data


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lists of available lines without line ends. An incomplete last line counts.

    A daemon thread reads stdin: reading from a keyboard cannot be interrupted. Raises ``TooLarge`` for a line without
    an end that no server accepts.
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
        if (size := sum(map(len, rest))) > FRAME_SIZE_MAX:
            raise TooLarge("the start of a line of stdin", size, FRAME_SIZE_MAX, None)
    if end := b"".join(rest):
        yield [end.removesuffix(b"\r")]
