"""Settings of access tokens, each with the key of the configuration that sets it. Durations are in microseconds."""

import base64
import re
import tomllib
from dataclasses import dataclass, field

from courser.configuration.key import Key, setting
from courser.configuration.loading import Configuration
from courser.model import setting_kinds as kinds
from courser.model.quantities import SECOND

ALGORITHMS = ("HS256", "HS384", "HS512")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedIssuer:
    """Somebody else whose tokens are accepted."""

    issuer: str
    jwks_url: str
    """Where its public keys are."""
    audience: str
    user_id: int = 0
    """The user that all its tokens stand for. The default is Iggy's; tokens for user 0, root, are refused."""


def _issuers_from_toml(value: object) -> tuple[TrustedIssuer, ...]:
    if not isinstance(value, list):
        return _issuers_from_text(kinds.checked_text(value))
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
    texts = {name: kinds.checked_text(table[name]) for name in _ISSUER_TEXTS}
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
        f"{{ issuer = {kinds.quoted(issuer.issuer)}, jwks_url = {kinds.quoted(issuer.jwks_url)}, "
        f"audience = {kinds.quoted(issuer.audience)}, user_id = {issuer.user_id} }}"
        for issuer in value
    )
    return f"[{', '.join(tables)}]"


_ISSUER_TEXTS = frozenset({"issuer", "jwks_url", "audience"})
TRUSTED_ISSUERS = kinds.SettingKind(
    "list",
    "a list of tables with issuer, jwks_url (https://...), audience and user_id",
    _issuers_from_toml,
    _issuers_from_text,
    _issuers_to_toml,
    row_fields=_ISSUER_TEXTS | {"user_id"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessTokenSettings:
    """What an operator can set about access tokens."""

    algorithm: str = setting(
        "http.jwt.algorithm",
        kinds.named({name.lower(): name for name in ALGORITHMS}),
        "HS256",
        "how access tokens are signed",
    )
    issuer: str = setting("http.jwt.issuer", kinds.TEXT, "iggy.apache.org", "the issuer in new access tokens")
    audience: str = setting("http.jwt.audience", kinds.TEXT, "iggy.apache.org", "the audience in new access tokens")
    valid_issuers: tuple[str, ...] = setting(
        "http.jwt.valid_issuers",
        kinds.WORDS,
        ("iggy.apache.org",),
        "issuers of access tokens that the server accepts",
    )
    valid_audiences: tuple[str, ...] = setting(
        "http.jwt.valid_audiences",
        kinds.WORDS,
        ("iggy.apache.org",),
        "audiences of access tokens that the server accepts",
    )
    expiry: int = setting(
        "http.jwt.access_token_expiry", kinds.EXPIRY, 3600 * SECOND, "how long an access token is valid"
    )
    clock_skew: int = setting(
        "http.jwt.clock_skew",
        kinds.duration(),
        5 * SECOND,
        "how long an access token is accepted after it expires, and before it is valid",
    )
    not_before: int = setting(
        "http.jwt.not_before", kinds.duration(), 0, "how long after a login an access token becomes valid"
    )
    secret: bytes = field(default=b"", repr=False)
    """Empty: a key that is created at the first start and kept in the data directory."""
    trusted_issuers: tuple[TrustedIssuer, ...] = setting(
        "http.jwt.trusted_issuers",
        TRUSTED_ISSUERS,
        (),
        "other issuers whose access tokens the server accepts, each for one user",
    )


JWT_ENCODING_SECRET = Key(
    "http.jwt.encoding_secret",
    kinds.OPTIONAL_TEXT,
    "",
    "the secret that signs access tokens; if not set, a key in the data directory (Iggy: a new key at each start)",
    is_secret=True,
)
JWT_DECODING_SECRET = Key(
    "http.jwt.decoding_secret",
    kinds.OPTIONAL_TEXT,
    "",
    "the same secret; either key is enough",
    is_secret=True,
)
JWT_BASE64_SECRET = Key("http.jwt.use_base64_secret", kinds.BOOL, False, "whether these secrets are base64")


def access_token_settings(configuration: Configuration) -> AccessTokenSettings:
    """The settings that the configuration makes."""
    text = configuration[JWT_ENCODING_SECRET] or configuration[JWT_DECODING_SECRET]
    is_base64 = configuration[JWT_BASE64_SECRET]
    secret = base64.b64decode(text, validate=True) if is_base64 else text.encode()
    return configuration.fill(AccessTokenSettings, secret=secret)
