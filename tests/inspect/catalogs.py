"""Small data directories with metadata, made as a server makes them, with secrets that are easy to find again."""

import base64
from pathlib import Path

from courser.catalog import changes as c
from courser.catalog.entities import PublishedPart, PublishTarget
from courser.catalog.opening import open_catalog
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions
from courser.model.permissions import TopicPermissions as TopicRights
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from courser.storage.journal_entries import Entry, make_entry
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import JOURNAL, METADATA, METADATA_SNAPSHOT
from courser.storage.session_file import begin_session, end_session, how_it_stopped
from tests.fakes.clocks import ManualClock

SALT = base64.b64encode(b"canary of a salt").decode().rstrip("=")
HASH = base64.b64encode(b"canary of a password's hash here").decode().rstrip("=")
PASSWORD_HASH = f"$argon2id$v=19$m=19456,t=2,p=1${SALT}${HASH}"
TOKEN_HASH = b"canary of a token's hash is here"
CANARIES = (SALT, HASH, "canary", TOKEN_HASH.hex(), base64.b64encode(TOKEN_HASH).decode()[:20])

PERMISSIONS = Permissions(
    GlobalPermissions(read_servers=True),
    {0: StreamPermissions(poll_messages=True, topics={0: TopicRights(send_messages=True)})},
)
OPTIONS = TopicOptions(message_expiry=NEVER, segment_size=4096, durability="persisted")

EVERY_COMMAND: tuple[c.AnyChange, ...] = (
    c.UserCreation("root", PASSWORD_HASH),
    c.StreamCreation("shop", b"S" * 16),
    c.TopicCreation(0, "orders", b"T" * 16, 2, OPTIONS),
    c.TopicCreation(0, "returns", b"U" * 16, 1, TopicOptions(), 5),
    c.GroupCreation(0, 0, "readers"),
    c.GroupCreation(0, 0, "writers"),
    c.GroupDeletion(0, 0, 1),
    c.UserCreation("alice", PASSWORD_HASH, True, PERMISSIONS),
    c.UserCreation("bob", PASSWORD_HASH),
    c.PasswordChange(1, PASSWORD_HASH),
    c.PermissionUpdate(1, PERMISSIONS),
    c.TokenCreation(1, "laptop", TOKEN_HASH, 1_900_000_000_000_000),
    c.TokenCreation(1, "phone", TOKEN_HASH),
    c.TokenDeletion(1, "phone"),
    c.UserUpdate(1, None, False),
    c.UserDeletion(2),
    c.PartitionCreation(0, 0, 2),
    c.PartitionDeletion(0, 0, 1),
    c.StreamCreation("depot", b"V" * 16, 7),
    c.StreamUpdate(7, "store"),
    c.TopicUpdate(0, 0, "sales", OPTIONS),
    c.TopicPurge(0, 0),
    c.StreamPurge(0),
    c.TopicDeletion(0, 5),
    c.StreamDeletion(7),
    c.UserUpdate(1, "carol", True),
)
"""One of each kind at least, as they can follow one another; ``DirectoryRemoval`` comes by itself."""

EVERY_COMMAND_OF_A_SINK: tuple[c.AnyChange, ...] = (
    c.PublishStart(
        "hourly", 1, 7, b"N" * 8, (PublishedPart(0, 3, 4096, 99),), (PublishTarget(0, 0, b"T" * 16, 1, 3, 42),), 60
    ),
    c.PublishEnd("hourly", 1),
    c.SinkRemoval("hourly"),
)
"""What a publish of staged messages leaves in the journal."""


class Catalog:
    """A running catalog."""

    def __init__(self, data_directory: Path) -> None:
        self.data_directory = data_directory
        self.files = LocalFileSystem()
        self.clock = ManualClock()
        data_directory.mkdir(0o700, exist_ok=True)
        self.open()

    def open(self) -> None:
        stop = how_it_stopped(self.files, self.data_directory)
        self.opened = open_catalog(self.files, self.data_directory, clock=self.clock, stop=stop)
        begin_session(self.files, self.data_directory)

    def perform(self, *commands: c.AnyChange) -> None:
        store, directories = self.opened.store, self.opened.directories
        for command in commands:
            store.submit(command)
            directories.carry_out(store.state, command)
            self.clock.advance(1_000_000)
            gone = [deleted.path for deleted in store.state.deleted.values() if directories.remove(deleted)]
            if gone:
                store.submit(c.DirectoryRemoval(tuple(gone)))

    def take_snapshot(self) -> None:
        self.opened.store.take_snapshot()

    def close(self) -> None:
        self.opened.store.close()
        end_session(self.files, self.data_directory)

    @property
    def journal(self) -> Path:
        return self.data_directory / METADATA / JOURNAL

    @property
    def snapshot(self) -> Path:
        return self.data_directory / METADATA / METADATA_SNAPSHOT

    def partition(self, stream_id: int, topic_id: int, name: str) -> Path:
        return self.topic(stream_id, topic_id) / "partitions" / name

    def topic(self, stream_id: int, topic_id: int) -> Path:
        return self.stream(stream_id) / "topics" / str(topic_id)

    def stream(self, stream_id: int) -> Path:
        return self.data_directory / "streams" / str(stream_id)


def busy_catalog(data_directory: Path, *, is_closed: bool = True) -> Catalog:
    """Every command twice over: some in the snapshot, the rest in the journal behind it."""
    catalog = Catalog(data_directory)
    catalog.perform(*EVERY_COMMAND)
    catalog.take_snapshot()
    catalog.perform(
        c.StreamCreation("attic", b"W" * 16),
        c.TopicCreation(8, "boxes", b"X" * 16, 1, TopicOptions()),
        c.TokenCreation(1, "watch", TOKEN_HASH),
        c.PasswordChange(1, PASSWORD_HASH),
    )
    if is_closed:
        catalog.close()
    return catalog


def small_catalog(data_directory: Path) -> Catalog:
    """A snapshot and three commands behind it; nothing in the tree depends on the last one."""
    catalog = Catalog(data_directory)
    catalog.perform(c.UserCreation("root", PASSWORD_HASH), c.StreamCreation("shop", b"S" * 16))
    catalog.take_snapshot()
    catalog.perform(
        c.TopicCreation(0, "orders", b"T" * 16, 1, TopicOptions()),
        c.PasswordChange(0, PASSWORD_HASH),
        c.TokenCreation(0, "laptop", TOKEN_HASH),
    )
    catalog.close()
    return catalog


def mark_running(data_directory: Path) -> None:
    """As if the server had been killed."""
    begin_session(LocalFileSystem(), data_directory)


def chain_of(bodies: list[c.AnyChange]) -> list[tuple[Entry, bytes]]:
    """Entries from op 0 on, linked to one another."""
    entries: list[tuple[Entry, bytes]] = []
    parent = bytes(16)
    for op, command in enumerate(bodies):
        entry = make_entry(
            op=op, timestamp=op + 1, kind=c.change_number(command), parent=parent, body=c.encode_change(command)
        )
        entries.append(entry)
        parent = entry[0].checksum
    return entries
