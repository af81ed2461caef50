"""A publish whose end the metadata has lost: the logs tell that it is done, and its sink goes on, once each."""

from pathlib import Path

import pytest

from courser.broker.settings import BrokerSettings
from courser.catalog.changes import PublishEnd
from courser.client.client import Client
from courser.errors import CourserError, ErrorCode
from courser.storage.journal_entries import JournalScan, ScannedEntry
from courser.storage.paths import JOURNAL, METADATA
from courser.testing.broker import TestBroker
from tests.staging.test_staging import SINK, prepared, read, stage_part

REBUILDING = BrokerSettings(recreate_missing_state=True)


def lose_the_end(directory: Path) -> None:
    """Damage the last entry that closes a publish, and with it all behind it."""
    path = directory / "data" / METADATA / JOURNAL
    data = bytearray(path.read_bytes())
    ends = [
        found.position
        for found in JournalScan(data).walk()
        if isinstance(found, ScannedEntry) and found.entry.kind == PublishEnd.__struct_config__.tag
    ]
    data[ends[-1] + 40] ^= 1
    path.write_bytes(data)


async def publish(client: Client, batch: int, *texts: str) -> None:
    await stage_part(client, batch, 0, 1, *texts)
    await stage_part(client, batch, 1, 1, *(text.upper() for text in texts), partition=1)
    await client.publish_staged(SINK, batch, {0: 1, 1: 1})


async def publish_and_stop(directory: Path, *, purges: bool = False, deletes: bool = False) -> None:
    async with TestBroker(directory) as broker:
        client = await prepared(broker)
        await client.send_messages("s/t", None, 0, "sent before")
        await publish(client, 0, "a", "b")
        await broker.broker.publishing.idle()
        await client.send_messages("s/t", None, 0, "sent behind")
        if purges:
            await client.purge_topic("s", "t")
        if deletes:
            await client.delete_partitions("s", "t", 1)
    assert list((directory / "data" / "staging").glob("*.part")) == []


async def test_a_publish_goes_on_by_itself_where_its_end_was_lost(tmp_path: Path) -> None:
    await publish_and_stop(tmp_path)
    lose_the_end(tmp_path)
    async with TestBroker(tmp_path, settings=REBUILDING) as broker:
        client = await broker.connect()
        sink = await client.get_sink(SINK)
        assert (sink.batch, sink.is_open) == (0, False)
        # What its driver repeats is known, and nothing is there twice.
        assert (await client.publish_staged(SINK, 0, {0: 1, 1: 1})).is_repeated
        await publish(client, 1, "c")
        assert await read(client) == ["sent before", "a", "b", "sent behind", "c"]
        assert await read(client, 1) == ["A", "B", "C"]
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        assert (await client.get_sink(SINK)).batch == 1
        assert await read(client, 1) == ["A", "B", "C"]


@pytest.mark.parametrize("purges", [False, True])
async def test_what_was_deleted_since_does_not_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, purges: bool
) -> None:
    await publish_and_stop(tmp_path, purges=purges, deletes=not purges)
    lose_the_end(tmp_path)
    async with TestBroker(tmp_path, settings=REBUILDING) as broker:
        client = await broker.connect()
        assert not (await client.get_sink(SINK)).is_open
        expected = [] if purges else ["sent before", "a", "b", "sent behind"]
        assert await read(client) == expected
        await stage_part(client, 1, 0, 1, "c")
        await client.publish_staged(SINK, 1, {0: 1})
        assert await read(client) == [*expected, "c"]
    assert ("assuming that a publish is finished" in caplog.text) == purges


async def test_a_publish_whose_parts_are_gone_and_not_in_the_log_names_the_way_out(tmp_path: Path) -> None:
    """Not the server's doing: somebody has removed the files of a publish that was only half-way."""
    async with TestBroker(tmp_path) as broker:
        client = await prepared(broker)
        await stage_part(client, 0, 0, 1, "a", "b")
        broker.broker.publishing._redo.append = refuse  # type: ignore[method-assign,assignment]
        with pytest.raises(CourserError):
            await client.publish_staged(SINK, 0, {0: 1})
    for path in (tmp_path / "data" / "staging").glob("*.part"):
        path.unlink()
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        with pytest.raises(CourserError, match="forget=True") as raised:
            await client.publish_staged(SINK, 0, {0: 1})
        assert raised.value.code is ErrorCode.DAMAGED_DATA
        assert "courser sink delete" in str(raised.value)
        await client.discard_staged(SINK, forget=True)
        await stage_part(client, 0, 0, 2, "again")
        await client.publish_staged(SINK, 0, {0: 2})
        assert await read(client) == ["again"]


async def refuse(*_arguments: object) -> None:
    raise CourserError
