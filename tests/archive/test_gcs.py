"""The archive on fake-gcs-server, an emulator of Google Cloud Storage. ``make check-stores`` installs it with Go.

Its XML API cannot write, so that ``gcs_front`` stands before it.
"""

import json
import random
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from courser.archive.errors import ObjectMissing, StoreRefused
from courser.archive.object_store import ObjectStore
from courser.archive.pacing import Pace
from courser.archive.settings import StoreSettings, load_archiver, store_problems, store_settings
from courser.archive.store import Creation, create, probe
from courser.archive.transfers import Range, upload
from courser.storage.local_files import LocalFileSystem
from tests.archive.brokers import archiver_of, fill, partition_of, running, settings_of, texts
from tests.archive.gcs_front import Front, running_front
from tests.archive.test_restore import digest, load, restore
from tests.servers import PATIENCE, free_port

pytestmark = pytest.mark.tools

BUCKET = "archive"
PART = 5 * 1024 * 1024


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    program = shutil.which("fake-gcs-server")
    assert program, "fake-gcs-server is not on the path; see make check-stores"
    directory, port = tmp_path_factory.mktemp("gcs"), free_port()
    address = f"127.0.0.1:{port}"
    options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    with (directory / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [program, *options, "-public-host", address, "-external-url", f"http://{address}"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _create_bucket(f"http://{address}", process)
        yield port
    finally:
        process.kill()
        process.wait()


def _create_bucket(address: str, process: "subprocess.Popen[bytes]") -> None:
    """Create it as soon as the server listens."""
    deadline = time.monotonic() + PATIENCE
    body = json.dumps({"name": BUCKET}).encode()
    request = urllib.request.Request(
        f"{address}/storage/v1/b?project=tests", body, {"Content-Type": "application/json"}
    )
    while True:
        assert process.poll() is None
        try:
            urllib.request.urlopen(request, timeout=PATIENCE).close()
        except OSError:
            assert time.monotonic() < deadline, "the server is not ready"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
        else:
            return


@pytest.fixture
def front(emulator: int) -> Iterator[Front]:
    with running_front("127.0.0.1", emulator) as found:
        yield found


def settings(front: Front, directory: Path, key_prefix: str) -> StoreSettings:
    """As the configuration gives them: a key of a service account that asks nobody for a token."""
    key = directory / "service-account.json"
    key.write_text(json.dumps({"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}))
    table = "data_maintenance.archiver"
    values = {
        "kind": "gcs",
        "gcs.bucket": BUCKET,
        "gcs.key_prefix": key_prefix,
        "gcs.credentials_file": str(key),
        "gcs.endpoint": f"http://127.0.0.1:{front.server_port}",
    }
    configuration = load_archiver(None, {}, [f"{table}.{name}={value}" for name, value in values.items()])
    assert not list(store_problems(configuration))
    return store_settings(configuration)


def test_it_is_a_store_with_conditions(front: Front, tmp_path: Path) -> None:
    store = ObjectStore(settings(front, tmp_path, "/conditions/"))
    probe(store, "v1/probe/1", bytes(16))
    assert create(store, "v1/x/a b", b"one") is Creation.MINE
    assert create(store, "v1/x/a b", b"two") is Creation.ANOTHERS
    assert store.read("v1/x/a b") == b"one"
    assert bytes(store.read_range("v1/x/a b", 1, 1)) == b"n"
    assert bytes(store.read_range("v1/x/a b", 1, 100)) == b"ne"
    assert [(found.key, found.size) for found in store.list_objects("v1/")] == [("v1/x/a b", 3)]
    assert store.list_names("v1/") == ["x"]
    store.delete("v1/x/a b")
    store.delete("v1/x/a b")
    assert store.find("v1/x/a b") is None
    with pytest.raises(ObjectMissing):
        store.read("v1/x/a b")
    # What obstore asked for is what a real store would have been asked for.
    assert {condition for _, condition in front.created} == {"0"}


def test_a_store_that_ignores_conditions_is_refused(front: Front, tmp_path: Path) -> None:
    front.ignores_conditions = True
    with pytest.raises(StoreRefused, match="overwrites objects that exist"):
        probe(ObjectStore(settings(front, tmp_path, "ignored")), "v1/probe/1", bytes(16))


@pytest.mark.parametrize("size", [0, 1000, PART, 2 * PART + 17])
def test_an_upload_is_verified(front: Front, tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    path = tmp_path / "segment"
    path.write_bytes(data)
    store = ObjectStore(settings(front, tmp_path, f"upload-{size}"))
    file = LocalFileSystem().open(path)
    assert upload(store, "v1/seg/a", Range(file, 0, size), PART, Pace(0)) == xxhash.xxh3_128_digest(data)
    file.close()
    assert store.read("v1/seg/a") == data


async def test_everything_comes_back(front: Front, tmp_path: Path) -> None:
    place = settings(front, tmp_path, "production/iggy/")
    async with running(tmp_path / "old", settings_of(store=place)) as (broker, client):
        await load(broker, client)
        before = await digest(client)
        assert await archiver_of(broker).run_once(with_active=True)
    restore(ObjectStore(place), tmp_path / "new" / "data")
    async with running(tmp_path / "new", settings_of(store=place)) as (_, client):
        assert await digest(client) == before


async def test_archived_messages_can_be_read(front: Front, tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(store=settings(front, tmp_path, "reads"))) as (broker, client):
        await fill(broker, client, "a", "b" * 3_000_000, "c")
        before = await texts(client)
        assert await archiver_of(broker).run_once()
        await partition_of(broker).trim(3)
        assert await texts(client) == before
