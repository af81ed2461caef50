"""Print messages to stdout as they arrive: as text lines, as records for programs, or with a template."""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import click

from courser.cli.failures import OutputClosed
from courser.cli.message_lines import MESSAGE_FIELDS, message_record
from courser.cli.output import RecordWriter
from courser.cli.payloads import header_texts, key_text, payload_text
from courser.cli.terminal import flush, harmless, unwritable, write
from courser.client.messages import Message

TEMPLATE_NAMES = ("partition", "offset", "time", "timestamp", "id", "key", "headers", "payload")
_PLACEHOLDER = re.compile(r"\{(\w+)\}|\\([nt\\])")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Style:
    """How to print messages."""

    output: str = "table"
    payload_kind: str = "auto"
    with_headers: bool = False
    is_raw: bool = False
    """Print only the payloads, each followed by a line end."""
    template: str | None = None


def check_template(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Reject a template with unknown names."""
    for name, _ in _PLACEHOLDER.findall(value or ""):
        if name and name not in TEMPLATE_NAMES:
            raise click.BadParameter(f"unknown name {{{name}}}; known are {', '.join(TEMPLATE_NAMES)}", ctx, param)
    return value


class MessagePrinter:
    """Writes messages and flushes them, so that readers get them at once."""

    def __init__(self, style: Style, *, with_partitions: bool) -> None:
        self._style = style
        self._with_partitions = with_partitions
        is_plain = style.output == "table" or style.is_raw or style.template is not None
        self._writer = None if is_plain else RecordWriter(MESSAGE_FIELDS, style.output)

    def put(self, messages: Iterable[Message]) -> None:
        """Write messages, and flush them."""
        for message in messages:
            if self._writer is not None:
                self._writer.put(message_record(message, self._style.payload_kind, self._style.output))
            elif self._style.is_raw:
                _write_bytes(message.payload + b"\n")
            elif self._style.template is not None:
                write(self._filled(message, self._style.template) + "\n")
            else:
                write(self._line(message) + "\n")
        flush()

    def close(self) -> None:
        """Complete the document, if it is one."""
        if self._writer is not None:
            self._writer.close()

    def _line(self, message: Message) -> str:
        place = f"{message.partition_id}:{message.offset}" if self._with_partitions else str(message.offset)
        parts = [place, moment_text(message.timestamp)]
        if key := key_text(message):
            parts.append(f"[{key}]")
        parts.append(payload_text(message.payload, self._style.payload_kind))
        if self._style.with_headers:
            parts += header_texts(message)
        return harmless("  ".join(parts))

    def _filled(self, message: Message, template: str) -> str:
        values = {
            "partition": message.partition_id,
            "offset": message.offset,
            "time": moment_text(message.timestamp),
            "timestamp": message.timestamp,
            "id": UUID(int=message.id),
            "key": key_text(message) or "",
            "headers": " ".join(header_texts(message)),
            "payload": payload_text(message.payload, self._style.payload_kind),
        }
        is_terminal = sys.stdout.isatty()

        def replace(found: "re.Match[str]") -> str:
            if found[2]:
                return _ESCAPES[found[2]]
            text = str(values[found[1]])
            return harmless(text) if is_terminal else text

        return _PLACEHOLDER.sub(replace, template)


def moment_text(microseconds: int) -> str:
    """The local time, without the date if it is today."""
    try:
        moment = datetime.fromtimestamp(microseconds // 1_000_000).astimezone()
    except (OverflowError, ValueError, OSError):
        return str(microseconds)
    clock = f"{moment:%H:%M:%S}.{microseconds // 1000 % 1000:03d}"
    return clock if moment.date() == datetime.now().astimezone().date() else f"{moment:%Y-%m-%d} {clock}"


def _write_bytes(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError as error:
        raise OutputClosed from error
    except OSError as error:
        raise unwritable(error) from error
