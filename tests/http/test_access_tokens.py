"""Who gets in over HTTP, with which token, and for how long."""

import base64
import errno
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.access_token_settings import AccessTokenSettings
from courser.broker.access.access_tokens import Access, AccessTokens
from courser.broker.access.sessions import Session
from courser.catalog.entities import User
from courser.catalog.state import CatalogState
from courser.errors import StartRefused, StorageFailure
from courser.model.quantities import SECOND
from courser.transports.http_exchange import Exchange
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem, FaultPlan
from tests.http.event_streams import opened
from tests.http.serving import HttpClient, HttpServer, message, send, serving

STATUS_OF_OWN_USER = "/users/0"


async def is_valid(client: HttpClient, path: str = "/cluster/metadata") -> bool:
    return (await client.ask("GET", path)).status == 200


def claims_of(token: str) -> dict[str, object]:
    body = token.split(".")[1]
    claims: dict[str, object] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


def forged(token: str, head: dict[str, object], **claims: object) -> str:
    """The same signature under other claims."""
    parts = [json.dumps(head).encode(), json.dumps(claims_of(token) | claims).encode()]
    return ".".join([*(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts), token.split(".")[2]])


async def test_tokens_and_revocations_survive_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        kept, left = [await server.client.login() for _ in range(2)]
        assert (await left.ask("DELETE", "/users/logout")).status == 204
    async with serving(tmp_path) as server:
        assert await is_valid(HttpClient(server.port, kept.token))
        assert not await is_valid(HttpClient(server.port, left.token))


