"""The value types of server settings: those shared with pipelines, and the server's own."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from courser.broker.access.access_tokens import TrustedIssuer
from courser.model.quantities import (
    EXPIRY_EXPECTED,
    NEVER,
    TOPIC_SIZE_EXPECTED,
    format_byte_size,
    format_duration,
    parse_expiry,
    parse_max_topic_size,
)
from courser.model.setting_kinds import (
    BOOL,
    FILE,
    OPTIONAL_BOOL,
    OPTIONAL_TEXT,
    PATH,
    TEXT,
    SettingKind,
    Value,
    checked_text,
    checked_words,
    choice,
    duration,
    integer,
    quoted,
    size,
)
from courser.records.classic_layout import Dialect
from courser.server.configuration.log_levels import LOG_LEVELS_EXPECTED, LogLevels, parse_log_levels
from courser.storage.segment_index import IndexCache

__all__ = [
    "ADDRESS",
    "BOOL",
    "DIALECT",
    "DIALECTS",
    "EXPIRY",
    "FILE",
    "INDEX_CACHE",
    "LOG_LEVELS",
    "OPTIONAL_BOOL",
    "OPTIONAL_TEXT",
    "PATH",
    "SECRET",
    "TEXT",
    "TRUSTED_ISSUERS",
    "WORDS",
    "Address",
    "SettingKind",
    "Value",
    "choice",
    "duration",
    "integer",
    "quoted",
    "size",
    "topic_size",
]

_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _expiry_from_text(text: str) -> int:
    expiry = parse_expiry(text)
    if expiry is None:
        # This is the server's default itself, so "server_default" would refer to itself.
        raise ValueError(text)
    return expiry


def _expiry_to_toml(value: int) -> str:
    return quoted("none" if value == NEVER else format_duration(value))


EXPIRY = SettingKind(
    "expiry", EXPIRY_EXPECTED, lambda value: _expiry_from_text(checked_text(value)), _expiry_from_text, _expiry_to_toml
)


def topic_size(low: int) -> SettingKind[int]:
    """Bytes of a topic, at least ``low``, or ``NEVER``."""

    def from_text(text: str) -> int:
        limit = parse_max_topic_size(text)
        if limit is None or limit < low:
            raise ValueError(text)
        return limit

    def from_toml(value: object) -> int:
        return from_text(str(value) if isinstance(value, int) and not isinstance(value, bool) else checked_text(value))

    def to_toml(value: int) -> str:
        return quoted("unlimited" if value == NEVER else format_byte_size(value))

    return SettingKind(
        "size", f"{TOPIC_SIZE_EXPECTED}, and at least {format_byte_size(low)}", from_toml, from_text, to_toml
    )


ALL_CORES = 0
"""The number of processes that stands for ``auto``."""


def processes(high: int) -> SettingKind[int]:
    """A number of processes, or ``auto``: one for each processor core that the server may use."""
    number = integer(1, high)

    def from_text(text: str) -> int:
        return ALL_CORES if text.strip().lower() == "auto" else number.from_text(text)

    def from_toml(value: object) -> int:
        return from_text(value) if isinstance(value, str) else number.from_toml(value)

    def to_toml(value: int) -> str:
        return quoted("auto") if value == ALL_CORES else str(value)

    return SettingKind("number", f'{number.expected}, or "auto"', from_toml, from_text, to_toml)


def _address(value: object) -> Address:
    host, colon, port = checked_words(value).strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(value)
    if not colon or not host or " " in host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > _PORT_MAX:
        raise ValueError(value)
    return Address(host, int(port))


ADDRESS = SettingKind(
    "address",
    f'host and port such as "127.0.0.1:8090" or "[::1]:8090", with a port from 0 to {_PORT_MAX}',
    _address,
    _address,
    lambda value: quoted(str(value)),
)


def _words_from_toml(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        return _words_from_text(checked_text(value))
    # Stock files have empty texts in their lists.
    return tuple(word for word in (checked_text(item).strip() for item in value) if word)


def _words_from_text(text: str) -> tuple[str, ...]:
    words = (word.strip().strip('"') for word in text.strip().removeprefix("[").removesuffix("]").split(","))
    return tuple(word for word in words if word)


WORDS: SettingKind[tuple[str, ...]] = SettingKind(
    "list",
    'a list of texts such as ["GET", "POST"], or a text with commas',
    _words_from_toml,
    _words_from_text,
    lambda value: "[" + ", ".join(map(quoted, value)) + "]",
)

SECRET = OPTIONAL_TEXT


def _levels(value: object) -> LogLevels:
    return parse_log_levels(checked_text(value))


LOG_LEVELS = SettingKind("log levels", LOG_LEVELS_EXPECTED, _levels, _levels, lambda value: quoted(value.text))


def _cache_from_toml(value: object) -> IndexCache:
    if isinstance(value, bool):
        return IndexCache.ALL if value else IndexCache.NONE
    return _cache_from_text(checked_text(value))


def _cache_from_text(text: str) -> IndexCache:
    word = text.strip().lower()
    return IndexCache({"true": "all", "false": "none"}.get(word, word))


INDEX_CACHE = SettingKind(
    "word",
    'true or "all", "open_segment", false or "none"',
    _cache_from_toml,
    _cache_from_text,
    lambda value: quoted(value.value),
)


# --- dialects of old clients --------------------------------------------------------------------------

_DIALECT_WORDS = ", ".join(quoted(dialect.value) for dialect in Dialect)


def _dialect(value: object) -> Dialect:
    return Dialect(checked_text(value).strip())


def _dialects_from_toml(value: object) -> Mapping[str, Dialect]:
    if not isinstance(value, dict):
        return _dialects_from_text(checked_text(value))
    return {str(user): _dialect(dialect) for user, dialect in value.items()}


def _dialects_from_text(text: str) -> Mapping[str, Dialect]:
    pairs = [pair.rpartition("=") for pair in text.split(",") if pair.strip()]
    if not all(user.strip() and equals for user, equals, _ in pairs):
        raise ValueError(text)
    return {user.strip(): _dialect(dialect) for user, _, dialect in pairs}


def _dialects_to_toml(value: Mapping[str, Dialect]) -> str:
    pairs = ", ".join(f"{quoted(user)} = {quoted(dialect.value)}" for user, dialect in value.items())
    return f"{{ {pairs} }}" if pairs else "{}"


DIALECT = SettingKind("word", f"one of {_DIALECT_WORDS}", _dialect, _dialect, lambda value: quoted(value.value))
DIALECTS = SettingKind(
    "table",
    f'a table of user names with one of {_DIALECT_WORDS} each, or a text such as "alice=0.6,bob=0.5"',
    _dialects_from_toml,
    _dialects_from_text,
    _dialects_to_toml,
)


# --- trusted issuers ----------------------------------------------------------------------------------


def _issuers_from_toml(value: object) -> tuple[TrustedIssuer, ...]:
    if not isinstance(value, list):
        return _issuers_from_text(checked_text(value))
    return tuple(_issuer(table) for table in value)


def _issuer(table: object) -> TrustedIssuer:
    if not isinstance(table, dict) or not _ISSUER_TEXTS <= set(table) <= _ISSUER_TEXTS | {"user_id"}:
        raise ValueError(table)
    user_id = table.get("user_id", 0)
    if isinstance(user_id, str) and user_id.isdecimal():
        # As an environment variable gives it.
        user_id = int(user_id)
    if not isinstance(user_id, int) or isinstance(user_id, bool) or user_id < 0:
        raise ValueError(table)
    texts = {name: checked_text(table[name]) for name in _ISSUER_TEXTS}
    if not all(texts.values()) or not re.match(r"https?://[^/]", texts["jwks_url"]):
        raise ValueError(table)
    return TrustedIssuer(**texts, user_id=user_id)


def _issuers_from_text(text: str) -> tuple[TrustedIssuer, ...]:
    value = tomllib.loads(f"value = {text}")["value"]
    if not isinstance(value, list):
        raise ValueError(text)
    return _issuers_from_toml(value)


def _issuers_to_toml(value: tuple[TrustedIssuer, ...]) -> str:
    tables = (
        f"{{ issuer = {quoted(issuer.issuer)}, jwks_url = {quoted(issuer.jwks_url)}, "
        f"audience = {quoted(issuer.audience)}, user_id = {issuer.user_id} }}"
        for issuer in value
    )
    return f"[{', '.join(tables)}]"


_ISSUER_TEXTS = frozenset({"issuer", "jwks_url", "audience"})
TRUSTED_ISSUERS = SettingKind(
    "list",
    "a list of tables with issuer, jwks_url (https://...), audience and user_id",
    _issuers_from_toml,
    _issuers_from_text,
    _issuers_to_toml,
    row_fields=_ISSUER_TEXTS | {"user_id"},
)
