"""Convert payloads and headers between messages and the command line: text, JSON, hexadecimal digits."""

import json
from collections.abc import Mapping, Sequence
from struct import pack

import click

from courser.client.messages import Headers, HeaderValue, Message
from courser.records.user_headers import HeaderKind, UserHeader

INPUT_KINDS = ("text", "json", "hex")
OUTPUT_KINDS = ("auto", "text", "json", "hex")

payload_kind_option = click.option(
    "--as",
    "payload_kind",
    type=click.Choice(OUTPUT_KINDS),
    default="auto",
    show_default=True,
    help="How to show payloads.",
)

_INTEGERS = {kind.name.lower(): kind for kind in HeaderKind if "INT" in kind.name}


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
        headers[parts[0]] = _typed(parts[0], parts[1].lower(), parts[2])
    return headers


def _typed(key: str, kind: str, value: str) -> HeaderValue | UserHeader:
    try:
        match kind:
            case "string":
                return value
            case "raw":
                return value.encode()
            case "bool":
                return {"true": True, "false": False}[value.lower()]
            case "float64":
                return float(value)
            case "float32":
                return UserHeader(key.encode(), pack("<f", float(value)), HeaderKind.STRING, HeaderKind.FLOAT32)
        number = _INTEGERS[kind]
        data = int(value).to_bytes(number.width, "little", signed=not kind.startswith("u"))
    except (KeyError, ValueError, OverflowError):
        kinds = ", ".join(("raw", "string", "bool", *_INTEGERS, "float32", "float64"))
        raise click.UsageError(f'header "{key}": "{value[:40]}" is not of kind {kind}; kinds are {kinds}') from None
    return UserHeader(key.encode(), data, HeaderKind.STRING, number)


# --- out ---


def shown_payload(payload: bytes, kind: str) -> tuple[object, str]:
    """The payload for JSON and CSV, and its format: text, json or hex."""
    if kind == "json":
        try:
            return json.loads(payload), "json"
        except ValueError:
            kind = "auto"
    if kind in ("auto", "text"):
        try:
            return payload.decode(), "text"
        except UnicodeDecodeError:
            if kind == "text":
                return payload.decode(errors="replace"), "text"
    return payload.hex(), "hex"


def payload_text(payload: bytes, kind: str) -> str:
    """The payload as one line of text."""
    shown, encoding = shown_payload(payload, kind)
    if encoding == "json":
        return json.dumps(shown, ensure_ascii=False)
    return f"0x{shown}" if encoding == "hex" else str(shown)


def header_values(message: Message) -> Mapping[str, object]:
    """Headers with plain values; bytes become hexadecimal digits."""
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in message.headers.items()}


def key_text(message: Message) -> str | None:
    """The key, as text if it is text."""
    if message.key is None:
        return None
    try:
        return message.key.decode()
    except UnicodeDecodeError:
        return message.key.hex()
