"""The exchanges recorded from the real server for SDK 0.9, and frames made by hand.

``tests/captures/vsr-0.9.jsonl`` has one exchange a line. In its hex, ``{N}`` stands for N zero bytes and ``{C}`` for
the 16 bytes of the cluster field; ``...`` marks what was cut because it was too long.
"""

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from courser.records.checksum import xxh3
from courser.wire.vsr_headers import HEADER_SIZE

_FILE = Path(__file__).resolve().parent.parent / "captures" / "vsr-0.9.jsonl"
_CLUSTER = "21bb05c88727bab88d0ec27be8a72d46"

CLIENT = bytes.fromhex("01a5589071d84f21ae3ba5aaf96d6a9b")


@dataclass(frozen=True)
class Exchange:
    """One request and what the real server said."""

    section: str
    name: str
    command: str
    connection: str
    request: bytes
    channel: str
    """ok, status, result, evict, or none: no reply."""
    status: int | None
    reply: bytes

    @property
    def operation(self) -> int:
        return self.request[176]

    @property
    def code(self) -> int:
        return int.from_bytes(self.request[196:200], "little")

    @property
    def body(self) -> bytes:
        return self.request[HEADER_SIZE:]


def _bytes(text: str) -> bytes:
    return bytes.fromhex(re.sub(r"\{(\d+)\}", lambda run: "00" * int(run[1]), text).replace("{C}", _CLUSTER))


@cache
def exchanges() -> tuple[Exchange, ...]:
    """All that were recorded whole, in their order. Rows that only close or wait are left out."""
    return tuple(_read())


def _read() -> Iterator[Exchange]:
    for line in _FILE.read_text().splitlines():
        row = json.loads(line)
        request, reply = row["request"] or "", row["reply"] or ""
        if not request or "..." in request or "..." in reply:
            continue
        yield Exchange(
            section=row["section"],
            name=row["name"],
            command=row["command"],
            connection=row["conn"],
            request=_bytes(request),
            channel=row["channel"],
            status=row["status"],
            reply=_bytes(reply),
        )


def frame(
    operation: int,
    body: bytes = b"",
    *,
    code: int = 0,
    request: int = 1,
    session: int = 1,
    checksum: int | None = 0,
    client: bytes = CLIENT,
) -> bytes:
    """A request. ``checksum`` None computes it."""
    header = bytearray(HEADER_SIZE)
    struct.pack_into("<I", header, 48, HEADER_SIZE + len(body))
    header[60] = 5
    header[128:144] = client
    header[144:160] = (xxh3(body) if checksum is None else checksum).to_bytes(16, "little")
    struct.pack_into("<Q", header, 168, request)
    header[176] = operation
    struct.pack_into("<QII", header, 184, session, 0, code)
    return bytes(header) + body


def read(code: int, body: bytes = b"", *, request: int = 1) -> bytes:
    """A request that changes nothing."""
    return frame(2, body, code=code, request=request)


def masked(reply: bytes) -> bytes:
    """A reply without what its client never looks at: cluster, view, release, and from checksum to request number.

    And without the versions in an eviction: the recorded server spoke only one.
    """
    unread = 24 if reply[60:61] == b"\x0d" else 80
    return reply[:32] + bytes(16) + reply[48:52] + bytes(8) + reply[60:128] + bytes(unread) + reply[128 + unread :]


def channel_of(reply: bytes) -> tuple[str, int]:
    """How a reply reports: the channel and its number."""
    assert int.from_bytes(reply[48:52], "little") == len(reply)
    if reply[60] == 13:
        assert len(reply) == HEADER_SIZE
        assert any(reply[128:144]), "the client 0 is not taken"
        return "evict", reply[255]
    assert reply[60] == 8
    status = int.from_bytes(reply[216:220], "little")
    if status:
        assert len(reply) == HEADER_SIZE
        return "status", status
    if reply[208] in _FRAMED:
        count = int.from_bytes(reply[256:260], "little")
        assert len(reply) >= 260
        if count:
            assert (count, reply[260:264], len(reply)) == (1, bytes(4), 268)
            return "result", int.from_bytes(reply[264:268], "little")
    return "ok", 0


_FRAMED = {1, *range(64, 69), *range(128, 138), *range(139, 151), 161, 162}
"""Operations of replies that begin with a result."""
