"""What the tests of the catalog share: a life in twenty kinds of commands, and a look at every byte of a disk."""

from courser.catalog import changes as c
from courser.catalog.entities import PublishedPart, PublishTarget
from courser.catalog.store import CatalogSettings, CatalogStore
from courser.errors import CommandRejected
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from courser.storage.paths import JOURNAL, METADATA, METADATA_SNAPSHOT
from tests.fakes.files import FakeFileSystem
from tests.simulator.catalog_simulation import DATA, CatalogWorld

JOURNAL_PATH = DATA / METADATA / JOURNAL
SNAPSHOT_PATH = DATA / METADATA / METADATA_SNAPSHOT
MANY_SLOTS = CatalogSettings()
HASH = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaGhhc2g"
OPTIONS = TopicOptions(message_expiry=NEVER, max_topic_size=2**34, compression=1, durability="persisted")
PERMISSIONS = Permissions(
    GlobalPermissions(manage_servers=True),
    {0: StreamPermissions(read_stream=True, topics={0: TopicPermissions(poll_messages=True)})},
)


def uuid(number: int) -> bytes:
    return bytes([number]) * 16


LIFE: tuple[c.AnyChange, ...] = (
    c.UserCreation("root", HASH),
    c.StreamCreation("orders", uuid(1)),
    c.TopicCreation(0, "placed", uuid(2), 2, OPTIONS),
    c.GroupCreation(0, 0, "billing"),
    c.StreamUpdate(0, "all orders"),
    c.PartitionCreation(0, 0, 1),
    c.TopicPurge(0, 0),
    c.UserCreation("alice", HASH, True, PERMISSIONS),
    c.UserUpdate(1, "alice b", False),
    c.TokenCreation(1, "laptop", bytes(32), 2**50),
    c.PartitionDeletion(0, 0, 2),
    c.TopicUpdate(0, 0, "new orders", TopicOptions()),
    c.GroupCreation(0, 0, "audit", 7),
    c.GroupDeletion(0, 0, 0),
    c.TopicCreation(0, "returned", uuid(3), 1, TopicOptions(), 5),
    c.StreamPurge(0),
    c.TopicDeletion(0, 5),
    c.PasswordChange(1, HASH + "2"),
    c.PermissionUpdate(1, None),
    c.TokenDeletion(1, "laptop"),
    c.StreamCreation("logs", uuid(4), 9),
    c.StreamDeletion(0),
    c.UserDeletion(1),
    c.TopicCreation(9, "web", uuid(5), 2, TopicOptions()),
    c.PublishStart(
        "a query", 0, 3, bytes(8), (PublishedPart(0, 7, 900, 5),), (PublishTarget(9, 0, uuid(5), 1, 8, 40),)
    ),
    c.PublishStart("a job", 0, 0, bytes(8), (), (), 604_800_000_000),
)
"""Every kind of command, each of them allowed; ``DirectoryRemoval`` follows every removal by itself.

The ends of publishes name an op, which depends on what was removed before: they are in ``tests/staging``.
"""


def living(seed: int, commands: tuple[c.AnyChange, ...] = LIFE, settings: CatalogSettings = MANY_SLOTS) -> CatalogWorld:
    """A world in which these commands were performed."""
    world = CatalogWorld.new(seed, settings)
    world.start()
    for command in commands:
        assert world.perform(command), command
    return world


def image(disk: FakeFileSystem) -> dict[str, bytes]:
    """Every byte of every file."""
    return {str(path): disk.contents(path) for path in disk.files()}


def rejection(store: CatalogStore, command: c.AnyChange) -> CommandRejected:
    """Why a command is rejected; it must change nothing."""
    before = store.state.encode(), store.last_op
    try:
        store.submit(command)
    except CommandRejected as error:
        assert (store.state.encode(), store.last_op) == before
        return error
    raise AssertionError(f"{command} was accepted")