async def test_a_torn_list_of_revoked_tokens_keeps_what_was_complete(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        first, second = [await server.client.login() for _ in range(2)]
        for client in (first, second):
            assert (await client.ask("DELETE", "/users/logout")).status == 204
    path = tmp_path / "access_tokens" / "revoked"
    path.write_bytes(path.read_bytes()[:-1])
    async with serving(tmp_path) as server:
        assert not await is_valid(HttpClient(server.port, first.token))
        # Only its entry was torn, and it was never promised to survive that.
        assert await is_valid(HttpClient(server.port, second.token))


async def revoke_two(directory: Path) -> tuple[HttpClient, HttpClient, HttpClient]:
    """Two clients that logged out and one that did not; the first entry of the list is damaged."""
    async with serving(directory) as server:
        first, second, kept = [await server.client.login() for _ in range(3)]
        for client in (first, second):
            assert (await client.ask("DELETE", "/users/logout")).status == 204
    path = directory / "access_tokens" / "revoked"
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    return first, second, kept


async def test_a_damaged_list_of_revoked_tokens_ends_all_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clients = await revoke_two(tmp_path)
    for _ in range(2):
        async with serving(tmp_path) as server:
            for client in clients:
                assert not await is_valid(HttpClient(server.port, client.token))
            assert await is_valid(await server.client.login())
    assert caplog.text.count("1 of the revoked access tokens cannot be read") == 1, "the second start finds no damage"


async def test_a_damaged_list_refuses_the_start_if_the_key_is_the_operators(tmp_path: Path) -> None:
    await revoke_two(tmp_path)
    with pytest.raises(StartRefused, match=r"1 of the entries are damaged, the first at byte 0"):
        async with serving(tmp_path, tokens=AccessTokenSettings(secret=b"s" * 32)):
            pass


async def test_an_entry_that_was_never_written_is_torn(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        kept, left = [await server.client.login() for _ in range(2)]
        assert (await left.ask("DELETE", "/users/logout")).status == 204
    path = tmp_path / "access_tokens" / "revoked"
    path.write_bytes(path.read_bytes() + bytes(32))
    async with serving(tmp_path) as server:
        assert await is_valid(HttpClient(server.port, kept.token))
        assert not await is_valid(HttpClient(server.port, left.token))


async def test_the_key_is_for_the_server_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = await server.client.login()
        assert (await client.ask("DELETE", "/users/logout")).status == 204
        for name in ("key", "revoked"):
            assert (tmp_path / "access_tokens" / name).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("operation", ["make_directory", "open", "write_at"])
async def test_a_start_on_a_full_disk_has_tokens(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    disk = FakeFileSystem(random.Random(1))
    disk.plant_directory(Path("/data"))
    disk.plan = FaultPlan().fail(operation, errno.ENOSPC, onwards=True, name="*.tmp" if operation == "open" else None)
    with ThreadPoolExecutor(1) as pool:
        await AccessTokens.open(
            AccessTokenSettings(),
            CatalogState(),
            ManualClock(),
            file_system=disk,
            data_directory=Path("/data"),
            pool=pool,
            draw=random.Random(2).randbytes,
        )
    assert "valid until the next start" in caplog.text


@pytest.mark.parametrize("operation", ["open", "write_at", "sync"])
async def test_a_revocation_that_the_disk_has_refused_is_written_with_the_next_one(operation: str) -> None:
    """Nobody can ask for it again: the token is refused already."""
    disk = FakeFileSystem(random.Random(1))
    disk.plant_directory(Path("/data"))
    user = User(1, "alice", "", True, 0, None, {})
    accesses = [Access(user, None, bytes([number]) * 16, 2**40) for number in range(3)]
    with ThreadPoolExecutor(1) as pool:

        async def started() -> AccessTokens:
            return await AccessTokens.open(
                AccessTokenSettings(),
                CatalogState(),
                ManualClock(),
                file_system=disk,
                data_directory=Path("/data"),
                pool=pool,
                draw=random.Random(2).randbytes,
            )

        tokens = await started()
        await tokens.revoke(accesses[0])
        disk.plan = FaultPlan().fail(operation, errno.EIO, name="revoked")
        with pytest.raises(StorageFailure):
            await tokens.revoke(accesses[1])
        await tokens.revoke(accesses[2])
        disk.power_cut()
        tokens = await started()
        assert [tokens.is_revoked(access.token_id) for access in accesses] == [True] * 3


async def test_a_refresh_replaces_the_token(server: HttpServer, root: HttpClient) -> None:
    body = {"token": root.token}
    reply = await server.client.ask("POST", "/users/refresh-token", body)
    assert await is_valid(HttpClient(server.port, reply.json["access_token"]["token"]))
    assert not await is_valid(root)
    again = await server.client.ask("POST", "/users/refresh-token", body)
    assert (again.status, again.json["id"]) == (401, 78)


@pytest.mark.parametrize(
    ("head", "claims"),
    [
        ({"alg": "HS256", "typ": "JWT"}, {"sub": "1"}),
        ({"alg": "HS256", "typ": "JWT"}, {"exp": 9_999_999_999}),
        ({"alg": "none", "typ": "JWT"}, {}),
        ({"alg": "HS512", "typ": "JWT"}, {}),
    ],
)
async def test_a_changed_token_is_not_valid(
    root: HttpClient, server: HttpServer, head: dict[str, object], claims: dict[str, object]
) -> None:
    assert await is_valid(root)
    assert not await is_valid(HttpClient(server.port, forged(str(root.token), head, **claims)))


@pytest.mark.parametrize("token", ["x", "a.b.c", "..", "é.é.é", "a" * 10_000, "eyJhbGciOiJub25lIn0.e30."])
async def test_what_is_no_token(server: HttpServer, token: str) -> None:
    headers = {"authorization": f"Bearer {token}"}
    assert (await server.client.ask("GET", "/streams", headers=headers)).status == 401


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "jwt"])
async def test_a_token_in_the_query_does_not_count(server: HttpServer, root: HttpClient, name: str) -> None:
    assert (await server.client.ask("GET", f"/streams?{name}={root.token}")).status == 401
    assert (await server.client.ask("GET", "/streams", headers={"cookie": f"{name}={root.token}"})).status == 401


@pytest.mark.parametrize(
    ("issuing", "checking", "is_accepted"),
    [
        ({}, {}, True),
        ({"issuer": "other"}, {}, False),
        ({"audience": "other"}, {}, False),
        ({"not_before": 3600 * SECOND}, {}, False),
        ({"algorithm": "HS384"}, {}, False),
        ({}, {"algorithm": "HS512"}, False),
        ({}, {"secret": b"another secret, of another server"}, False),
    ],
)
async def test_tokens_that_another_configuration_has_issued(
    tmp_path: Path, issuing: dict[str, Any], checking: dict[str, Any], is_accepted: bool
) -> None:
    secret = b"a secret of the operator, long enough"
    async with serving(tmp_path, tokens=AccessTokenSettings(**{"secret": secret} | issuing)) as server:
        token = server.root.token
    async with serving(tmp_path, tokens=AccessTokenSettings(**{"secret": secret} | checking)) as server:
        assert await is_valid(HttpClient(server.port, token)) == is_accepted


async def test_a_token_expires(tmp_path: Path) -> None:
    settings = AccessTokenSettings(expiry=0, clock_skew=0)
    async with serving(tmp_path, tokens=settings) as server:
        assert not await is_valid(await server.client.login())


async def test_a_token_of_another_server_is_not_valid(tmp_path: Path) -> None:
    async with serving(tmp_path / "one") as server:
        client = await server.client.login()
    async with serving(tmp_path / "two") as server:
        assert not await is_valid(HttpClient(server.port, client.token))


async def test_servers_with_one_secret_accept_each_others_tokens_of_the_same_password(tmp_path: Path) -> None:
    async with serving(tmp_path / "one", tokens=AccessTokenSettings(secret=b"secret")) as server:
        token = (await server.client.login()).token
    async with serving(tmp_path / "one", tokens=AccessTokenSettings(secret=b"another")) as server:
        assert not await is_valid(HttpClient(server.port, token))
    async with serving(tmp_path / "one", tokens=AccessTokenSettings(secret=b"secret")) as server:
        assert await is_valid(HttpClient(server.port, token))


async def add_user(root: HttpClient, name: str) -> None:
    body = {"username": name, "password": "secret", "status": "active", "permissions": None}
    assert (await root.ask("POST", "/users", body)).status == 200


async def test_a_new_password_makes_old_tokens_invalid(server: HttpServer, root: HttpClient) -> None:
    await add_user(root, "alice")
    alice = await server.client.login("alice", "secret")
    body = {"current_password": "secret", "new_password": "secret2"}
    assert (await root.ask("PUT", "/users/alice/password", body)).status == 204
    assert not await is_valid(alice)
    assert await is_valid(await server.client.login("alice", "secret2"))


async def test_an_inactive_user_gets_nothing(server: HttpServer, root: HttpClient) -> None:
    await add_user(root, "alice")
    alice = await server.client.login("alice", "secret")
    assert (await root.ask("PUT", "/users/alice", {"status": "inactive"})).status == 204
    reply = await alice.ask("GET", "/cluster/metadata")
    assert (reply.status, reply.json["code"]) == (400, "user_inactive")
    refresh = await server.client.ask("POST", "/users/refresh-token", {"token": alice.token})
    assert (refresh.status, refresh.json["id"]) == (400, 47)


async def test_a_deleted_personal_access_token_takes_its_access_tokens_along(
    server: HttpServer, root: HttpClient
) -> None:
    secret = (await root.ask("POST", "/personal-access-tokens", {"name": "ci", "expiry": 0})).json["token"]
    reply = await server.client.ask("POST", "/personal-access-tokens/login", {"token": secret})
    client = HttpClient(server.port, reply.json["access_token"]["token"])
    assert await is_valid(client)
    assert (await root.ask("DELETE", "/personal-access-tokens/ci")).status == 204
    assert not await is_valid(client)
    assert await is_valid(root)


# --- what lasts as long as what it is made from ---


async def login_by_token(client: HttpClient, secret: str) -> HttpClient:
    reply = await client.ask("POST", "/personal-access-tokens/login", {"token": secret})
    assert reply.status == 200, reply
    return HttpClient(client.port, reply.json["access_token"]["token"])


async def refreshed(client: HttpClient) -> HttpClient:
    reply = await client.ask("POST", "/users/refresh-token", {"token": client.token})
    assert reply.status == 200, reply
    return HttpClient(client.port, reply.json["access_token"]["token"])


async def test_an_access_token_does_not_outlive_the_personal_access_token_of_its_login(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock=clock) as server:
        expiry = 600 * SECOND
        made = await server.root.ask("POST", "/personal-access-tokens", {"name": "ci", "expiry": expiry})
        expires_at = (clock.now() + expiry) // SECOND
        secret = made.json["token"]
        client = await login_by_token(server.client, secret)
        assert claims_of(str(client.token))["exp"] == expires_at
        clock.advance(300 * SECOND)
        client = await refreshed(client)
        assert claims_of(str(client.token))["exp"] == expires_at
        link = (await client.ask("POST", "/personal-access-tokens/one-time", {})).json["token"]
        spare = (await client.ask("POST", "/personal-access-tokens/one-time", {})).json["token"]
        client = await login_by_token(server.client, link)
        assert claims_of(str(client.token))["exp"] == expires_at
        clock.advance(299 * SECOND)
        assert await is_valid(client)
        clock.advance(6 * SECOND)
        assert not await is_valid(client)
        for token in (secret, spare):
            reply = await server.client.ask("POST", "/personal-access-tokens/login", {"token": token})
            assert (reply.status, reply.json["code"]) == (400, "personal_access_token_expired")
        refused = await server.client.ask("POST", "/users/refresh-token", {"token": client.token})
        assert refused.status == 401


async def test_an_access_token_of_another_password_is_not_refreshed_while_that_changes(
    server: HttpServer, root: HttpClient
) -> None:
    tokens, revoke = server.application._services.tokens, AccessTokens.revoke
    body = {"current_password": "iggy", "new_password": "another"}

    async def change_first(access: Access) -> None:
        assert (await server.root.ask("PUT", "/users/0/password", body)).status == 204
        await revoke(tokens, access)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "revoke", change_first)
        late = await refreshed(root)
    assert not await is_valid(late)


