"""The archive on Azurite, Microsoft's emulator of Azure's blob storage. ``make check-stores`` installs it with npm."""

import base64
import email.utils
import hashlib
import hmac
import random
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from courser.archive.errors import ObjectMissing
from courser.archive.object_store import ObjectStore
from courser.archive.pacing import Pace
from courser.archive.settings import StoreKind, StoreSettings
from courser.archive.store import Creation, create, probe
from courser.archive.transfers import Range, upload
from courser.storage.local_files import LocalFileSystem
from tests.archive.brokers import archiver_of, fill, partition_of, running, settings_of, texts
from tests.archive.test_restore import digest, load, restore
from tests.servers import PATIENCE, free_port

pytestmark = pytest.mark.tools

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that Azurite always has."""
CONTAINER = "archive"
PART = 5 * 1024 * 1024


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = shutil.which("azurite-blob")
    assert program, "azurite-blob is not on the path; see make check-stores"
    directory, port = tmp_path_factory.mktemp("azurite"), free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(directory)]
    with (directory / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [program, *options, "--silent", "--skipApiVersionCheck", "--disableTelemetry"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        address = f"http://127.0.0.1:{port}/{ACCOUNT}"
        _create_container(address, process)
        yield address
    finally:
        process.kill()
        process.wait()


def _create_container(address: str, process: "subprocess.Popen[bytes]") -> None:
    """Create it as soon as the server listens."""
    deadline = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None
        date = email.utils.formatdate(usegmt=True)
        headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
        names = "\n".join(f"{name}:{value}" for name, value in headers.items())
        text = "PUT" + 12 * "\n" + f"{names}\n/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        signature = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
        request = urllib.request.Request(f"{address}/{CONTAINER}?restype=container", method="PUT", headers=headers)
        try:
            urllib.request.urlopen(request, timeout=PATIENCE).close()
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert time.monotonic() < deadline, "the server is not ready"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
        else:
            return


def settings(endpoint: str, key_prefix: str) -> StoreSettings:
    return StoreSettings(
        kind=StoreKind.AZURE,
        bucket=CONTAINER,
        account=ACCOUNT,
        secret_access_key=KEY,
        endpoint=endpoint,
        key_prefix=key_prefix,
    )


def test_it_is_a_store_with_conditions(endpoint: str) -> None:
    store = ObjectStore(settings(endpoint, "/conditions/"))
    probe(store, "v1/probe/1", bytes(16))
    assert create(store, "v1/x/a", b"one") is Creation.MINE
    assert create(store, "v1/x/a", b"two") is Creation.ANOTHERS
    assert store.read("v1/x/a") == b"one"
    assert store.read_range("v1/x/a", 1, 1) == b"n"
    assert [found.key for found in store.list_objects("v1/")] == ["v1/x/a"]
    assert store.list_names("v1/") == ["x"]
    store.delete("v1/x/a")
    store.delete("v1/x/a")
    assert store.find("v1/x/a") is None
    with pytest.raises(ObjectMissing):
        store.read("v1/x/a")


@pytest.mark.parametrize("size", [0, 1000, PART, 2 * PART + 17])
def test_an_upload_is_verified(endpoint: str, tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    path = tmp_path / "segment"
    path.write_bytes(data)
    store = ObjectStore(settings(endpoint, f"upload-{size}"))
    file = LocalFileSystem().open(path)
    assert upload(store, "v1/seg/a", Range(file, 0, size), PART, Pace(0)) == xxhash.xxh3_128_digest(data)
    file.close()
    assert store.read("v1/seg/a") == data


async def test_everything_comes_back(endpoint: str, tmp_path: Path) -> None:
    place = settings(endpoint, "production/iggy/")
    async with running(tmp_path / "old", settings_of(store=place)) as (broker, client):
        await load(broker, client)
        before = await digest(client)
        assert await archiver_of(broker).run_once(with_active=True)
    restore(ObjectStore(place), tmp_path / "new" / "data")
    async with running(tmp_path / "new", settings_of(store=place)) as (_, client):
        assert await digest(client) == before


async def test_archived_messages_can_be_read(endpoint: str, tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(store=settings(endpoint, "reads"))) as (broker, client):
        await fill(broker, client, "a", "b" * 3_000_000, "c")
        before = await texts(client)
        assert await archiver_of(broker).run_once()
        await partition_of(broker).trim(3)
        assert await texts(client) == before
