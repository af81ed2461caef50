"""A server on a disk that really runs full: refusals with their number, deletions that make room, a clean stop."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.errors import ErrorCode as E
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.storage.local_files import LocalFileSystem
from courser.storage.recovery_cases import StopKind
from courser.storage.session_file import how_it_stopped
from tests.power.disks import run
from tests.records.reference import read_wire
from tests.servers import RunningServer
from tests.torture.clients import WIRES, Client, VsrClient
from tests.torture.process import until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

OPTIONS = TopicOptions(compression=1)
CONSUMER = Consumer(ConsumerKind.CONSUMER, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(path))
    yield path
    run("umount", "--lazy", str(path))


def fill(client: Client, topic: str) -> int:
    """Send until the disk is full, then ever less. Return how many messages were taken."""
    send = c.SendMessages("s", topic, ToPartition(0), [])
    count = 0
    for size in (1_000_000, 100_000, 10_000, 1_000, 1):
        for _ in range(10_000):
            answer = client.ask(send, [bytes(size)])
            if answer.status:
                assert answer.status == E.DISK_FULL
                break
            count += 1
        else:
            raise AssertionError("the disk does not get full")
    return count


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("synced", [False, True], ids=["written", "synced"])
def test_a_server_whose_disk_gets_full(small_disk: Path, wire: str, synced: bool) -> None:
    settings = {
        "system.partition.enforce_fsync": str(synced).lower(),
        "system.partition.messages_required_to_save": "1",
    }
    server = RunningServer(small_disk, settings=settings | {"system.logging.file_enabled": "false"})
    with server, WIRES[wire](server.port).login() as client, VsrClient(server.port).login() as reader:
        client.do(c.CreateStream("s"))
        for topic in ("kept", "big"):
            client.do(c.CreateTopic("s", topic, 1, OPTIONS))
        client.do(c.SendMessages("s", "kept", ToPartition(0), []), [b"kept"])
        count = fill(client, "big")
        for command in (c.CreateTopic("s", "new", 50, OPTIONS), c.CreateStream("new")):
            assert client.ask(command).status == E.DISK_FULL, command
        poll = c.PollMessages(CONSUMER, "s", "big", 0, PollingKind.LAST, 0, 1, False)
        (last,) = read_wire(reader.do(poll)[16:])
        assert last.offset == count - 1
        # The way out: something is deleted.
        client.do(c.DeleteTopic("s", "big"))
        client.do(c.GetStream("s"))
        until(lambda: not client.ask(c.CreateTopic("s", "new", 1, OPTIONS)).status, "room for a topic")
        client.do(c.SendMessages("s", "kept", ToPartition(0), []), [bytes(1_000_000)])
        assert server.stop() == 0
    assert how_it_stopped(LocalFileSystem(), server.data) is StopKind.CLEAN
    with server, VsrClient(server.port).login() as reader:
        poll = c.PollMessages(CONSUMER, "s", "kept", 0, PollingKind.FIRST, 0, 10, False)
        assert [len(message.payload) for message in read_wire(reader.do(poll)[16:])] == [4, 1_000_000]


def test_a_full_disk_at_a_stop_and_a_start(small_disk: Path, tmp_path: Path) -> None:
    """Nothing is lost. A start that finds no room at all says so, and the next one that finds some is a good one."""
    server = RunningServer(
        tmp_path / "server",
        settings={"system.path": small_disk / "data", "system.logging.file_enabled": "false"},
    )
    server.data = small_disk / "data"
    poll = c.PollMessages(CONSUMER, "s", "big", 0, PollingKind.LAST, 0, 1, False)
    with server, VsrClient(server.port).login() as client:
        client.do(c.CreateStream("s"))
        client.do(c.CreateTopic("s", "big", 1, OPTIONS))
        count = fill(client, "big")
        server.stop()
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        # There may be a page that a file of the last life gives up.
        with server, VsrClient(server.port).login() as client:
            assert client.ask(c.SendMessages("s", "big", ToPartition(0), []), [bytes(100_000)]).status == E.DISK_FULL
    except AssertionError as refusal:
        if "free space on this disk" not in str(refusal):
            raise
    ballast.unlink()
    run("mount", "-o", "remount,size=44m", str(small_disk))
    for _ in range(2):
        with server, VsrClient(server.port).login() as client:
            (last,) = read_wire(client.do(poll)[16:])
            assert last.offset == count - 1
            client.do(c.SendMessages("s", "big", ToPartition(0), []), [b"more"])
            count += 1
