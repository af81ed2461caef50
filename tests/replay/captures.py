"""The recorded exchanges of the real servers: ``tests/captures``, one JSON object per line, in the order sent."""

import json
import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from tests.replay.rebuilding import rebuild

CAPTURES = Path(__file__).resolve().parent.parent / "captures"

_CLUSTER = "21bb05c88727bab88d0ec27be8a72d46"
"""What `{C}` stands for."""
_CUT = re.compile(r"\.\.\.\((?:(\d+) bytes|ZIP data)\)$")


class Wire(Enum):
    """A protocol generation."""

    CLASSIC = "classic"
    VSR = "vsr"


FILES = {Wire.CLASSIC: "classic-0.8.jsonl", Wire.VSR: "vsr-0.9.jsonl"}


@dataclass(frozen=True)
class Recorded:
    """Bytes of a recording; of long ones only the beginning was kept."""

    data: bytes
    is_cut: bool = False
    size: int | None = None
    """Of the whole; None if it was cut and nobody wrote down where."""


@dataclass(frozen=True)
class Exchange:
    """One request, and what the real server did."""

    wire: Wire
    section: str
    name: str
    command: str
    """Its name, without the number; "(close)" and "(wait)" are things that the client does."""
    connection: str
    """The label of the connection that carried it."""
    recorded_request: Recorded
    channel: str
    """How it was answered: ok, result, status, evict or none."""
    status: int | None
    reply: Recorded
    note: str
    aftermath: str
    """What became of the connection: "usable", or as the recording puts it."""

    @property
    def request(self) -> bytes:
        """The whole frame. Long ones are made each time: some are of 64 MB."""
        recorded = self.recorded_request
        return rebuild(self.wire.value, self.name, recorded.data) if recorded.is_cut else recorded.data

    @property
    def title(self) -> str:
        """``section/name``, as the list of deviations refers to it."""
        return f"{self.section}/{self.name}"

    @property
    def is_action(self) -> bool:
        """Whether this is no exchange, but something that the client does."""
        return self.command.startswith("(")


@cache
def exchanges(wire: Wire) -> tuple[Exchange, ...]:
    """All of a recording."""
    lines = (CAPTURES / FILES[wire]).read_text(encoding="utf-8").splitlines()
    return tuple(_exchange(wire, json.loads(line)) for line in lines)


def sections(wire: Wire) -> list[str]:
    """The names of the sections, in their order. Each began on an empty server."""
    return list(dict.fromkeys(exchange.section for exchange in exchanges(wire)))


def section(wire: Wire, name: str) -> list[Exchange]:
    """The exchanges of one section."""
    return [exchange for exchange in exchanges(wire) if exchange.section == name]


def _exchange(wire: Wire, row: dict[str, str | int | None]) -> Exchange:
    status = row["status"]
    assert status is None or isinstance(status, int)
    command = re.sub(r" \(.*", "", str(row["command"])) if not str(row["command"]).startswith("(") else row["command"]
    return Exchange(
        wire=wire,
        section=str(row["section"]),
        name=str(row["name"]),
        command=str(command),
        connection=str(row["conn"]),
        recorded_request=parse_bytes(str(row["request"])),
        channel=str(row["channel"]) if "channel" in row else _classic_channel(status),
        status=status,
        reply=parse_bytes(str(row["reply"])),
        note=str(row.get("note") or ""),
        aftermath=str(row.get("connection") or "usable").replace("then closed", "closed"),
    )


def _classic_channel(status: int | None) -> str:
    if status is None:
        return "none"
    return "ok" if status == 0 else "status"


def parse_bytes(text: str) -> Recorded:
    """Read hex as the recordings write it: `{N}` is N zero bytes, `{C}` a constant, `...(N bytes)` was cut."""
    cut = _CUT.search(text)
    if cut is not None:
        text = text[: cut.start()]
    text = text.replace("{C}", _CLUSTER)
    text = re.sub(r"\{(\d+)\}", lambda zeros: "00" * int(zeros.group(1)), text)
    # What was cut may end in half a byte.
    data = bytes.fromhex(text[: len(text) // 2 * 2])
    if cut is None:
        return Recorded(data, size=len(data))
    return Recorded(data, is_cut=True, size=int(cut.group(1)) if cut.group(1) else None)
