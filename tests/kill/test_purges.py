"""Purges that a server cannot carry out: what is acknowledged after them is there after a kill and a restart."""

import contextlib
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from tests.records.reference import read_wire
from tests.servers import RunningServer
from tests.torture.clients import Client, VsrClient

DESCRIPTOR_COUNT = 256
PARTITION_COUNT = 300
"""More than there are descriptors: each that is written to needs one."""
SYNCED = TopicOptions(compression=1, durability="persisted")
READER = Consumer(ConsumerKind.CONSUMER, 1)


def found(client: Client) -> list[bytes]:
    poll = c.PollMessages(READER, "s", "purged", 0, PollingKind.FIRST, 0, 1000, False)
    return [message.payload for message in read_wire(client.do(poll)[16:])]


def use_up_descriptors(client: Client) -> None:
    for number in range(PARTITION_COUNT):
        if client.ask(c.SendMessages("s", "many", ToPartition(number), []), [b"x"]).status:
            return
    raise AssertionError("there were enough descriptors: this proves nothing")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("purge", [c.PurgeTopic("s", "purged"), c.PurgeStream("s")], ids=["topic", "stream"])
def test_messages_after_a_purge_that_failed_survive_a_kill(tmp_path: Path, purge: c.Command) -> None:
    limit = ("prlimit", f"--nofile={DESCRIPTOR_COUNT}:{DESCRIPTOR_COUNT}")
    server = RunningServer(tmp_path, prefix=limit)
    sent = [b"after %d" % number for number in range(20)]
    acknowledged: list[bytes] = []
    with server, contextlib.ExitStack() as strangers:
        client = VsrClient(server.port).login()
        client.do(c.CreateStream("s"))
        client.do(c.CreateTopic("s", "purged", 1, SYNCED))
        client.do(c.CreateTopic("s", "many", PARTITION_COUNT, SYNCED))
        client.do(c.SendMessages("s", "purged", ToPartition(0), []), [b"before"])
        idle = [strangers.enter_context(VsrClient(server.port)).login() for _ in range(4)]
        use_up_descriptors(client)
        assert client.ask(purge).status, "the purge was carried out: this proves nothing"
        # Descriptors come back, enough for the sends.
        for stranger in idle:
            stranger.close()
        for payload in sent:
            while client.ask(c.SendMessages("s", "purged", ToPartition(0), []), [payload]).status:
                # Until the server has noticed.
                continue
            acknowledged.append(payload)
        assert [payload for payload in found(client) if payload != b"before"] == acknowledged
        client.close()
        server.kill()
    with RunningServer(tmp_path) as server, VsrClient(server.port).login() as client:
        assert found(client) == acknowledged
        client.do(purge)
        assert found(client) == []