async def test_a_login_that_a_new_password_overtakes_is_worth_nothing(server: HttpServer, root: HttpClient) -> None:
    commands = server.application._commands
    carry_out = commands.carry_out

    async def overtaken(exchange: Exchange, session: Session, command: c.Command) -> r.Reply | None:
        reply = await carry_out(exchange, session, command)
        if isinstance(command, c.LoginUser):
            body = {"current_password": "iggy", "new_password": "another"}
            assert (await root.ask("PUT", "/users/0/password", body)).status == 204
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "carry_out", overtaken)
        late = await server.client.login()
    assert not await is_valid(late)


async def change_password(client: HttpClient, current: str, new: str) -> None:
    body = {"current_password": current, "new_password": new}
    assert (await client.ask("PUT", "/users/0/password", body)).status == 204


async def test_the_token_that_changes_the_password_goes_on_and_the_others_end(
    server: HttpServer, root: HttpClient, topic: str
) -> None:
    other = server.root
    async with (
        opened(root, "/events?topic=s/t") as own_events,
        opened(other, "/events?topic=s/t") as other_events,
    ):
        for stream in (own_events, other_events):
            assert (await stream.event()).kind == "subscribed"
        await change_password(root, "iggy", "second")
        assert await is_valid(root)
        assert not await is_valid(other)
        await send(root, topic, message())
        assert (await own_events.event()).kind == "message"
        assert (await other_events.event()).kind == "stopped"
    await change_password(root, "second", "third")
    assert await is_valid(root)
    assert await is_valid(await refreshed(root))
    assert not await is_valid(root), "it was exchanged for another one"


async def test_a_token_that_changed_the_password_ends_with_the_next_change(
    server: HttpServer, root: HttpClient
) -> None:
    await change_password(root, "iggy", "second")
    other = await server.client.login(password="second")
    await change_password(other, "second", "third")
    assert await is_valid(other)
    assert not await is_valid(root)
    await change_password(other, "third", "second")
    assert not await is_valid(root), "the same password again is another one"
    assert (await other.ask("DELETE", "/users/logout")).status == 204
    assert not await is_valid(other)


async def test_a_restart_forgets_which_token_changed_the_password(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        root = server.root
        await change_password(root, "iggy", "second")
        renewed = await refreshed(await server.client.login(password="second"))
    async with serving(tmp_path) as server:
        assert not await is_valid(HttpClient(server.port, root.token))
        assert await is_valid(HttpClient(server.port, renewed.token))
