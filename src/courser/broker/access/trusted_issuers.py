"""Access tokens of other issuers, such as an identity provider, that an operator has decided to trust.

The configuration says which user the tokens of an issuer stand for. Their signatures are checked with the public keys
that the issuer publishes. Whoever sends a token can make the server ask for these keys, so it does so rarely.
"""

import asyncio
import binascii
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import urlsplit

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from courser.broker.access.access_token_settings import TrustedIssuer
from courser.broker.access.access_tokens import (
    TOKEN_LENGTH_MAX,
    Access,
    AccessTokens,
    decode_part,
    invalid_token,
)
from courser.catalog.rules import ROOT_USER_ID
from courser.catalog.state import CatalogState
from courser.model.clock import Clock

_log = logging.getLogger(__name__)

_SECOND = 1_000_000
_FRESH_TIME = 600 * _SECOND
"""Microseconds after which the keys of an issuer are fetched again: it may have withdrawn some."""
_RETRY_TIME = 10 * _SECOND
"""Microseconds between two attempts."""
_EXPIRY_MAX = 2**53
_RSA_SIZE_MIN = 2048
"""Bits."""
_RSA_HASHES = {"RS256": hashes.SHA256(), "RS384": hashes.SHA384(), "RS512": hashes.SHA512()}
_CURVES: dict[str, tuple[str, ec.EllipticCurve, hashes.HashAlgorithm, int]] = {
    "P-256": ("ES256", ec.SECP256R1(), hashes.SHA256(), 32),
    "P-384": ("ES384", ec.SECP384R1(), hashes.SHA384(), 48),
}
"""The algorithm, curve and hash, and the bytes of each half of a signature."""

Verify = Callable[[str, bytes, bytes], bool]
"""Whether a signature is right: the algorithm that the token names, the signed bytes, the signature."""


class _Head(msgspec.Struct):
    alg: str
    kid: str


class _Claims(msgspec.Struct):
    iss: str
    aud: str | list[str]
    exp: int | float
    nbf: int | float = 0


class _PublishedKey(msgspec.Struct):
    kty: str
    kid: str = ""
    use: str = "sig"
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""


class _KeySet(msgspec.Struct):
    keys: list[_PublishedKey]


class TrustedIssuers:
    """Checks tokens of issuers that the configuration trusts."""

    def __init__(
        self,
        issuers: Iterable[TrustedIssuer],
        tokens: AccessTokens,
        state: CatalogState,
        clock: Clock,
        *,
        clock_skew: int,
        fetch: Callable[[str], Awaitable[bytes]],
    ) -> None:
        """``fetch`` gets the document at a URL, or raises ``OSError``. ``clock_skew`` is in microseconds."""
        self._keys = {_normal(issuer.issuer): _IssuerKeys(issuer, clock, fetch) for issuer in issuers}
        self._tokens = tokens
        self._state = state
        self._clock = clock
        self._clock_skew = clock_skew / _SECOND

    async def check(self, token: str) -> Access | None:
        """What a token stands for; None if it does not claim to be of a trusted issuer.

        Raises:
            CommandRejected (40): it is not valid.
        """
        signed, _, signature = token.encode("utf-8", "replace").rpartition(b".")
        head_part, _, body_part = signed.partition(b".")
        try:
            claims = msgspec.json.decode(decode_part(body_part), type=_Claims)
            keys = self._keys.get(_normal(claims.iss))
            if keys is None or len(token) > TOKEN_LENGTH_MAX:
                return None
            head = msgspec.json.decode(decode_part(head_part), type=_Head)
            signature = decode_part(signature)
        except (binascii.Error, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        verify = await keys.find(head.kid)
        if verify is None or not verify(head.alg, signed, signature):
            raise invalid_token("its issuer has no such key, or its signature is wrong")
        return self._access(keys.issuer, claims, hashlib.sha256(signed).digest()[:16])

    def _access(self, issuer: TrustedIssuer, claims: _Claims, token_id: bytes) -> Access:
        audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
        now, skew = self._clock.now() / _SECOND, self._clock_skew
        is_current = claims.nbf - skew <= now < claims.exp + skew and claims.exp < _EXPIRY_MAX
        if issuer.audience not in audiences or not is_current:
            raise invalid_token("it is expired, not valid yet, or made for another server")
        if self._tokens.is_revoked(token_id):
            raise invalid_token("it was revoked")
        user = self._state.users.get(issuer.user_id)
        if user is None or issuer.user_id == ROOT_USER_ID:
            raise invalid_token("its issuer stands for no user, or for root")
        return Access(user, None, token_id, int(claims.exp), is_foreign=True)


class _IssuerKeys:
    """The keys of one issuer, as it last published them."""

    def __init__(self, issuer: TrustedIssuer, clock: Clock, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        self.issuer = issuer
        self._clock = clock
        self._fetch = fetch
        self._keys: dict[str, Verify] = {}
        self._fetched_at: int | None = None
        """On the monotonic clock, like ``_tried_at``."""
        self._tried_at: int | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str) -> Verify | None:
        """The key with this id. Fetches the keys if it is not known, or was not confirmed for a while."""
        now = self._clock.monotonic()
        is_fresh = self._fetched_at is not None and now - self._fetched_at < _FRESH_TIME
        if key_id not in self._keys or not is_fresh:
            if self._fetching is None and (self._tried_at is None or now - self._tried_at >= _RETRY_TIME):
                self._tried_at = now
                self._fetching = asyncio.create_task(self._refresh())
            if self._fetching is not None:
                # One request that is given up does not end the attempt for the others.
                await asyncio.shield(self._fetching)
        return self._keys.get(key_id)

    async def _refresh(self) -> None:
        try:
            self._keys = parse_key_set(await self._fetch(self.issuer.jwks_url))
            self._fetched_at = self._clock.monotonic()
        except (OSError, ValueError) as error:
            # The keys that are known stay in use: the issuer may be back soon.
            _log.warning("cannot fetch the keys of the trusted issuer %r: %s", self.issuer.issuer, error)
        finally:
            self._fetching = None


def _normal(issuer: str) -> str:
    """An issuer as it is compared: the scheme and host of a URL are the same in either case."""
    try:
        parts = urlsplit(issuer)
    except ValueError:
        return issuer
    return parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower()).geturl() if parts.netloc else issuer


