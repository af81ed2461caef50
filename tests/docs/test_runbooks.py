"""docs/runbooks.md as an operator follows it: its commands run as they stand there, only in other directories.

``server.toml`` is the configuration that docs/archive.md shows, for a directory and for S3. A server or a standby
that a line starts goes on until the test ends it, as an operator would with Ctrl-C.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

import courser
from courser.archive.reader import ArchiveReader, find_clusters, open_store
from courser.archive.restore_plan import RestoreSelection, plan_restore
from courser.archive.settings import StoreKind, StoreSettings
from courser.client.sync import SyncClient, connect_sync
from courser.storage.local_files import LocalFileSystem
from tests.archive.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from tests.docs.blocks import blocks_of, text_of
from tests.servers import PATIENCE, RunningServer
from tests.torture.process import until

PAGE = "docs/runbooks.md"
_ARCHIVER = "data_maintenance.archiver"
_QUICK = {f"{_ARCHIVER}.interval": "100ms", f"{_ARCHIVER}.active_interval": "100ms"}
"""Nobody wants to wait for minutes."""
_BINARIES = Path(sys.executable).parent


def commands_of(title: str, number: int) -> list[str]:
    """The lines of a block of a section. Blocks in lists are indented."""
    section = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text_of(PAGE), re.MULTILINE | re.DOTALL)
    assert section, f"there is no section {title}"
    blocks = re.findall(r"^( *)```sh\n(.*?)^\1```$", section[1], re.MULTILINE | re.DOTALL)
    return textwrap.dedent(blocks[number][1]).splitlines()


SECTIONS = {
    "Check a backup": 2,
    "The machine is lost": 1,
    "The store is reachable, but Courser's tools are not": 2,
    "Somebody deleted or purged the wrong topic": 2,
    "Keep a cold standby": 3,
    "The old primary says that another server has taken over the archive": 1,
}


def test_every_block_of_the_page_is_run_here() -> None:
    assert len(re.findall(r"^ *```sh$", text_of(PAGE), re.MULTILINE)) == sum(SECTIONS.values())
    for title, count in SECTIONS.items():
        assert commands_of(title, count - 1)


# --- machines ---


class Archive:
    """Where all machines of a test archive to."""

    def __init__(self, directory: Path, s3: SeaweedServer | None, bucket: str) -> None:
        disk, cloud = [block.text for block in blocks_of("docs/archive.md") if block.kind == "toml"][:2]
        self.environment: dict[str, str] = {}
        self.bucket = bucket
        path = directory / "archive"
        if s3 is None:
            self.configuration = disk.replace("/mnt/archive/courser", str(path))
            self.settings = StoreSettings(path=path)
            return
        s3.client.create_bucket(Bucket=bucket)
        self.configuration = cloud.replace("https://minio.example.com", s3.endpoint).replace("my-backups", bucket)
        self.settings = s3.settings(bucket, key_prefix="production/")
        assert self.settings.kind is StoreKind.S3
        self.environment = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": s3.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def message_count(self) -> int:
        """How many messages a restore would bring back."""
        store = open_store(self.settings, LocalFileSystem(), bytes(16))
        clusters = find_clusters(store)
        reader = ArchiveReader(store, clusters[0]) if clusters else None
        return (
            0
            if reader is None or reader.newest_root() is None
            else plan_restore(reader, RestoreSelection()).message_count
        )


class Machine:
    """A machine with a ``server.toml``. At the end, nothing runs on it."""

    def __init__(self, directory: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
        directory.mkdir()
        self.directory = directory
        self.data = directory / "local_data"
        self.archive = archive
        (directory / "server.toml").write_text(archive.configuration)
        for name, value in archive.environment.items():
            # The server inherits them too.
            monkeypatch.setenv(name, value)
        self.server: RunningServer | None = None
        self._follower: subprocess.Popen[str] | None = None
        self.until = ""
        """What replaces the time on the page."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._follower is not None:
            self._follower.kill()
            self._follower.wait()
        if self.server is not None:
            self.server.__exit__(kind, error, trace)

    def run(self, title: str, number: int = 0) -> str:
        """Run a block line by line. Returns what was printed."""
        return "".join(self.type(line) for line in commands_of(title, number))

    def type(self, line: str) -> str:
        places = {"/var/lib/courser": str(self.data), "/tmp/": f"{self.directory}/", "my-backups": self.archive.bucket}
        line = re.sub("|".join(places), lambda found: places[found[0]], line)
        line = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", self.until, line)
        words = shlex.split(line)
        if words[:2] == ["courser", "serve"]:
            self.serve(*words[2:])
            return ""
        if "--follow" in words:
            self.follow(words)
            return ""
        ran = subprocess.run(
            ["sh", "-c", line],
            cwd=self.directory,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
        return ran.stdout + ran.stderr

    def environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("IGGY_", "COURSER_"))}
        address = {} if self.server is None else {"COURSER_URL": f"iggy://iggy:iggy@{self.server.address}"}
        # Sessions of Spark live for seconds here: the best machine code would be ready when they end.
        java = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        # The books of jobs: those of other runs are about other topics.
        state = {"COURSER_STATE_HOME": str(self.directory / "state")}
        return inherited | address | java | state | {"PATH": f"{_BINARIES}:{os.environ['PATH']}"}

    # --- what goes on ---

    def serve(self, *arguments: str) -> RunningServer:
        """Start the server, with nothing but ``server.toml`` and ports of its own."""
        if self.server is not None:
            # It was stopped before.
            assert self.server.process.poll() is not None
        arguments = (*arguments, "--with-default-root-credentials") if not arguments[2:] else arguments
        self.server = RunningServer(self.directory, settings=_QUICK, arguments=arguments)
        return self.server.start()

    def client(self) -> SyncClient:
        assert self.server is not None
        return connect_sync(f"iggy://iggy:iggy@{self.server.address}")

    def follow(self, words: list[str]) -> None:
        with (self.directory / "follow.jsonl").open("w") as output:
            self._follower = subprocess.Popen(
                [str(_BINARIES / words[0]), *words[1:], "--interval", "100ms", "-o", "jsonl"],
                cwd=self.directory,
                env=self.environment(),
                stdout=output,
                text=True,
            )

    def has_followed(self, message_count: int) -> bool:
        assert self._follower is not None
        assert self._follower.poll() is None
        return f'"message_count":{message_count},' in (self.directory / "follow.jsonl").read_text().replace(" ", "")

    def interrupt(self) -> int:
        """Ctrl-C."""
        assert self._follower is not None
        self._follower.send_signal(signal.SIGINT)
        return self._follower.wait(PATIENCE)


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(params=["disk", "s3"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    is_cloud = request.param == "s3"
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60]
    return Archive(tmp_path, request.getfixturevalue("seaweed") if is_cloud else None, name)


@pytest.fixture
def primary(tmp_path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with Machine(tmp_path / "primary", archive, monkeypatch) as machine:
        yield machine


@pytest.fixture
def other(tmp_path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with Machine(tmp_path / "other", archive, monkeypatch) as machine:
        yield machine


def load(machine: Machine, *texts: str) -> None:
    """Send messages, and wait until they are archived."""
    with machine.client() as client:
        client.create_stream("shop", if_not_exists=True)
        client.create_topic("shop/orders", if_not_exists=True)
        before = machine.archive.message_count()
        client.send_messages("shop/orders", partitioning=0, messages=list(texts))
    until(lambda: machine.archive.message_count() == before + len(texts), "the archiving of all messages", PATIENCE)


def payloads(machine: Machine, topic: str = "shop/orders") -> list[bytes]:
    with machine.client() as client:
        messages = client.poll_messages(topic, None, 0, count=100, auto_commit=False, skip_missing=True)
        return [message.payload for message in messages]


# --- the page ---


@pytest.mark.parametrize("archive", ["disk"], indirect=True)
def test_check_a_backup(primary: Machine) -> None:
    server = primary.serve("--config", "server.toml")
    load(primary, "a", "b")
    shown = primary.run("Check a backup", 0)
    assert "0 damaged or missing" in shown
    assert "shop/orders" in shown
    shown = primary.run("Check a backup", 1)
    assert "restored 2 messages" in shown
    assert server.stop() == 0


def test_the_machine_is_lost(primary: Machine, other: Machine) -> None:
    server = primary.serve("--config", "server.toml")
    load(primary, "a", "b")
    server.kill()
    other.run("The machine is lost")
    assert payloads(other) == [b"a", b"b"]
    with pytest.raises(AssertionError, match="another server has taken over"):
        primary.serve("--config", "server.toml")


@pytest.mark.parametrize("archive", ["s3"], indirect=True)
def test_the_store_is_reachable_but_the_tools_are_not(primary: Machine, other: Machine) -> None:
    server = primary.serve("--config", "server.toml")
    load(primary, "a", "b")
    server.kill()
    other.run("The store is reachable, but Courser's tools are not", 0)
    assert payloads(other) == [b"a", b"b"]
    other.run("The store is reachable, but Courser's tools are not", 1)
    load(other, "c")
    assert other.server is not None
    assert other.server.stop() == 0
    other.serve("--config", "server.toml")
    assert payloads(other) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("archive", ["disk"], indirect=True)
def test_somebody_deleted_the_wrong_topic(primary: Machine) -> None:
    primary.serve("--config", "server.toml")
    load(primary, "a", "b")
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    primary.until = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    until(lambda: datetime.now(UTC) > moment, "the moment", PATIENCE)
    with primary.client() as client:
        client.delete_topic("shop/orders")
    until(lambda: primary.archive.message_count() == 0, "the archiving of the purge", PATIENCE)
    assert "restored 2 messages" in primary.run("Somebody deleted or purged the wrong topic", 0)
    with primary.client() as client:
        client.create_topic("shop/orders-rescued")
    primary.run("Somebody deleted or purged the wrong topic", 1)
    assert payloads(primary, "shop/orders-rescued") == [b"a", b"b"]


@pytest.mark.parametrize("archive", ["s3"], indirect=True)
def test_keep_a_cold_standby(primary: Machine, other: Machine) -> None:
    title = "Keep a cold standby"
    primary.serve("--config", "server.toml")
    load(primary, "a")
    other.run(title, 0)
    until(lambda: other.has_followed(1), "the first copy", PATIENCE)
    load(primary, "b")
    until(lambda: other.has_followed(2), "the second copy", PATIENCE)
    assert primary.server is not None
    assert primary.server.stop() == 0
    assert other.interrupt() == 130
    other.run(title, 1)
    assert payloads(other) == [b"a", b"b"]
    load(other, "c")
    with pytest.raises(AssertionError, match="another server has taken over"):
        primary.serve("--config", "server.toml")
    primary.run(title, 2)
    until(lambda: primary.has_followed(3), "the third copy", PATIENCE)
    assert primary.interrupt() == 130


@pytest.mark.parametrize("archive", ["disk"], indirect=True)
def test_the_other_server_was_started_by_mistake(primary: Machine, other: Machine) -> None:
    server = primary.serve("--config", "server.toml")
    load(primary, "a")
    other.run("The machine is lost")
    until(lambda: "refusing all writes" in server.output, "the refusal", PATIENCE)
    with primary.client() as client, pytest.raises(courser.CourserError, match="taken over"):
        client.send_messages("shop/orders", partitioning=0, messages=["lost"])
    server.stop()
    assert other.server is not None
    assert other.server.stop() == 0
    primary.run("The old primary says that another server has taken over the archive")
    assert payloads(primary) == [b"a"]
    load(primary, "b")
