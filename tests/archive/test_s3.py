"""The archive on a real S3 server, with boto3 as a second opinion."""

import asyncio
import hashlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

import courser
from courser.archive.errors import ArchiveFailure, ObjectMissing
from courser.archive.object_store import ObjectStore
from courser.archive.pacing import Pace
from courser.archive.reader import ArchiveReader, find_clusters
from courser.archive.restore_plan import RestoreSelection, plan_restore
from courser.archive.restoring import Restorer
from courser.archive.store import Creation, create, probe
from courser.archive.transfers import Range, upload
from courser.broker.archive.archive_share import Backlog
from courser.storage.local_files import LocalFileSystem
from tests.archive.brokers import HOUR, archiver_of, backlog_of, fill, partition_of, running, settings_of, texts
from tests.archive.seaweed import ACCESS_KEY, READER_KEY, READER_SECRET, SECRET_KEY, SeaweedServer
from tests.archive.test_restore import digest, load
from tests.fakes.clocks import ManualClock
from tests.servers import PATIENCE, RunningServer

PART = 5 * 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as running_server:
        yield running_server


@pytest.fixture
def bucket(server: SeaweedServer, request: pytest.FixtureRequest) -> str:
    name = "b-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    server.client.create_bucket(Bucket=name)
    return name


def test_it_is_a_store_with_conditions(server: SeaweedServer, bucket: str) -> None:
    store = ObjectStore(server.settings(bucket, key_prefix="/production/iggy/"))
    assert store.name == f"s3://{bucket}/production/iggy"
    probe(store, "v1/probe/1", bytes(16))
    assert create(store, "v1/x/a", b"one") is Creation.MINE
    assert create(store, "v1/x/a", b"two") is Creation.ANOTHERS
    assert store.read("v1/x/a") == b"one"
    assert store.read_range("v1/x/a", 1, 1) == b"n"
    assert server.objects(bucket) == {"production/iggy/v1/x/a": 3}
    assert [found.key for found in store.list_objects("v1/")] == ["v1/x/a"]
    assert "x" in store.list_names("v1/"), "this store also lists folders that are empty now"
    store.delete("v1/x/a")
    store.delete("v1/x/a")
    assert store.find("v1/x/a") is None
    with pytest.raises(ObjectMissing):
        store.read("v1/x/a")


@pytest.mark.parametrize("size", [0, 1000, PART, 2 * PART + 17])
def test_an_upload_is_verified_by_what_the_store_reports(
    server: SeaweedServer, bucket: str, tmp_path: Path, size: int
) -> None:
    data = random.Random(size).randbytes(size)
    path = tmp_path / "segment"
    path.write_bytes(data)
    store = ObjectStore(server.settings(bucket))
    file = LocalFileSystem().open(path)
    assert upload(store, "v1/seg/a", Range(file, 0, size), PART, Pace(0)) == xxhash.xxh3_128_digest(data)
    file.close()
    found = store.find("v1/seg/a")
    assert found is not None
    assert found.size == size
    assert server.client.get_object(Bucket=bucket, Key="v1/seg/a")["Body"].read() == data
    parts = [hashlib.md5(data[start : start + PART]).digest() for start in range(0, max(size, 1), PART)]
    tag = parts[0].hex() if len(parts) == 1 else f"{hashlib.md5(b''.join(parts)).hexdigest()}-{len(parts)}"
    assert found.tag == tag, "otherwise every upload is read back"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"bucket": "no-such-bucket"}, "404|NoSuchBucket|not found"),
        ({"secret_access_key": "wrong"}, "403|Signature"),
        ({"access_key_id": READER_KEY, "secret_access_key": READER_SECRET}, "403|denied"),
        ({"endpoint": "http://127.0.0.1:9"}, "error sending request|connect"),
    ],
)
def test_what_is_wrong_with_a_store_is_said(
    server: SeaweedServer, bucket: str, values: dict[str, str], words: str
) -> None:
    store = ObjectStore(server.settings(values.pop("bucket", bucket), **values))
    with pytest.raises(ArchiveFailure, match=f"(?i){words}"):
        probe(store, "v1/probe/1", bytes(16))


async def test_everything_comes_back_from_a_bucket(server: SeaweedServer, bucket: str, tmp_path: Path) -> None:
    settings = settings_of(store=server.settings(bucket, key_prefix="production/iggy/"))
    async with running(tmp_path / "old", settings) as (broker, client):
        await load(broker, client)
        before = await digest(client)
        assert await archiver_of(broker).run_once(with_active=True)
        assert archiver_of(broker).failure is None
    objects = server.objects(bucket)
    assert all(key.startswith("production/iggy/v1/") for key in objects)
    shutil.rmtree(tmp_path / "old")
    store = ObjectStore(server.settings(bucket, key_prefix="production/iggy/"))
    target = tmp_path / "new" / "data"
    target.mkdir(parents=True)
    plan = plan_restore(ArchiveReader(store, find_clusters(store)[0]), RestoreSelection())
    Restorer(store, LocalFileSystem(), target).restore(plan)
    async with running(tmp_path / "new", settings) as (_, client):
        assert await digest(client) == before


