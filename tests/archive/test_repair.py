"""What an archive does for the local segments: repairs, deletions for free space, and the list of segments."""

from pathlib import Path

from courser.archive.settings import ArchiveMoment
from courser.client.client import Client
from courser.storage.paths import log_path
from tests.archive.brokers import archiver_of, fake_store, fill, partition_of, running, settings_of, texts
from tests.handlers.messaging import damage


async def states(client: Client) -> list[tuple[int, str, str]]:
    found = (await client.get_segments("shop/orders", partition_id=0)).segments
    return [(segment.first_offset, segment.state, segment.location) for segment in found]


async def test_the_scrubber_repairs_a_segment_from_the_archive(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await fill(broker, client, "a", "b")
        assert await archiver_of(broker).run_once()
        await fill(broker, client, "c")
        directory = partition_of(broker).log.directory
        for offset in (1, 2):
            damage(log_path(directory, offset))
        scrubber = broker.broker.scrubber
        await scrubber.scrub()
        assert (scrubber.counters.damage_count, scrubber.counters.repair_count) == (2, 1)
        found = (await client.get_topic_maintenance("shop/orders")).damages
        assert [row.first_offset for row in found] == [2], "the archive does not have this one"
        messages = await client.poll_messages("shop/orders", None, 0, count=2, auto_commit=False)
        assert [message.payload for message in messages] == [b"a", b"b"]


async def test_pressure_deletes_what_is_archived_and_lists_it_as_remote(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(moment=ArchiveMoment.SEAL), fake_store()) as (broker, client):
        await fill(broker, client, "a", "b")
        await broker.broker.retention.relieve(10**9)
        assert await states(client) == [(0, "rolled", "local"), (1, "rolled", "local")], "nothing is archived"
        assert await archiver_of(broker).run_once()
        await fill(broker, client, "c")
        assert (await states(client))[:2] == [(0, "archived", "local"), (1, "archived", "local")]
        await broker.broker.retention.relieve(10**9)
        assert await texts(client) == [(0, b"a"), (1, b"b"), (2, b"c")], "the archive has the first two"
        expected = [(0, "archived", "remote"), (1, "archived", "remote"), (2, "rolled", "local")]
        assert (await states(client))[:3] == expected