# --- keys ---------------------------------------------------------------------------------------------


def parse_key_set(data: bytes) -> dict[str, Verify]:
    """The keys that can be used, by id. Raises ``ValueError`` if it is no JSON Web Key Set."""
    try:
        keys = msgspec.json.decode(data, type=_KeySet).keys
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"it is no JSON Web Key Set: {error}") from None
    found = {}
    for key in keys:
        try:
            verify = _verifier(key) if key.kid and key.use == "sig" else None
        except (ValueError, TypeError):
            # A key that is damaged does not spoil the others.
            verify = None
        if verify is not None:
            found[key.kid] = verify
    return found


def _verifier(key: _PublishedKey) -> Verify | None:
    """None if the key is of a kind that is not supported. The kind decides which algorithms a token may name."""
    if key.kty == "RSA":
        return _rsa_verifier(rsa.RSAPublicNumbers(_number(key.e), _number(key.n)).public_key())
    if key.kty == "EC" and key.crv in _CURVES:
        return _curve_verifier(key)
    if key.kty == "OKP" and key.crv == "Ed25519":
        public = ed25519.Ed25519PublicKey.from_public_bytes(decode_part(key.x.encode()))
        return lambda algorithm, signed, signature: (
            algorithm == "EdDSA" and _is_right(lambda: public.verify(signature, signed))
        )
    return None


def _rsa_verifier(public: rsa.RSAPublicKey) -> Verify | None:
    if public.key_size < _RSA_SIZE_MIN:
        return None

    def verify(algorithm: str, signed: bytes, signature: bytes) -> bool:
        chosen = _RSA_HASHES.get(algorithm)
        return chosen is not None and _is_right(lambda: public.verify(signature, signed, padding.PKCS1v15(), chosen))

    return verify


def _curve_verifier(key: _PublishedKey) -> Verify:
    expected, curve, chosen, half_size = _CURVES[key.crv]
    public = ec.EllipticCurvePublicNumbers(_number(key.x), _number(key.y), curve).public_key()

    def verify(algorithm: str, signed: bytes, signature: bytes) -> bool:
        if algorithm != expected or len(signature) != 2 * half_size:
            return False
        halves = (int.from_bytes(signature[:half_size]), int.from_bytes(signature[half_size:]))
        return _is_right(lambda: public.verify(encode_dss_signature(*halves), signed, ec.ECDSA(chosen)))

    return verify


def _is_right(verify: Callable[[], None]) -> bool:
    try:
        verify()
    except InvalidSignature:
        return False
    return True


def _number(text: str) -> int:
    return int.from_bytes(decode_part(text.encode()))
