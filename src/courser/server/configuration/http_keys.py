"""The keys of the HTTP listener, with Iggy's names and defaults."""

import re

from courser.broker.access.access_tokens import ALGORITHMS, AccessTokenSettings
from courser.broker.settings import BrokerSettings
from courser.configuration.key import Key
from courser.model.quantities import SECOND
from courser.server.configuration import kinds
from courser.server.configuration.keys import TlsKeys, certificate_file, key_file, self_signed, tls_enabled
from courser.server.configuration.kinds import Address
from courser.transports.settings import ConsoleSettings, CorsSettings, HttpSettings

_BROKER = BrokerSettings()
_HTTP = HttpSettings()
_CORS = CorsSettings()
_CONSOLE = ConsoleSettings()
_TOKENS = AccessTokenSettings()

HTTP_ENABLED = Key(path="http.enabled", kind=kinds.BOOL, default=True, description="whether to listen for HTTP")
HTTP_ADDRESS = Key(
    path="http.address",
    kind=kinds.ADDRESS,
    default=Address(_HTTP.host, _HTTP.port),
    description="the address to listen on; port 0 picks a free port",
)
REQUEST_SIZE_MAX = Key(
    path="http.max_request_size",
    kind=kinds.size(1024, 64 * 1024 * 1024),
    default=_HTTP.request_size_max,
    description="maximum bytes of the body of a request",
)

CORS_ENABLED = Key(
    path="http.cors.enabled",
    kind=kinds.BOOL,
    default=True,
    description="whether pages of other origins may use the server from a browser",
)
CORS_METHODS = Key(
    path="http.cors.allowed_methods",
    kind=kinds.WORDS,
    default=_CORS.methods,
    description="the methods that they may use",
)
CORS_ORIGINS = Key(
    path="http.cors.allowed_origins",
    kind=kinds.WORDS,
    default=_CORS.origins,
    description="the origins that are allowed; `*` means all",
)
CORS_HEADERS = Key(
    path="http.cors.allowed_headers",
    kind=kinds.WORDS,
    default=_CORS.headers,
    description="the headers that they may send",
)
CORS_EXPOSED = Key(
    path="http.cors.exposed_headers",
    kind=kinds.WORDS,
    default=_CORS.exposed_headers,
    description="the headers of replies that they may read",
)
CORS_CREDENTIALS = Key(
    path="http.cors.allow_credentials",
    kind=kinds.BOOL,
    default=_CORS.allows_credentials,
    description="whether browsers may send credentials of their own",
)
CORS_PRIVATE_NETWORK = Key(
    path="http.cors.allow_private_network",
    kind=kinds.BOOL,
    default=_CORS.allows_private_network,
    description="whether pages of public origins may use a server in a private network",
)

JWT_ALGORITHM = Key(
    path="http.jwt.algorithm",
    kind=kinds.choice(*(name.lower() for name in ALGORITHMS)),
    default=_TOKENS.algorithm.lower(),
    description="how access tokens are signed",
)
JWT_ISSUER = Key(
    path="http.jwt.issuer", kind=kinds.TEXT, default=_TOKENS.issuer, description="the issuer in new access tokens"
)
JWT_AUDIENCE = Key(
    path="http.jwt.audience",
    kind=kinds.TEXT,
    default=_TOKENS.audience,
    description="the audience in new access tokens",
)
JWT_VALID_ISSUERS = Key(
    path="http.jwt.valid_issuers",
    kind=kinds.WORDS,
    default=_TOKENS.valid_issuers,
    description="issuers of access tokens that the server accepts",
)
JWT_VALID_AUDIENCES = Key(
    path="http.jwt.valid_audiences",
    kind=kinds.WORDS,
    default=_TOKENS.valid_audiences,
    description="audiences of access tokens that the server accepts",
)
JWT_EXPIRY = Key(
    path="http.jwt.access_token_expiry",
    kind=kinds.EXPIRY,
    default=_TOKENS.expiry,
    description="how long an access token is valid",
)
JWT_CLOCK_SKEW = Key(
    path="http.jwt.clock_skew",
    kind=kinds.duration(),
    default=_TOKENS.clock_skew,
    description="how long an access token is accepted after it expires, and before it is valid",
)
JWT_NOT_BEFORE = Key(
    path="http.jwt.not_before",
    kind=kinds.duration(),
    default=0 * SECOND,
    description="how long after a login an access token becomes valid",
)
JWT_ENCODING_SECRET = Key(
    path="http.jwt.encoding_secret",
    kind=kinds.SECRET,
    default="",
    description="the secret that signs access tokens; if not set, a key in the data directory (Iggy: a new key at "
    "each start)",
    is_secret=True,
)
JWT_DECODING_SECRET = Key(
    path="http.jwt.decoding_secret",
    kind=kinds.SECRET,
    default="",
    description="the same secret; either key is enough",
    is_secret=True,
)
JWT_BASE64_SECRET = Key(
    path="http.jwt.use_base64_secret",
    kind=kinds.BOOL,
    default=False,
    description="whether these secrets are base64",
)
JWT_TRUSTED_ISSUERS = Key(
    path="http.jwt.trusted_issuers",
    kind=kinds.TRUSTED_ISSUERS,
    default=(),
    description="other issuers whose access tokens the server accepts, each for one user",
)

METRICS_ENABLED = Key(
    path="http.metrics.enabled", kind=kinds.BOOL, default=True, description="whether metrics for Prometheus are served"
)
METRICS_ENDPOINT = Key(
    path="http.metrics.endpoint",
    kind=kinds.TEXT,
    default=_HTTP.metrics_path or "",
    description="the path of the metrics, which needs no login",
)
METRICS_SERIES_MAX = Key(
    path="http.metrics.max_series",
    kind=kinds.integer(0, 100_000),
    default=_BROKER.series_count_max,
    description="partitions with time series of their own, and the same for partitions of consumer groups; further "
    "ones are added up by topic or group",
)


def _base_path(value: object) -> str:
    # It becomes part of a cookie, where a semicolon or a space would end it.
    if isinstance(value, str) and re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", value):
        return value
    raise ValueError(value)


_BASE_PATH = kinds.SettingKind(
    "path",
    'a path such as "/courser", of letters, digits and `._~-`, without a slash at its end; or an empty text',
    _base_path,
    _base_path,
    kinds.quoted,
)

UI_ENABLED = Key(
    path="ui.enabled", kind=kinds.BOOL, default=True, description="whether the web console is served at `/ui`"
)
UI_READ_ONLY = Key(
    path="ui.read_only",
    kind=kinds.BOOL,
    default=_CONSOLE.is_read_only,
    description="whether the web console may change nothing, whoever is logged in",
)
UI_BASE_PATH = Key(
    path="ui.base_path",
    kind=_BASE_PATH,
    default=_CONSOLE.base_path,
    description="the path under which a proxy shows the server, such as `/courser`; empty means none",
)

HTTP_TLS_ENABLED = tls_enabled("http.tls", "HTTP")
HTTP_TLS_SELF_SIGNED = self_signed("http.tls")
HTTP_TLS_CERT_FILE = certificate_file("http.tls")
HTTP_TLS_KEY_FILE = key_file("http.tls")
HTTP_TLS = TlsKeys("http.tls", HTTP_TLS_ENABLED, HTTP_TLS_SELF_SIGNED, HTTP_TLS_CERT_FILE, HTTP_TLS_KEY_FILE)
