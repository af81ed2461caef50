"""A disk that is full, or fails, below a server that clients talk to: the right number, no lie, and life goes on."""

import errno
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.errors import ErrorCode as E
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from tests.fakes.files import FaultPlan
from tests.records.reference import read_wire
from tests.torture.clients import WIRES, Answer, Client
from tests.torture.conftest import Target
from tests.torture.fake_server import SYNCED, ServerOnFakeDisk, vsr
from tests.torture.process import MIB

every_wire = pytest.mark.parametrize("wire", WIRES)
OPTIONS = TopicOptions(compression=1)
SEND = c.SendMessages("s", "t", ToPartition(0), [])
ELSEWHERE = c.SendMessages("s", "t", ToPartition(1), [])
CONSUMER = Consumer(ConsumerKind.CONSUMER, 1)


def prepare(client: Client) -> None:
    client.do(c.CreateStream("s"))
    client.do(c.CreateTopic("s", "t", 2, OPTIONS))
    client.do(SEND, [b"before"])


def found(client: Client, partition_id: int = 0) -> list[bytes]:
    """All messages of a partition, read by SDK 0.9."""
    poll = c.PollMessages(CONSUMER, "s", "t", partition_id, PollingKind.FIRST, 0, 1000, False)
    return [message.payload for message in read_wire(client.do(poll)[16:])]


# --- no room ------------------------------------------------------------------------------------------


@every_wire
@pytest.mark.parametrize("settings", [None, SYNCED], ids=["written", "synced"])
def test_a_full_disk_refuses_messages_until_there_is_room(wire: str, settings: object) -> None:
    with ServerOnFakeDisk(settings) as server, server.connect(wire) as client, vsr(server) as reader:  # type: ignore[arg-type]
        prepare(client)
        for is_short in (False, True):
            plan = FaultPlan().fail("write_at", errno.ENOSPC, name="*.log", onwards=True, call=2 if is_short else 1)
            if is_short:
                # The kernel takes a part of the batch first.
                plan.shorten("write_at", name="*.log", take=100)
            server.fail(plan)
            for _ in range(3):
                assert client.ask(SEND, [b"refused" * 100]) == Answer(E.DISK_FULL)
            assert found(reader)[0] == b"before"
            assert b"refused" * 100 not in found(reader)
            server.fail()
            client.do(SEND, [b"after"])
        assert found(reader) == [b"before", b"after", b"after"]
        assert server.restart(), "nothing is wrong with it"
        with vsr(server) as again:
            assert found(again) == [b"before", b"after", b"after"]


@every_wire
def test_a_full_disk_refuses_new_streams_and_topics_and_nothing_is_half_there(wire: str) -> None:
    with ServerOnFakeDisk() as server, server.connect(wire) as client:
        prepare(client)
        server.fail(FaultPlan().fail("write_at", errno.ENOSPC, onwards=True))
        for command in (
            c.CreateStream("new"),
            c.CreateTopic("s", "new", 3, OPTIONS),
            c.CreatePartitions("s", "t", 1),
            c.CreateConsumerGroup("s", "t", "new"),
            c.CreateToken("token", 0),
        ):
            assert client.ask(command) == Answer(E.DISK_FULL), command
        assert client.do(c.GetStream("new")) == b""
        assert client.do(c.GetTopic("s", "new")) == b""
        server.fail()
        client.do(c.CreateStream("new"))
        client.do(c.CreateTopic("new", "t", 3, OPTIONS))
        client.do(c.SendMessages("new", "t", ToPartition(2), []), [b"x"])
        assert server.restart()


@every_wire
def test_a_full_disk_refuses_stored_offsets_and_keeps_the_old_ones(wire: str) -> None:
    with ServerOnFakeDisk() as server, server.connect(wire) as client:
        prepare(client)
        client.do(SEND, [b"more"] * 5)
        client.do(c.StoreConsumerOffset(CONSUMER, "s", "t", 0, 2))
        server.fail(FaultPlan().fail("write_at", errno.ENOSPC, name="offsets*", onwards=True))
        assert client.ask(c.StoreConsumerOffset(CONSUMER, "s", "t", 0, 4)) == Answer(E.DISK_FULL)
        server.fail()
        offset = c.GetConsumerOffset(CONSUMER, "s", "t", 0)
        assert struct.unpack_from("<QQ", client.do(offset), 4) == (5, 2)
        client.do(c.StoreConsumerOffset(CONSUMER, "s", "t", 0, 3))
        assert struct.unpack_from("<QQ", client.do(offset), 4) == (5, 3)


@every_wire
def test_a_deletion_is_possible_on_a_full_disk(wire: str) -> None:
    """The journal has room for it; and it is what makes room."""
    with ServerOnFakeDisk() as server, server.connect(wire) as client:
        prepare(client)
        client.do(c.CreateTopic("s", "big", 1, OPTIONS))
        server.fail(
            FaultPlan()
            .fail("write_at", errno.ENOSPC, name="*.log", onwards=True)
            .fail("write_at", errno.ENOSPC, name="*.tmp", onwards=True)
            .fail("make_directory", errno.ENOSPC, onwards=True)
        )
        assert client.ask(SEND, [b"x"]) == Answer(E.DISK_FULL)
        assert client.ask(c.CreateTopic("s", "new", 1, OPTIONS)) == Answer(E.DISK_FULL)
        client.do(c.DeleteTopic("s", "big"))
        server.fail()
        client.do(SEND, [b"x"])
        client.do(c.CreateTopic("s", "new", 1, OPTIONS))


