"""The exchanges that were recorded with a real server of release 0.8."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).parent.parent / "captures" / "classic-0.8.jsonl"


@dataclass(frozen=True)
class Exchange:
    section: str
    name: str
    command: str
    connection: str
    request: bytes
    status: int | None
    """None: the server did not answer."""
    reply: bytes
    is_in_step: bool
    """Whether the server and the client still agreed on where requests begin."""

    def __str__(self) -> str:
        return f"{self.section}: {self.name}"

    @property
    def code(self) -> int:
        return int.from_bytes(self.request[4:8], "little")

    @property
    def is_close(self) -> bool:
        return self.command == "(close)"


@cache
def exchanges() -> tuple[Exchange, ...]:
    """All of them in order; those that were recorded in part, and waits, are left out."""
    return tuple(_read())


def _read() -> Iterator[Exchange]:
    for line in _FILE.read_text().splitlines():
        row = json.loads(line)
        if row["command"] == "(wait)" or "..." in row["request"]:
            continue
        reply = "" if "..." in row["reply"] else row["reply"]
        yield Exchange(
            row["section"],
            row["name"],
            row["command"],
            row["conn"],
            bytes.fromhex(row["request"]),
            row["status"],
            bytes.fromhex(reply),
            "connection" not in row,
        )
