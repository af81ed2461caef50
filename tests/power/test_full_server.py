"""A server on a disk that really runs full: refusals with their number, deletions that make room, a clean stop."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.errors import ErrorCode as E
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.server.server import write_certificate
from courser.storage.local_files import LocalFileSystem
from courser.storage.recovery_cases import StopKind
from courser.storage.session_file import how_it_stopped
from tests.power.disks import run
from tests.processes.processes import children_of
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


class ServerOnFullDisk(RunningServer):
    """It may find no room for the file that says that it is ready."""

    def _is_ready(self) -> bool:
        try:
            socket.create_connection((self.host, self.port)).close()
        except ConnectionRefusedError:
            return False
        return True


def occupy(disk: Path) -> Path:
    """Leave no byte of a disk free. Returns the file to remove."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def test_a_full_disk_at_a_stop_and_a_start(small_disk: Path, tmp_path: Path) -> None:
    """Nothing is lost, everything can be read without any room, and the next start that finds some is a good one."""
    server = ServerOnFullDisk(
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
    ballast = occupy(small_disk)
    with server, VsrClient(server.port).login() as client:
        assert client.ask(c.SendMessages("s", "big", ToPartition(0), []), [bytes(100_000)]).status == E.DISK_FULL
        (last,) = read_wire(client.do(poll)[16:])
        assert last.offset == count - 1
    ballast.unlink()
    run("mount", "-o", "remount,size=44m", str(small_disk))
    for _ in range(2):
        with server, VsrClient(server.port).login() as client:
            (last,) = read_wire(client.do(poll)[16:])
            assert last.offset == count - 1
            client.do(c.SendMessages("s", "big", ToPartition(0), []), [b"more"])
            count += 1


def test_a_file_about_the_server_takes_the_room_of_the_one_before(small_disk: Path) -> None:
    write_certificate(small_disk / "runtime", b"a" * 5000)
    occupy(small_disk)
    write_certificate(small_disk / "runtime", b"b" * 5000)
    (path,) = (small_disk / "runtime").iterdir()
    assert path.read_bytes() == b"b" * 5000
    with pytest.raises(OSError, match="No space left"):
        write_certificate(small_disk / "runtime", b"c" * 10_000)
    assert list((small_disk / "runtime").iterdir()) == [], "half of one, or that of another server, is worse than none"


@pytest.mark.parametrize("process_count", [1, 2])
def test_a_purge_on_a_full_disk_frees_it_at_once(small_disk: Path, process_count: int) -> None:
    settings = {"system.logging.file_enabled": "false", "server.processes": process_count}
    server = RunningServer(small_disk, settings=settings)
    with server, VsrClient(server.port).login() as client:
        client.do(c.CreateStream("s"))
        for topic in ("one", "two"):
            client.do(c.CreateTopic("s", topic, 1, OPTIONS))
        for topic in ("one", "two"):
            for _ in range(2):
                assert fill(client, topic) > 0
                client.do(c.PurgeTopic("s", topic))
                assert free_share(small_disk) > 0.5
        assert server.stop() == 0


def free_share(disk: Path) -> float:
    found = os.statvfs(disk)
    return found.f_bfree / found.f_blocks


def takes(client: Client, topic: str) -> bool:
    return not client.ask(c.SendMessages("s", topic, ToPartition(0), []), [b"more"]).status


def test_a_process_that_is_killed_on_a_full_disk_comes_back(small_disk: Path) -> None:
    settings = {"system.logging.file_enabled": "false", "server.processes": 2}
    server = RunningServer(small_disk, settings=settings)
    topics = ("one", "two")
    with server, VsrClient(server.port).login() as client:
        client.do(c.CreateStream("s"))
        for topic in topics:
            client.do(c.CreateTopic("s", topic, 1, OPTIONS))
            client.do(c.SendMessages("s", topic, ToPartition(0), []), [topic.encode()])
        fill(client, "one")
        occupy(small_disk)
        (old,) = children_of(server)
        os.kill(old, signal.SIGKILL)
        until(lambda: children_of(server) not in ([], [old]), "another process")
        # A connection may have been to the process that was killed. Requests wait for the new one.
        with VsrClient(server.port).login() as reader:
            for topic in topics:
                poll = c.PollMessages(CONSUMER, "s", topic, 0, PollingKind.FIRST, 0, 1, False)
                (first,) = read_wire(reader.do(poll)[16:])
                assert first.payload == topic.encode()
                # More than what is allocated for the next messages.
                send = c.SendMessages("s", topic, ToPartition(0), [])
                assert reader.ask(send, [bytes(4_000_000)]).status == E.DISK_FULL
            (small_disk / "ballast").unlink()
            for topic in topics:
                reader.do(c.PurgeTopic("s", topic))
            for topic in topics:
                until(partial(takes, reader, topic), "room for messages")
        assert server.stop() == 0
