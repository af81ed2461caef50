"""Convert payloads and headers between messages and the command line: text, JSON, hexadecimal digits."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from struct import pack

import click
import msgspec

from courser.cli.options import option
from courser.cli.output import JsonText
from courser.client.messages import Headers, Message
from courser.records.message_keys import text_of_key
from courser.records.user_headers import HeaderKind, HeaderValue, UserHeader

INPUT_KINDS = ("text", "json", "hex")
OUTPUT_KINDS = ("auto", "text", "json", "hex")

payload_kind_option = option(
    "--as", "How to show payloads.", "payload_kind", type=click.Choice(OUTPUT_KINDS), default="auto"
)


# --- in ---


def payload_of(data: bytes, kind: str, number: int) -> bytes:
    """The payload for the user's text; ``number`` is the number of the message, for errors.

    Raises:
        click.UsageError: the text is not valid.
    """
    if kind == "text":
        return data
    try:
        if kind == "hex":
            return bytes.fromhex(data.decode("ascii").strip().removeprefix("0x"))
        json.loads(data)
    except ValueError as error:
        name = "hexadecimal digits" if kind == "hex" else "JSON"
        raise click.UsageError(f"message {number} is not {name}: {error}") from None
    return data


def headers_of(texts: Sequence[str]) -> Headers:
    """Parse headers: ``key=value``, or ``key:kind:value`` as in the Iggy CLI.

    Raises:
        click.UsageError: a text has another form.
    """
    headers: dict[str, HeaderValue | UserHeader] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if equals and ":" not in key:
            headers[key] = value
            continue
        parts = text.split(":", 2)
        if len(parts) != 3:
            raise click.UsageError(f'a header must be key=value or key:kind:value, not "{text[:60]}"')
        key, kind, value = parts
        headers[key] = UserHeader(key.encode(), header_bytes(key, kind, value), value_kind=HeaderKind[kind.upper()])
    return headers


def header_bytes(key: str, kind: str, value: str) -> bytes:
    """The bytes of a value of the header ``key``, from its text.

    Raises:
        click.UsageError: the kind is unknown, or the value is not of that kind.
    """
    try:
        number = HeaderKind[kind.upper()]
        match number:
            case HeaderKind.STRING | HeaderKind.RAW:
                return value.encode()
            case HeaderKind.BOOL:
                return bytes(({"true": True, "false": False}[value.lower()],))
            case HeaderKind.FLOAT32 | HeaderKind.FLOAT64:
                return pack("<f" if number is HeaderKind.FLOAT32 else "<d", float(value))
        return int(value).to_bytes(number.width, "little", signed=not number.name.startswith("U"))
    except (KeyError, ValueError, OverflowError):
        kinds = ", ".join(kind.name.lower() for kind in HeaderKind)
        raise click.UsageError(f'header "{key}": "{value[:40]}" is not of kind {kind}; kinds are {kinds}') from None


# --- out ---


def shown_payload(payload: bytes, kind: str, output: str) -> tuple[object, str]:
    """The payload for an output format, and its encoding: text, json or hex.

    By default, an object or array is JSON in JSON documents. A line of JSON contains it only if it is one line, too:
    ``courser send`` can then restore every byte.
    """
    if output == "json" or (output == "jsonl" and payload.strip() == payload and b"\n" not in payload):
        is_json = kind == "json" or (kind == "auto" and payload.lstrip()[:1] in (b"{", b"["))
    else:
        is_json = kind == "json"
    if is_json and (text := _json_text(payload)) is not None:
        return JsonText(text), "json"
    if kind != "hex":
        try:
            return payload.decode(), "text"
        except UnicodeDecodeError:
            if kind == "text":
                return payload.decode(errors="replace"), "text"
    return payload.hex(), "hex"


def _json_text(payload: bytes) -> str | None:
    """The payload on one line, if it is valid JSON."""
    try:
        msgspec.json.decode(payload)
        is_one_line = b"\n" not in payload and b"\r" not in payload
        return (payload if is_one_line else msgspec.json.format(payload, indent=0)).decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def payload_text(payload: bytes, kind: str) -> str:
    """The payload as one line of text."""
    shown, encoding = shown_payload(payload, kind, "table")
    if isinstance(shown, JsonText):
        return shown.text
    return f"0x{shown}" if encoding == "hex" else str(shown)


def header_values(message: Message) -> Mapping[str, object]:
    """Headers with values that JSON has: bytes become hexadecimal digits, and infinity becomes text."""
    return {name: _json_value(value) for name, value in message.headers.items()}


def _json_value(value: HeaderValue) -> HeaderValue:
    if isinstance(value, bytes):
        return value.hex()
    return value if not isinstance(value, float) or isfinite(value) else str(value)


def header_texts(message: Message) -> list[str]:
    """Headers for people, as ``name=value``: bytes as text if that can be read, else as hexadecimal digits."""
    return [f"{name}={_readable(value)}" for name, value in message.headers.items()]


def _readable(value: HeaderValue) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text else f"0x{value.hex()}"


def key_text(message: Message) -> str | None:
    """The key, as text if it is text."""
    return None if message.key is None else text_of_key(message.key)
