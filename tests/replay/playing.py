"""Each section is played once, however many tests ask for what came out."""

import asyncio
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from courser.broker.settings import USUAL_TOPIC_OPTIONS, BrokerSettings
from tests.replay.captures import Exchange, Wire, section
from tests.replay.deviations import Finding
from tests.replay.player import Player
from tests.replay.server import running_server

_FIVE_MESSAGES = 5 * (256 + 48 + 200)
"""Bytes: the real server, with segments of 1 KiB, put five messages of 200 bytes into each."""

_SETTINGS = {
    (Wire.CLASSIC, "segments"): BrokerSettings(
        topic_defaults=msgspec.structs.replace(USUAL_TOPIC_OPTIONS, segment_size=_FIVE_MESSAGES)
    )
}


def play(wire: Wire, exchanges: Iterable[Exchange], settings: BrokerSettings | None = None) -> list[Finding]:
    """Play exchanges against an empty server; return what differs."""

    async def run(directory: Path) -> list[Finding]:
        async with running_server(directory, settings) as server:
            player = Player(server, wire)
            await player.play(exchanges)
            return player.findings

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(run(Path(directory) / "data"))


@cache
def findings(wire: Wire, name: str) -> tuple[Finding, ...]:
    """What differs in a section."""
    return tuple(play(wire, section(wire, name), _SETTINGS.get((wire, name))))