async def test_messages_are_read_from_a_bucket(server: SeaweedServer, bucket: str, tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(store=server.settings(bucket))) as (broker, client):
        await fill(broker, client, "a", "b" * 3_000_000, "c" * 3_000_000, "d")
        before = await texts(client)
        await client.update_topic("shop/orders", local_retention_size=1)
        assert await archiver_of(broker).run_once()
        await broker.broker.retention.clean_all()
        assert not partition_of(broker).log.segments
        assert await texts(client) == before
        await client.send_messages("shop/orders", partitioning=0, messages=["e"])
        assert await texts(client) == [*before, (4, b"e")]


async def test_the_recipe_of_the_guide(server: SeaweedServer, bucket: str, tmp_path: Path) -> None:
    """Copy the prefix with another tool, and start with ``recreate_missing_state``."""
    settings = settings_of(store=server.settings(bucket, key_prefix="production/iggy/"))
    async with running(tmp_path / "old", settings) as (broker, client):
        await load(broker, client)
        before = await digest(client)
        assert await archiver_of(broker).run_once(with_active=True)
    target = tmp_path / "new" / "data"
    for key in server.objects(bucket, "production/iggy/"):
        path = target / key.removeprefix("production/iggy/")
        path.parent.mkdir(parents=True, exist_ok=True)
        server.client.download_file(bucket, key, str(path))
    again = settings_of(tmp_path / "other", recreate_missing_state=True)
    async with running(tmp_path / "new", again) as (_, client):
        assert await digest(client) == before


async def test_a_server_catches_up_after_its_store_was_down(server: SeaweedServer, bucket: str, tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(store=server.settings(bucket))) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
        server.stop()
        await fill(broker, client, "b")
        assert not await archiver_of(broker).run_once()
        assert (await backlog_of(broker)).size > 0
        assert [payload for _, payload in await texts(client)] == [b"a", b"b"]
        server.start()
        async with asyncio.timeout(PATIENCE):
            # The store takes requests before it has found all its volumes.
            while not await archiver_of(broker).run_once():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert await backlog_of(broker) == Backlog()
    logs = [key for key in server.objects(bucket) if key.endswith(".log")]
    assert len(logs) == 2, "nothing is uploaded twice"


@pytest.mark.parametrize("is_removed", [True, False])
async def test_a_bucket_that_was_emptied_or_removed_is_gone_until_it_is_back(
    server: SeaweedServer, bucket: str, tmp_path: Path, is_removed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    settings = settings_of(store=server.settings(bucket), expiry=HOUR)
    async with running(tmp_path, settings, clock=clock) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
        saved = {key: server.client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in server.objects(bucket)}
        for key in saved:
            server.client.delete_object(Bucket=bucket, Key=key)
        if is_removed:
            server.client.delete_bucket(Bucket=bucket)
        await fill(broker, client, "b")
        assert not await archiver_of(broker).run_once()
        assert archiver_of(broker).is_gone
        assert sum("the archive is gone" in record.getMessage() for record in caplog.records) == 1
        clock.advance(2 * HOUR)
        await broker.broker.retention.clean_all()
        assert len(partition_of(broker).log.segments) == 2
        if is_removed:
            server.client.create_bucket(Bucket=bucket)
        assert server.objects(bucket) == {}, "nothing is written there"
        for key, data in saved.items():
            server.client.put_object(Bucket=bucket, Key=key, Body=data)
        assert await archiver_of(broker).run_once()
        await broker.broker.retention.clean_all()
        assert len(partition_of(broker).log.segments) == 0
        assert [payload for _, payload in await texts(client)] == [b"a", b"b"]


async def test_a_server_that_was_killed_comes_back_from_the_bucket_as_another_process(
    server: SeaweedServer, bucket: str, tmp_path: Path
) -> None:
    table = "data_maintenance.archiver"
    settings = {
        f"{table}.enabled": "true",
        f"{table}.kind": "s3",
        f"{table}.interval": "100ms",
        f"{table}.active_interval": "100ms",
        f"{table}.restore_on_start": "true",
        f"{table}.s3.bucket": bucket,
        f"{table}.s3.region": "us-east-1",
        f"{table}.s3.endpoint": server.endpoint,
        f"{table}.s3.key_id": ACCESS_KEY,
        f"{table}.s3.key_secret": SECRET_KEY,
    }
    store = ObjectStore(server.settings(bucket))
    with RunningServer(tmp_path / "old", settings=settings) as old:
        async with courser.connect(f"iggy://iggy:iggy@{old.address}") as client:
            await client.create_stream("shop")
            await client.create_topic("shop", "orders")
            await client.send_messages("shop/orders", partitioning=0, messages=["a", "b", "c"])
        async with asyncio.timeout(PATIENCE):
            # The archiver is in another process.
            while _archived_count(store) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        old.kill()
    shutil.rmtree(tmp_path / "old")
    new = RunningServer(tmp_path / "new", settings=settings).start()
    try:
        async with courser.connect(f"iggy://iggy:iggy@{new.address}") as client:
            assert await texts(client) == [(0, b"a"), (1, b"b"), (2, b"c")]
    finally:
        code = new.stop()
    assert code == 0, new.output


def _archived_count(store: ObjectStore) -> int:
    clusters = find_clusters(store)
    root = ArchiveReader(store, clusters[0]).newest_root() if clusters else None
    if root is None:
        return 0
    return plan_restore(ArchiveReader(store, clusters[0]), RestoreSelection()).message_count
