"""Rot in staged parts: reported with its sink, kept for a person to look at, never published and never removed."""

from pathlib import Path

import pytest

from courser.errors import CourserError, ErrorCode
from courser.testing.broker import TestBroker
from tests.staging.test_lost_ends import refuse
from tests.staging.test_staging import SINK, prepared, read, stage_part

PLACES = {
    "magic": 0,
    "user": 8,
    "part": 12,
    "batch": 16,
    "attempt": 24,
    "sink": 42,
    "record": 70,
    "body": 500,
    "end": -40,
}


def flip(path: Path, position: int) -> bytes:
    """Change one bit; return what is there then."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    return bytes(data)


@pytest.mark.parametrize("place", PLACES)
async def test_a_finished_part_that_is_damaged_is_reported_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    async with TestBroker(tmp_path) as broker:
        client = await prepared(broker)
        await stage_part(client, 0, 0, 1, "a" * 300, "b")
        await stage_part(client, 0, 1, 1, "c")
    staging = tmp_path / "data" / "staging"
    path = max(staging.glob("*.part"), key=lambda found: found.stat().st_size)
    damaged = flip(path, PLACES[place])
    async with TestBroker(tmp_path) as broker:
        (record,) = [record for record in caplog.records if path.name in record.getMessage()]
        assert record.levelname == "ERROR"
        assert "sink" in record.getMessage()
        assert SINK in record.getMessage() or place == "sink"
        assert (staging / "quarantine" / path.name).read_bytes() == damaged
        assert not path.exists()
        client = await broker.connect()
        for _ in range(2):
            with pytest.raises(CourserError, match="is damaged on disk") as raised:
                await client.publish_staged(SINK, 0, {0: 1, 1: 1})
            assert raised.value.code is ErrorCode.DAMAGED_DATA
            with pytest.raises(CourserError, match="run the task again"):
                await client.finish_stage(SINK, 0, 0, 1, 2)
            # The next start knows it too.
            await broker.restart()
        # What a task that is run again stages is published with the other part, which is sound.
        await stage_part(client, 0, 0, 2, "again")
        await client.publish_staged(SINK, 0, {0: 2, 1: 1})
        assert await read(client) == ["again", "c"]
    assert (staging / "quarantine" / path.name).read_bytes() == damaged


@pytest.mark.parametrize("place", PLACES)
async def test_a_damaged_part_of_a_decided_publish_stays_and_the_way_out_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    async with TestBroker(tmp_path) as broker:
        client = await prepared(broker)
        await stage_part(client, 0, 0, 1, "a" * 300, "b")
        broker.broker.publishing._redo.append = refuse  # type: ignore[method-assign,assignment]
        with pytest.raises(CourserError):
            await client.publish_staged(SINK, 0, {0: 1})
    (path,) = (tmp_path / "data" / "staging").glob("*.part")
    good = path.read_bytes()
    damaged = flip(path, PLACES[place])
    async with TestBroker(tmp_path) as broker:
        assert [record.levelname for record in caplog.records if path.name in record.getMessage()][-1] == "ERROR"
        client = await broker.connect()
        with pytest.raises(CourserError, match="courser sink delete") as raised:
            await client.publish_staged(SINK, 0, {0: 1})
        assert raised.value.code is ErrorCode.DAMAGED_DATA
        assert path.read_bytes() == damaged
    # A copy from a backup, say.
    path.write_bytes(good)
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        assert (await client.publish_staged(SINK, 0, {0: 1})).is_repeated
        assert await read(client) == ["a" * 300, "b"]
