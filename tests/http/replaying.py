"""Replays the recorded HTTP exchanges of the real servers against Courser, and lists every difference."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from courser.api import commands as c
from courser.broker.access.sessions import Session
from courser.handlers.dispatcher import Dispatcher
from courser.model.messaging import Transport
from tests.http.serving import HttpClient, HttpReply, HttpServer

CAPTURES = Path(__file__).resolve().parent.parent / "captures"
RELEASES = ("0.8", "0.9")

_VARYING = frozenset({"created_at", "expiry", "expiry_at", "token", "checksum", "timestamp", "origin_timestamp"}) | {
    "client_id",
    "address",
    "endpoints",
    "reason",
    "description",
}
"""Keys whose values belong to the run. A key that is missing is still a difference."""
_KNOWN_IDS = (7, 2**128 - 1, 0x0194E3A17C0070008000000000000001)
_UNCOMPARED = frozenset({"stats", "metrics", "metrics with token"})
"""Exchanges of which only the status and the content type count."""


@dataclass(frozen=True)
class Difference:
    """One value that is not the recorded one."""

    exchange: str
    field: str
    recorded: str
    ours: str

    def __str__(self) -> str:
        return f"{self.exchange}: {self.field}: {self.recorded} -> {self.ours}"


def recording(release: str) -> list[dict[str, Any]]:
    """The exchanges of a server, in order. The file of 0.9 has only what differs from 0.8, and what is new."""
    rows = {(row["name"], _route(row)): row for row in _rows("0.8")}
    if release != "0.8":
        rows |= {(row["name"], _route(row)): row for row in _rows(release)}
    return list(rows.values())


def _rows(release: str) -> Iterator[dict[str, Any]]:
    return map(json.loads, (CAPTURES / f"http-{release}.jsonl").read_text().splitlines())


def _route(row: Mapping[str, Any]) -> str:
    """What tells two exchanges of one name apart. The id of a client belongs to the run."""
    path: str = row["path"]
    return "/clients" if path.startswith("/clients") else path


class Player:
    """One run: the tokens of its users, and a client on another transport."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._dispatcher = Dispatcher(server.broker)
        self._member: Session = server.broker.sessions.open(Transport.TCP, "127.0.0.1:40000")
        self._member.user_id = 0
        self._tokens: dict[str, str] = {}
        self._secret = ""

    async def differences(self, row: Mapping[str, Any]) -> list[Difference]:
        """Send one request and compare the answer."""
        name = row["name"]
        await self._prepare(name)
        reply = await self._send(row)
        self._remember(name, reply)
        return list(_compare(row, reply))

    async def _prepare(self, name: str) -> None:
        if name == "get group with a member":
            await self._dispatcher.dispatch(self._member, c.JoinConsumerGroup("h0", "t0", "g0"))
        elif name == "delete user":
            client = await self._server.client.login("alice", "secret2")
            self._tokens["alice"] = str(client.token)

    async def _send(self, row: Mapping[str, Any]) -> HttpReply:
        name, request, path = row["name"], row["request"], row["path"]
        if name in ("client", "client with group"):
            path = f"/clients/{self._member.client_id}"
        body: object = request.encode() if isinstance(request, str) else request
        if name == "send body over 2 MB":
            body = b'{"messages":[{"payload":"' + b"A" * 2_000_000 + b'"}]}'
        if name == "token login":
            body = {"token": self._secret}
        elif name in ("refresh", "refresh again"):
            body = {"token": self._tokens["alice before"] if name == "refresh again" else self._tokens["alice"]}
        has_type = row["status"] != 415
        headers = {"authorization": "Basic aWdneTppZ2d5"} if name == "basic auth" else {}
        if row["method"] == "OPTIONS":
            headers = {"origin": "http://localhost", "access-control-request-method": "GET"}
        return await HttpClient(self._server.port).ask(
            row["method"],
            path,
            body,
            token=self._token(name) if row["auth"] else None,
            content_type="application/json" if has_type else None,
            headers=headers,
        )

    def _token(self, name: str) -> str:
        if name == "bad token":
            return "abc.def.ghi"
        if name == "old token after refresh":
            return self._tokens["alice before"]
        is_alice = name.startswith(("no permission", "token of a deleted user")) or name in _OF_ALICE
        return self._tokens["alice" if is_alice else "root"]

    def _remember(self, name: str, reply: HttpReply) -> None:
        if reply.status != 200:
            return
        if name == "login":
            self._tokens["root"] = reply.json["access_token"]["token"]
        elif name == "login alice":
            self._tokens["alice"] = reply.json["access_token"]["token"]
        elif name == "refresh":
            self._tokens["alice before"] = self._tokens["alice"]
            self._tokens["alice"] = reply.json["access_token"]["token"]
        elif name.startswith("create token"):
            self._secret = reply.json["token"]


_OF_ALICE = frozenset({"new token", "logout", "after logout"})


def _compare(row: Mapping[str, Any], reply: HttpReply) -> Iterator[Difference]:
    name = row["name"]
    if reply.status != row["status"]:
        yield Difference(name, "status", str(row["status"]), str(reply.status))
        return
    content_type = reply.headers.get("content-type")
    if content_type != row["content_type"]:
        yield Difference(name, "content type", str(row["content_type"]), str(content_type))
        return
    if content_type != "application/json" or name in _UNCOMPARED or row["method"] == "HEAD":
        if (content_type is None) and reply.body:
            yield Difference(name, "body", "empty", "not empty")
        return
    if not row["reply"].endswith(" bytes)"):
        # Otherwise the recording is cut off.
        yield from _values(name, "body", json.loads(row["reply"]), reply.json)


def _values(name: str, field: str, recorded: Any, ours: Any) -> Iterator[Difference]:
    if isinstance(recorded, dict) and isinstance(ours, dict):
        for key in recorded.keys() | ours.keys():
            if key not in ours:
                yield Difference(name, key, "present", "absent")
            elif key not in recorded:
                yield Difference(name, key, "absent", "present")
            elif key not in _VARYING:
                yield from _values(name, key, recorded[key], ours[key])
    elif isinstance(recorded, list) and isinstance(ours, list) and len(recorded) == len(ours):
        for one, other in zip(recorded, ours, strict=True):
            yield from _values(name, field, one, other)
    elif field == "id" and isinstance(recorded, int) and recorded > 2**64 and recorded not in _KNOWN_IDS:
        if not ours:
            yield Difference(name, field, "random", str(ours))
    elif recorded != ours:
        yield Difference(name, field, json.dumps(recorded), json.dumps(ours))
