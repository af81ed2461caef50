"""What the server says about itself and its clients."""

import io
import os
import zipfile

import pytest

from courser import __version__
from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode
from courser.model.messaging import Transport
from courser.model.permissions import GlobalPermissions, Permissions
from courser.records.batch import NewMessage, build_batch
from tests.handlers.scenes import Scene


async def test_statistics_are_real(scene: Scene) -> None:
    await scene.add_topic("s", "t", 3)
    await scene.add_topic("s", "u", 2)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    scene.connect()
    await scene.broker.partitions.topics[0, 0].partitions[1].append(build_batch([NewMessage(b"hello")] * 4))
    scene.clock.advance(5_000_000)
    stats = await scene.ask(scene.root, c.GetStats())
    assert isinstance(stats, r.Stats)
    counts = (stats.stream_count, stats.topic_count, stats.partition_count, stats.segment_count)
    assert counts == (1, 2, 5, 5)
    assert (stats.message_count, stats.messages_size) == (4, 256 + 4 * (48 + 5))
    assert (stats.client_count, stats.group_count) == (2, 1)
    assert (stats.run_time, stats.start_time) == (5_000_000, scene.clock.now() - 5_000_000)
    assert (stats.process_id, stats.server_version) == (os.getpid(), __version__)
    assert 0 < stats.memory_usage < stats.total_memory
    assert 0 < stats.free_disk_space <= stats.total_disk_space
    assert stats.hostname
    assert stats.thread_count >= 1


async def test_the_cluster_is_this_node(scene: Scene) -> None:
    scene.broker.node = r.Node("iggy-node", "127.0.0.1", 8090, 0, 0, 0)
    metadata = await scene.ask(scene.root, c.GetClusterMetadata())
    assert metadata == r.ClusterMetadata("single-node", [scene.broker.node])


async def test_options_are_described(scene: Scene) -> None:
    described = await scene.ask(scene.root, c.DescribeOptions(1))
    assert isinstance(described, r.OptionList)
    assert described.options[0].key == "compression_algorithm"
    assert await scene.refusal(scene.root, c.DescribeOptions(9)) is ErrorCode.INVALID_COMMAND


async def test_a_client_sees_itself(scene: Scene) -> None:
    await scene.add_topic("s", "t")
    for name in ("g", "h"):
        await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", name))
    await scene.add_user("alice", Permissions(GlobalPermissions(read_streams=True)))
    session = scene.broker.sessions.open(Transport.WEBSOCKET, "10.0.0.1:99")
    session.user_id = 1
    for name in ("h", "g"):
        await scene.ask(session, c.JoinConsumerGroup("s", "t", name))
    info = r.ClientInfo(session.client_id, 1, Transport.WEBSOCKET, "10.0.0.1:99", 2)
    groups = [r.ClientGroup(0, 0, 0), r.ClientGroup(0, 0, 1)]
    assert await scene.ask(session, c.GetMe()) == r.ClientDetails(info, groups)
    assert await scene.ask(scene.root, c.GetClient(session.client_id)) == r.ClientDetails(info, groups)


async def test_clients_are_listed_by_id_also_those_without_a_login(scene: Scene) -> None:
    sessions = [scene.root, scene.connect(), scene.connect(0)]
    listed = await scene.ask(scene.root, c.GetClients())
    assert isinstance(listed, r.ClientList)
    expected = sorted((session.client_id, session.user_id) for session in sessions)
    assert [(client.client_id, client.user_id) for client in listed.clients] == expected


async def test_clients_that_are_not_there(scene: Scene) -> None:
    assert await scene.refusal(scene.root, c.GetClient(0)) is ErrorCode.INVALID_CLIENT_ID
    missing = next(number for number in range(1, 9) if scene.broker.sessions.get(number) is None)
    assert await scene.refusal(scene.root, c.GetClient(missing)) is ErrorCode.CLIENT_NOT_FOUND
    gone = scene.connect()
    scene.broker.sessions.close(gone)
    assert await scene.refusal(scene.root, c.GetClient(gone.client_id)) is ErrorCode.CLIENT_NOT_FOUND


@pytest.mark.parametrize("compression", [1, 2, 3, 5, 6])
async def test_a_snapshot_is_a_zip_file_without_secrets(scene: Scene, compression: int) -> None:
    await scene.ask(scene.root, c.CreateUser("alice", "a secret word", True, None))
    scene.broker.operating.diagnosis.read_configuration = lambda: b"password = ******\n"
    archive = await scene.ask(scene.root, c.GetSnapshot(compression, (100,)))
    assert isinstance(archive, r.SnapshotArchive)
    with zipfile.ZipFile(io.BytesIO(archive.data)) as found:
        assert len(found.namelist()) == 5
        if compression != 6:
            assert not any(b"a secret word" in found.read(name) for name in found.namelist())


async def test_a_snapshot_is_not_for_everybody(scene: Scene) -> None:
    await scene.add_user("alice")
    assert await scene.refusal(scene.connect(1), c.GetSnapshot(1, (4,))) is ErrorCode.UNAUTHORIZED
