"""What a root names is what it named: objects that are intact, but older or of another place, are found everywhere."""

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from courser.archive.care import Verification, newest_intact_root, plan_removals
from courser.archive.disk_store import DiskStore
from courser.archive.errors import ArchiveDamaged
from courser.archive.reader import ArchiveReader, find_clusters
from courser.errors import StartRefused
from courser.storage.local_files import LocalFileSystem
from tests.archive.brokers import HOUR, archiver_of, fill, running, settings_of, texts
from tests.archive.older_content import KINDS, forge_older, objects, take_older
from tests.archive.recorded import MESSAGES, unpack
from tests.archive.writing import CLUSTER, Process, capture, captured, disk, plant_segment
from tests.cli.commands import Cli, forget_settings_of_others, in_this_process
from tests.fakes.clocks import ManualClock
from tests.fakes.object_store import FakeStore

START = ManualClock().now()


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process, with the archive of the test."""
    forget_settings_of_others(monkeypatch, tmp_path)
    monkeypatch.setenv("COURSER_DATA_MAINTENANCE_ARCHIVER_PATH", str(tmp_path / "archive"))
    return in_this_process(capsys)


def make(directory: Path) -> Path:
    """The same archive as the recorded one, in the form of today."""
    asyncio.run(_make(directory))
    return directory / "archive"


async def _make(directory: Path) -> None:
    settings, clock = settings_of(directory / "archive"), ManualClock()
    async with running(directory, settings, clock=clock) as (broker, client):
        for text in ("a", "b", "c"):
            await fill(broker, client, text)
            await client.create_stream(f"stream {text}")
            assert await archiver_of(broker).run_once(with_active=True)
            clock.advance(HOUR)
    async with running(directory, settings, clock=clock) as (broker, client):
        for text in ("d", "f", "g"):
            await fill(broker, client, text)
            assert await archiver_of(broker).run_once(with_active=True)
        await client.create_stream("last")
        clock.advance(HOUR)


SWAPS = [
    *((make, take_older, kind) for kind in KINDS),
    *((unpack, take_older, kind) for kind in KINDS),
    *((make, forge_older, kind) for kind in KINDS[:2]),
]


@pytest.mark.parametrize(("prepare", "swap", "kind"), SWAPS)
def test_an_object_with_older_content_is_found_and_not_restored(
    cli: Cli, tmp_path: Path, prepare: Callable[[Path], Path], swap: Callable[[Path, str], None], kind: str
) -> None:
    archive = prepare(tmp_path)
    assert cli("archive", "verify").code == 0
    swap(archive, kind)
    newest = str(objects(archive, kind)[-1].relative_to(archive / "v1"))
    for options in ((), ("--quick",)):
        verified = cli("archive", "verify", "-o", "json", *options)
        assert verified.code == 2
        (finding,) = json.loads(verified.out)
        assert (finding["kind"], newest.endswith(finding["key"])) == ("damaged", True)
    target = tmp_path / "new" / "data"
    refused = cli("archive", "restore", str(target))
    assert (refused.code, newest in refused.err, "--accept-older" in refused.err) == (1, True, True)
    assert not (target / "metadata").exists()
    assert cli("archive", "prune", "--keep", "0s", "--yes").code == (1 if kind != "meta/*" else 0)
    with pytest.raises(StartRefused, match="--accept-older"):
        asyncio.run(start(tmp_path / "empty", archive))


async def start(directory: Path, archive: Path) -> list[bytes]:
    async with running(directory, settings_of(archive, restore_on_start=True)) as (_, client):
        return [payload for _, payload in await texts(client)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_run_is_restored_if_that_is_accepted(cli: Cli, tmp_path: Path, kind: str) -> None:
    archive = make(tmp_path)
    take_older(archive, kind)
    done = cli("archive", "restore", str(tmp_path / "new" / "data"), "--accept-older", "-o", "json")
    assert (done.code, "using the run before it" in done.err) == (0, True)
    expected = [b"a", b"b", b"c", b"d", b"f", b"g"]
    count = json.loads(done.out)["message_count"]
    # The runs of the same epoch have the same metadata.
    assert count == {"man/*/*/*": 5, "meta/*": 6, "root/*/*": 6}[kind]
    restored = asyncio.run(start(tmp_path / "new", tmp_path / "other"))
    assert restored == expected[:count]


def test_a_restore_to_a_time_passes_over_no_damage_in_silence(cli: Cli, tmp_path: Path) -> None:
    archive = make(tmp_path)
    roots = objects(archive, "root/*/*")
    time = datetime.fromtimestamp((START + HOUR // 2 * 3) / 1_000_000, UTC).isoformat()
    given = ("archive", "restore", str(tmp_path / "new"), "--until", time)
    roots[1].write_bytes(roots[0].read_bytes())
    refused = cli(*given)
    assert (refused.code, "the content of another object" in refused.err) == (1, True)
    done = cli(*given, "--accept-older", "-o", "json")
    assert (done.code, "using the run before it" in done.err) == (0, True)
    assert json.loads(done.out)["time"] == START


def test_an_archive_of_the_first_form_is_restored_and_continued(cli: Cli, tmp_path: Path) -> None:
    archive = unpack(tmp_path)
    assert cli("archive", "restore", str(tmp_path / "new" / "data")).code == 0
    assert asyncio.run(start(tmp_path / "new", tmp_path / "other")) == MESSAGES
    asyncio.run(_continue(tmp_path, archive))
    assert cli("archive", "verify").code == 0
    (cluster,) = find_clusters(DiskStore(LocalFileSystem(), archive, b""))
    found, _ = newest_intact_root(ArchiveReader(DiskStore(LocalFileSystem(), archive, b""), cluster))
    assert found is not None
    assert found.root.metadata_checksum
    assert all(partition.manifest_checksum for partition in found.root.partitions), "also those that did not change"


async def _continue(directory: Path, archive: Path) -> None:
    async with running(directory, settings_of(archive)) as (broker, client):
        await fill(broker, client, "h")
        assert await archiver_of(broker).run_once()
        assert [payload for _, payload in await texts(client)] == [*MESSAGES, b"h"]


def test_a_copy_of_the_bucket_with_older_content_is_not_restored(tmp_path: Path) -> None:
    archive = make(tmp_path)
    take_older(archive, "root/*/*")
    shutil.copytree(archive, tmp_path / "new" / "data")
    with pytest.raises(StartRefused, match="another object"):
        asyncio.run(_start_with_copy(tmp_path))


async def _start_with_copy(directory: Path) -> None:
    async with running(directory / "new", settings_of(directory / "other", recreate_missing_state=True)):
        pass


def test_damage_keeps_everything_from_being_pruned() -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 40)
    process = Process(store, file_system)
    for end in (10, 25, 40):
        process.run(capture(captured((0,), open_end=end)))
    reader = ArchiveReader(store, CLUSTER)
    assert plan_removals(reader, 10**18)
    roots = [key for key in store.objects if key.startswith(reader.keys.roots)]
    kept = store.objects[roots[0]]
    store.objects[roots[0]] = store.objects[roots[1]]
    with pytest.raises(ArchiveDamaged):
        plan_removals(reader, 0)
    store.objects[roots[0]] = kept
    found = reader.newest_root()
    assert found is not None
    assert not list(Verification(reader, found, reads_bytes=True).findings())