# --- syncs that fail ----------------------------------------------------------------------------------


@every_wire
@pytest.mark.parametrize("with_power_cut", [False, True], ids=["kill", "power cut"])
def test_after_a_failed_sync_a_partition_is_read_only_and_others_are_not(wire: str, with_power_cut: bool) -> None:
    with ServerOnFakeDisk(SYNCED) as server, server.connect(wire) as client:
        prepare(client)
        client.do(ELSEWHERE, [b"elsewhere"])
        server.fail(FaultPlan().fail("sync", errno.EIO, name="*.log"))
        answer = client.ask(SEND, [b"not acknowledged"])
        assert answer.status in (E.PARTITION_READ_ONLY, E.STORAGE_FAILURE)
        # The disk works again, and is not believed: the same sync would succeed now without having done anything.
        server.fail()
        for _ in range(3):
            assert client.ask(SEND, [b"too late"]) == Answer(E.PARTITION_READ_ONLY)
        assert client.ask(c.StoreConsumerOffset(CONSUMER, "s", "t", 0, 0)).status in (0, E.PARTITION_READ_ONLY)
        client.do(ELSEWHERE, [b"still works"])
        client.do(c.CreateTopic("s", "new", 1, OPTIONS))
        with vsr(server) as reader:
            assert found(reader)[:1] == [b"before"]
        assert not server.restart(with_power_cut=with_power_cut), "a stop with a failed sync is not clean"
        with server.connect(wire) as again, vsr(server) as reader:
            assert found(reader)[0] == b"before"
            assert b"too late" not in found(reader)
            assert found(reader, 1) == [b"elsewhere", b"still works"]
            again.do(SEND, [b"after the restart"])
            assert found(reader)[-1] == b"after the restart"


@every_wire
def test_after_a_failed_sync_of_the_journal_metadata_is_read_only_and_messages_are_not(wire: str) -> None:
    with ServerOnFakeDisk() as server, server.connect(wire) as client:
        prepare(client)
        server.fail(FaultPlan().fail("sync", errno.EIO, name="journal.wal"))
        assert client.ask(c.CreateStream("doubtful")).status in (E.METADATA_READ_ONLY, E.STORAGE_FAILURE)
        server.fail()
        for command in (
            c.CreateStream("another"),
            c.DeleteTopic("s", "t"),
            c.CreateUser("user", "password", True, None),
            c.CreateToken("token", 0),
            c.PurgeTopic("s", "t"),
        ):
            assert client.ask(command) == Answer(E.METADATA_READ_ONLY), command
        client.do(SEND, [b"still works"])
        client.do(c.GetStreams())
        assert not server.restart(with_power_cut=True)
        with server.connect(wire) as again:
            again.do(c.GetTopic("s", "t"))
            again.do(c.CreateStream("another"))
            # What was not acknowledged may be there or not, but not in between.
            assert again.ask(c.CreateStream("doubtful")).status in (0, E.STREAM_NAME_ALREADY_EXISTS)


@every_wire
def test_a_stop_right_after_trouble(wire: str) -> None:
    """With requests under way, and a disk that takes nothing more."""
    with ServerOnFakeDisk(SYNCED) as server:
        with server.connect(wire) as client:
            prepare(client)
            server.fail(FaultPlan().fail(None, errno.EIO, onwards=True))
            client.send(client.request(SEND, [b"lost"]) + client.request(c.CreateStream("lost")))
            assert not server.restart(with_power_cut=True)
        with vsr(server) as reader:
            assert found(reader) == [b"before"]
            reader.do(SEND, [b"after"])
            assert found(reader)[-1] == b"after"


# --- a process of its own -----------------------------------------------------------------------------


def test_files_that_may_not_grow(make_target: Callable[..., Target], tmp_path: Path) -> None:
    """A limit of the system for the size of files: one partition meets it, the others go on."""
    target = make_target(prefix=("prlimit", f"--fsize={8 * MIB}"))
    with target.connect("vsr") as client, target.watch():
        client.do(c.CreateTopic("s", "big", 2, TopicOptions()))
        big = c.SendMessages("s", "big", ToPartition(0), [])
        statuses = [client.ask(big, [bytes(1_000_000)]).status for _ in range(12)]
        refused = [status for status in statuses if status]
        assert refused
        assert set(refused) <= {E.STORAGE_FAILURE, E.PARTITION_READ_ONLY, E.DISK_FULL}
        client.do(c.SendMessages("s", "big", ToPartition(1), []), [b"x"])
        kept = len(statuses) - len(refused)
        poll = c.PollMessages(CONSUMER, "s", "big", 0, PollingKind.FIRST, 0, 100, False)
        assert [len(message.payload) for message in read_wire(client.do(poll)[16:])] == [1_000_000] * kept
    target.server.stop()
