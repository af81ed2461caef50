"""The recorded exchanges of the real servers, in their order, against Courser over TCP.

The same status and the same bytes come back, but for what ``docs/differences.md`` lists with its reason.
"""

import dataclasses

import pytest

from tests.replay.captures import Exchange, Recorded, Wire, section, sections
from tests.replay.deviations import Judgement, documented_rows
from tests.replay.playing import findings, play

SECTIONS = [(wire, name) for wire in Wire for name in sections(wire)]


@pytest.mark.parametrize(("wire", "name"), SECTIONS, ids=[f"{wire.value}-{name}" for wire, name in SECTIONS])
def test_a_section_differs_in_nothing_but_what_is_listed(wire: Wire, name: str) -> None:
    judgement = Judgement(documented_rows(), findings(wire, name))
    assert not judgement.unexcused, f"\n{judgement.report}"


def test_nothing_is_listed_that_does_not_differ() -> None:
    everything = [finding for wire, name in SECTIONS for finding in findings(wire, name)]
    judgement = Judgement(documented_rows(), everything)
    assert not judgement.idle, "\n" + "\n".join(judgement.idle)


# --- a difference is noticed ---


def changed(exchanges: list[Exchange], name: str, **changes: object) -> list[Exchange]:
    """A recording in which one exchange went otherwise."""
    assert any(exchange.name == name for exchange in exchanges)
    return [
        dataclasses.replace(exchange, **changes) if exchange.name == name else exchange  # type: ignore[arg-type]
        for exchange in exchanges
    ]


def differing(wire: Wire, name: str, exchanges: list[Exchange]) -> list[tuple[str, str]]:
    """What differs besides what always does."""
    usual = set(findings(wire, name))
    found = [(exchange.name, difference) for exchange, difference in play(wire, exchanges)]
    known = {(exchange.name, difference) for exchange, difference in usual}
    return [(title, difference.field) for title, difference in found if (title, difference) not in known]


def test_another_status_is_noticed() -> None:
    recording = changed(section(Wire.CLASSIC, "streams-topics"), "update stream missing", status=1010)
    assert differing(Wire.CLASSIC, "streams-topics", recording) == [("update stream missing", "outcome")]


def test_another_byte_is_noticed() -> None:
    exchanges = section(Wire.CLASSIC, "streams-topics")
    reply = next(exchange.reply.data for exchange in exchanges if exchange.name == "get stream by id")
    recording = changed(exchanges, "get stream by id", reply=Recorded(reply[:-1] + b"9", size=len(reply)))
    assert differing(Wire.CLASSIC, "streams-topics", recording) == [("get stream by id", "name")]


def test_an_answer_where_there_was_none_is_noticed() -> None:
    recording = changed(section(Wire.VSR, "streams"), "get streams", channel="none", status=None)
    assert differing(Wire.VSR, "streams", recording) == [("get streams", "outcome")]


def test_a_connection_that_survives_is_noticed() -> None:
    recording = changed(section(Wire.VSR, "streams"), "create stream s1 again", aftermath="closed")
    assert differing(Wire.VSR, "streams", recording) == [("create stream s1 again", "connection")]


def test_an_exchange_that_is_left_out_is_noticed() -> None:
    exchanges = section(Wire.VSR, "streams")
    recording = [exchange for exchange in exchanges if exchange.name != "create stream s2"]
    assert ("get streams", "streams") in differing(Wire.VSR, "streams", recording)
