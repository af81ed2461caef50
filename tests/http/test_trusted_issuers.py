"""Access tokens that somebody else has issued: which are accepted, and how often their keys are fetched."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from courser.broker.access.access_token_settings import AccessTokenSettings, TrustedIssuer
from courser.broker.access.trusted_issuers import _IssuerKeys, parse_key_set
from courser.model.clock import Clock
from courser.model.quantities import SECOND
from courser.server.certificates import make_self_signed
from courser.server.http_assembly import fetch_document
from tests.fakes.clocks import ManualClock
from tests.http.event_streams import opened
from tests.http.serving import HttpClient, HttpServer, make_topic, message, send, serving

CURVE_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(65537, 2048)
EDWARDS_KEY = ed25519.Ed25519PrivateKey.generate()
FOR_ALICE = TrustedIssuer(issuer="https://Login.example/a", jwks_url="https://keys.example", audience="shop", user_id=1)
FOR_ROOT = TrustedIssuer(issuer="https://root.example", jwks_url="https://keys.example", audience="shop", user_id=0)
FAR_FUTURE = 4_000_000_000
ALICE = "/users/1"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8))


def key_set() -> dict[str, Any]:
    curve, modulus = CURVE_KEY.public_key().public_numbers(), RSA_KEY.public_key().public_numbers()
    point = {"x": encoded(curve.x.to_bytes(32)), "y": encoded(curve.y.to_bytes(32))}
    return {
        "keys": [
            {"kty": "EC", "crv": "P-256", "kid": "curve", **point},
            {"kty": "RSA", "kid": "rsa", "use": "sig", "n": number(modulus.n), "e": number(modulus.e)},
            {
                "kty": "OKP",
                "crv": "Ed25519",
                "kid": "edwards",
                "x": encoded(EDWARDS_KEY.public_key().public_bytes_raw()),
            },
            {"kty": "EC", "crv": "P-256", "kid": "damaged", "x": "AA", "y": "AA"},
            {"kty": "oct", "kid": "secret", "k": "AAAA"},
        ]
    }


def curve_signature(signed: bytes) -> bytes:
    halves = decode_dss_signature(CURVE_KEY.sign(signed, ec.ECDSA(hashes.SHA256())))
    return b"".join(half.to_bytes(32) for half in halves)


SIGNERS: dict[tuple[str, str], Callable[[bytes], bytes]] = {
    ("ES256", "curve"): curve_signature,
    ("RS256", "rsa"): lambda signed: RSA_KEY.sign(signed, padding.PKCS1v15(), hashes.SHA256()),
    ("EdDSA", "edwards"): EDWARDS_KEY.sign,
}


def token_of(
    algorithm: str = "ES256",
    key_id: str = "curve",
    sign: Callable[[bytes], bytes] = curve_signature,
    **changed: object,
) -> str:
    claims = {"iss": "https://login.example/a", "aud": "shop", "sub": "whoever", "exp": FAR_FUTURE} | changed
    head = {"alg": algorithm, "kid": key_id}
    signed = ".".join(encoded(json.dumps(part).encode()) for part in (head, claims))
    return f"{signed}.{encoded(sign(signed.encode()))}"


class Issuer:
    """Publishes keys, and counts who asks."""

    def __init__(self) -> None:
        self.fetch_count = 0
        self.document = json.dumps(key_set()).encode()
        self.failure: OSError | None = None

    async def fetch(self, url: str) -> bytes:
        assert url == "https://keys.example"
        self.fetch_count += 1
        if self.failure is not None:
            raise self.failure
        return self.document


@asynccontextmanager
async def trusting(directory: Path, issuer: Issuer, clock: Clock | None = None) -> AsyncIterator[HttpServer]:
    """A server with the user alice, id 1, who may do nothing but look at herself."""
    settings = AccessTokenSettings(trusted_issuers=(FOR_ALICE, FOR_ROOT))
    async with serving(directory, tokens=settings, fetch=issuer.fetch, clock=clock) as server:
        root = await server.client.login()
        user = {"username": "alice", "password": "secret", "status": "active", "permissions": None}
        assert (await root.ask("POST", "/users", user)).json["id"] == 1
        yield server


async def status_of(server: HttpServer, token: str, path: str = ALICE) -> int:
    return (await HttpClient(server.port, token).ask("GET", path)).status


@pytest.mark.parametrize(("algorithm", "key_id"), SIGNERS)
async def test_a_token_stands_for_the_configured_user(tmp_path: Path, algorithm: str, key_id: str) -> None:
    issuer = Issuer()
    async with trusting(tmp_path, issuer) as server:
        token = token_of(algorithm, key_id, SIGNERS[algorithm, key_id])
        assert await status_of(server, token) == 200
        assert await status_of(server, token, "/users") == 403
        assert await status_of(server, token) == 200
        assert issuer.fetch_count == 1


@pytest.mark.parametrize(
    "token",
    [
        token_of(iss="https://other.example/a"),
        token_of(iss="https://login.example/A"),
        token_of(iss="https://root.example"),
        token_of(aud="another"),
        token_of(aud=["another"]),
        token_of(exp=1),
        token_of(exp=1e300),
        token_of(nbf=FAR_FUTURE),
        token_of(key_id="unknown"),
        token_of(key_id="damaged"),
        token_of(key_id="rsa"),
        token_of(algorithm="none", sign=lambda _: b""),
        token_of(algorithm="HS256", key_id="secret"),
        token_of(algorithm="HS256"),
        token_of(sign=lambda signed: curve_signature(signed + b"x")),
        token_of(sign=lambda _: bytes(64)),
        token_of(sign=lambda _: b""),
    ],
)
async def test_tokens_that_are_refused(tmp_path: Path, token: str) -> None:
    async with trusting(tmp_path, Issuer()) as server:
        assert await status_of(server, token) == 401


async def test_own_tokens_and_lists_of_audiences_work_too(tmp_path: Path) -> None:
    async with trusting(tmp_path, Issuer()) as server:
        assert (await (await server.client.login()).ask("GET", "/users")).status == 200
        assert await status_of(server, token_of(aud=["another", "shop"])) == 200


async def test_a_logout_makes_the_token_invalid_and_a_refresh_is_not_for_it(tmp_path: Path) -> None:
    async with trusting(tmp_path, Issuer()) as server:
        alice = HttpClient(server.port, token_of())
        assert (await alice.ask("POST", "/users/refresh-token", {"token": alice.token})).status in (400, 401)
        assert await status_of(server, token_of()) == 200
        signed, _, _ = token_of().rpartition(".")
        assert (await alice.ask("DELETE", "/users/logout")).status == 204
        # Another signature of the same claims is the same token.
        assert await status_of(server, f"{signed}.{encoded(curve_signature(signed.encode()))}") == 401


MAY_MANAGE_USERS = {
    "global": dict.fromkeys(
        [
            *("manage_servers", "read_servers", "manage_users", "read_users", "manage_streams", "read_streams"),
            *("manage_topics", "read_topics", "poll_messages", "send_messages"),
        ],
        True,
    ),
    "streams": None,
}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/personal-access-tokens", {"name": "forever", "expiry": 0}),
        ("POST", "/personal-access-tokens", {"name": "a second", "expiry": 1_000_000}),
        ("POST", "/personal-access-tokens/one-time", {}),
        ("POST", "/users", {"username": "eve", "password": "secret", "status": "active", "permissions": None}),
        ("PUT", "/users/1/password", {"current_password": "secret", "new_password": "another"}),
        ("PUT", "/users/0/password", {"current_password": "iggy", "new_password": "another"}),
    ],
)
async def test_such_a_token_creates_no_credentials_whatever_its_user_may_do(
    tmp_path: Path, method: str, path: str, body: object
) -> None:
    async with trusting(tmp_path, Issuer()) as server:
        root = await server.client.login()
        assert (await root.ask("PUT", "/users/1/permissions", {"permissions": MAY_MANAGE_USERS})).status == 204
        before = server.broker.catalog.state.hash()
        reply = await HttpClient(server.port, token_of()).ask(method, path, body)
        assert (reply.status, reply.json["code"]) == (403, "unauthorized")
        assert "trusted issuer" in reply.json["reason"]
        assert server.broker.catalog.state.hash() == before
        assert (await (await server.client.login("alice", "secret")).ask("DELETE", "/users/logout")).status == 204


async def test_what_reads_with_such_a_token_ends_with_it_and_not_with_the_password(tmp_path: Path) -> None:
    clock = ManualClock()
    async with trusting(tmp_path, Issuer(), clock) as server:
        root = await server.client.login()
        topic = await make_topic(root)
        assert (await root.ask("PUT", "/users/1/permissions", {"permissions": MAY_MANAGE_USERS})).status == 204
        short = token_of(exp=clock.now() // SECOND + 10)
        server.application._events.keep_alive_interval = 0.001
        async with opened(HttpClient(server.port, short), "/events?topic=s/t") as events:
            assert (await events.event()).kind == "subscribed"
            alice = await server.client.login("alice", "secret")
            body = {"current_password": "secret", "new_password": "another"}
            assert (await alice.ask("PUT", "/users/1/password", body)).status == 204
            await send(root, topic, message())
            assert (await events.event()).kind == "message"
            clock.advance(20 * SECOND)
            end = await events.event()
            assert (end.kind, end.data["code"]) == ("stopped", "unauthenticated")


async def test_unknown_keys_make_the_server_ask_rarely(tmp_path: Path) -> None:
    issuer = Issuer()
    async with trusting(tmp_path, issuer) as server:
        made_up = [token_of(key_id=f"made-up-{index}") for index in range(5)]
        assert set(await asyncio.gather(*(status_of(server, token) for token in made_up))) == {401}
        assert await status_of(server, token_of()) == 200
        assert issuer.fetch_count == 1


@pytest.mark.parametrize("document", [b"", b"[]", b'{"keys": 1}', b"\xff"])
async def test_an_issuer_that_fails_is_reported(
    tmp_path: Path, document: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer()
    issuer.document = document
    async with trusting(tmp_path, issuer) as server:
        assert await status_of(server, token_of()) == 401
        assert "cannot fetch the keys of the trusted issuer 'https://Login.example/a'" in caplog.text


async def test_an_issuer_that_cannot_be_reached_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer()
    issuer.failure = ConnectionRefusedError("nobody listens")
    async with trusting(tmp_path, issuer) as server:
        assert await status_of(server, token_of()) == 401
        assert "nobody listens" in caplog.text


async def test_keys_are_confirmed_from_time_to_time_and_kept_if_that_fails() -> None:
    issuer, clock = Issuer(), ManualClock()
    keys = _IssuerKeys(FOR_ALICE, clock, issuer.fetch)
    assert await keys.find("curve") is not None
    issuer.failure = ConnectionRefusedError("nobody listens")
    clock.advance(600 * SECOND)
    assert await keys.find("curve") is not None
    assert issuer.fetch_count == 2
    issuer.failure, issuer.document = None, b'{"keys": []}'
    assert await keys.find("curve") is not None, "too early to ask again"
    clock.advance(10 * SECOND)
    assert await keys.find("curve") is None, "the issuer has withdrawn it"
    assert issuer.fetch_count == 3


def test_short_keys_are_not_used() -> None:
    numbers = rsa.generate_private_key(65537, 1024).public_key().public_numbers()
    keys = {"keys": [{"kty": "RSA", "kid": "short", "n": number(numbers.n), "e": number(numbers.e)}]}
    assert parse_key_set(json.dumps(keys).encode()) == {}


# --- fetching ---


@asynccontextmanager
async def replying(reply: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL of a server that says the same to everybody."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    async with server:
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys?a=b"


async def test_a_document_is_fetched() -> None:
    async with replying(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}") as url:
        assert await fetch_document(url) == b"{}"


async def test_keys_are_fetched_over_https_from_a_server_with_a_trusted_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key, certificate = make_self_signed("127.0.0.1", datetime.now(UTC))
    (tmp_path / "both.pem").write_bytes(key + certificate)
    (tmp_path / "certificate.pem").write_bytes(certificate)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "both.pem")
    document = json.dumps(key_set()).encode()
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(document), document)
    async with replying(reply, tls) as url:
        issuer = TrustedIssuer(issuer="https://login.example", jwks_url=url, audience="shop", user_id=1)
        assert await _IssuerKeys(issuer, ManualClock(), fetch_document).find("curve") is None
        assert "certificate verify failed" in caplog.text
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        assert await _IssuerKeys(issuer, ManualClock(), fetch_document).find("curve") is not None


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "status 302"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 300_000, "larger than 262144 bytes"),
        (b"nonsense\r\n\r\n", "did not reply in HTTP"),
    ],
)
async def test_replies_that_are_no_document(reply: bytes, reason: str) -> None:
    async with replying(reply) as url:
        with pytest.raises(OSError, match=reason):
            await fetch_document(url)
