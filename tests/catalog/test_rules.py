"""Every rule of the catalog with the number that clients get, every limit at its last allowed and first refused value.

A rejected command leaves no trace: neither in the state nor in the journal (``rejection`` checks both).
"""

from dataclasses import dataclass

import pytest

from courser.catalog import changes as c
from courser.catalog.entities import ID_MAX, UsedIds, User
from courser.catalog.rules import PARTITION_COUNT_MAX, TOKEN_COUNT_MAX, USER_COUNT_MAX
from courser.catalog.store import CatalogStore
from courser.errors import ErrorCode
from courser.model.topic_options import TopicOptions
from tests.catalog.scenes import HASH, MANY_SLOTS, living, rejection, uuid

OPTIONS = TopicOptions()
NAME_255 = "n" * 255
NAME_256 = "n" * 256
NAME_OF_256_BYTES = "é" * 128
HALF_A_PAIR = "\ud800"

SCENE: tuple[c.AnyChange, ...] = (
    c.UserCreation("root", HASH),
    c.UserCreation("alice", HASH),
    c.TokenCreation(1, "laptop", bytes(32)),
    c.StreamCreation("zero", uuid(0)),
    c.StreamCreation("gone", uuid(1)),
    c.StreamCreation("five", uuid(2), 5),
    c.StreamDeletion(1),
    c.TopicCreation(0, "zero", uuid(3), 3, OPTIONS),
    c.TopicCreation(0, "gone", uuid(4), 0, OPTIONS),
    c.TopicCreation(0, "five", uuid(5), 0, OPTIONS, 5),
    c.TopicDeletion(0, 1),
    c.GroupCreation(0, 0, "zero"),
    c.GroupCreation(0, 0, "gone"),
    c.GroupCreation(0, 0, "five", 5),
    c.GroupDeletion(0, 0, 1),
)


@pytest.fixture
def store() -> CatalogStore:
    """Streams, topics and groups 0 and 5; 1 was deleted, 2 to 4 were never used. Users 0 (root) and 1."""
    return living(1, SCENE, MANY_SLOTS).opened.store


@dataclass(frozen=True)
class Forbidden:
    """A command that must be rejected."""

    command: c.AnyChange
    code: ErrorCode
    number: int


def forbidden(command: c.AnyChange, code: ErrorCode, number: int) -> Forbidden:
    return Forbidden(command, code, number)


def create_topic(**changes: object) -> c.TopicCreation:
    values: dict[str, object] = {
        "stream_id": 0,
        "name": "new",
        "uuid": uuid(9),
        "partition_count": 1,
        "options": OPTIONS,
        "topic_id": None,
    }
    return c.TopicCreation(**(values | changes))  # type: ignore[arg-type]


CASES: list[Forbidden] = [
    # streams
    forbidden(c.StreamCreation("", uuid(9)), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.StreamCreation(NAME_256, uuid(9)), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.StreamCreation(NAME_OF_256_BYTES, uuid(9)), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.StreamCreation(HALF_A_PAIR, uuid(9)), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.StreamCreation("new", b"short"), ErrorCode.INVALID_COMMAND, 3),
    forbidden(c.StreamCreation("new", uuid(9), -1), ErrorCode.INVALID_COMMAND, 3),
    forbidden(c.StreamCreation("new", uuid(9), ID_MAX + 1), ErrorCode.INVALID_COMMAND, 3),
    forbidden(c.StreamCreation("new", uuid(9), 0), ErrorCode.STREAM_ID_ALREADY_EXISTS, 1011),
    forbidden(c.StreamCreation("new", uuid(9), 1), ErrorCode.STREAM_ID_ALREADY_EXISTS, 1011),
    forbidden(c.StreamCreation("new", uuid(9), 5), ErrorCode.STREAM_ID_ALREADY_EXISTS, 1011),
    forbidden(c.StreamCreation("zero", uuid(9)), ErrorCode.STREAM_NAME_ALREADY_EXISTS, 1012),
    forbidden(c.StreamUpdate(1, "new"), ErrorCode.STREAM_NOT_FOUND, 1009),
    forbidden(c.StreamUpdate(0, ""), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.StreamUpdate(0, "five"), ErrorCode.STREAM_NAME_ALREADY_EXISTS, 1012),
    forbidden(c.StreamDeletion(1), ErrorCode.STREAM_NOT_FOUND, 1009),
    forbidden(c.StreamPurge(2), ErrorCode.STREAM_NOT_FOUND, 1009),
    # topics
    forbidden(create_topic(stream_id=1), ErrorCode.STREAM_NOT_FOUND, 1009),
    forbidden(create_topic(name=""), ErrorCode.INVALID_FORMAT, 4),
    forbidden(create_topic(name=NAME_256), ErrorCode.INVALID_FORMAT, 4),
    forbidden(create_topic(name=HALF_A_PAIR), ErrorCode.INVALID_FORMAT, 4),
    forbidden(create_topic(uuid=bytes(17)), ErrorCode.INVALID_COMMAND, 3),
    forbidden(create_topic(topic_id=-1), ErrorCode.INVALID_COMMAND, 3),
    forbidden(create_topic(topic_id=2**32), ErrorCode.INVALID_COMMAND, 3),
    forbidden(create_topic(topic_id=0), ErrorCode.TOPIC_ID_ALREADY_EXISTS, 2012),
    forbidden(create_topic(topic_id=1), ErrorCode.TOPIC_ID_ALREADY_EXISTS, 2012),
    forbidden(create_topic(name="zero"), ErrorCode.TOPIC_NAME_ALREADY_EXISTS, 2013),
    forbidden(create_topic(partition_count=-1), ErrorCode.TOO_MANY_PARTITIONS, 2015),
    forbidden(create_topic(partition_count=PARTITION_COUNT_MAX + 1), ErrorCode.TOO_MANY_PARTITIONS, 2015),
    forbidden(create_topic(options=TopicOptions(durability=HALF_A_PAIR)), ErrorCode.INVALID_COMMAND, 3),
    forbidden(create_topic(options=TopicOptions(segment_size=2**64)), ErrorCode.INVALID_COMMAND, 3),
    forbidden(c.TopicUpdate(1, 0, "new", OPTIONS), ErrorCode.STREAM_NOT_FOUND, 1009),
    forbidden(c.TopicUpdate(0, 1, "new", OPTIONS), ErrorCode.TOPIC_NOT_FOUND, 2010),
    forbidden(c.TopicUpdate(0, 0, NAME_256, OPTIONS), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.TopicUpdate(0, 0, "five", OPTIONS), ErrorCode.TOPIC_NAME_ALREADY_EXISTS, 2013),
    forbidden(c.TopicDeletion(0, 1), ErrorCode.TOPIC_NOT_FOUND, 2010),
    forbidden(c.TopicDeletion(1, 0), ErrorCode.STREAM_NOT_FOUND, 1009),
    forbidden(c.TopicPurge(0, 2), ErrorCode.TOPIC_NOT_FOUND, 2010),
    # partitions
    forbidden(c.PartitionCreation(0, 1, 1), ErrorCode.TOPIC_NOT_FOUND, 2010),
    forbidden(c.PartitionCreation(0, 0, 0), ErrorCode.TOO_MANY_PARTITIONS, 2015),
    forbidden(c.PartitionCreation(0, 0, -1), ErrorCode.TOO_MANY_PARTITIONS, 2015),
    forbidden(c.PartitionCreation(0, 0, PARTITION_COUNT_MAX + 1), ErrorCode.TOO_MANY_PARTITIONS, 2015),
    forbidden(c.PartitionDeletion(0, 1, 1), ErrorCode.TOPIC_NOT_FOUND, 2010),
    forbidden(c.PartitionDeletion(0, 0, 0), ErrorCode.TOO_MANY_PARTITIONS, 2015),
    forbidden(c.PartitionDeletion(0, 0, 4), ErrorCode.INVALID_PARTITIONS_COUNT, 2019),
    # groups
    forbidden(c.GroupCreation(0, 1, "new"), ErrorCode.TOPIC_NOT_FOUND, 2010),
    forbidden(c.GroupCreation(0, 0, ""), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.GroupCreation(0, 0, NAME_256), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.GroupCreation(0, 0, "new", -1), ErrorCode.INVALID_COMMAND, 3),
    forbidden(c.GroupCreation(0, 0, "new", 0), ErrorCode.GROUP_ID_ALREADY_EXISTS, 5001),
    forbidden(c.GroupCreation(0, 0, "new", 1), ErrorCode.GROUP_ID_ALREADY_EXISTS, 5001),
    forbidden(c.GroupCreation(0, 0, "zero"), ErrorCode.GROUP_NAME_ALREADY_EXISTS, 5004),
    forbidden(c.GroupDeletion(0, 0, 1), ErrorCode.GROUP_NOT_FOUND, 5000),
    forbidden(c.GroupDeletion(0, 1, 0), ErrorCode.TOPIC_NOT_FOUND, 2010),
    # users and tokens
    forbidden(c.UserCreation("ab", HASH), ErrorCode.INVALID_USERNAME, 43),
    forbidden(c.UserCreation("n" * 51, HASH), ErrorCode.INVALID_USERNAME, 43),
    forbidden(c.UserCreation("n" + HALF_A_PAIR, HASH), ErrorCode.INVALID_USERNAME, 43),
    forbidden(c.UserCreation("bob", "a plain password"), ErrorCode.INVALID_PASSWORD, 44),
    forbidden(c.UserCreation("bob", "$argon2i$weaker"), ErrorCode.INVALID_PASSWORD, 44),
    forbidden(c.UserCreation("alice", HASH), ErrorCode.USER_ALREADY_EXISTS, 46),
    forbidden(c.UserUpdate(2, "bob"), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.UserUpdate(1, "ab"), ErrorCode.INVALID_USERNAME, 43),
    forbidden(c.UserUpdate(1, "root"), ErrorCode.USER_ALREADY_EXISTS, 46),
    forbidden(c.UserUpdate(0, None, False), ErrorCode.CANNOT_CHANGE_PERMISSIONS, 49),
    forbidden(c.UserDeletion(0), ErrorCode.CANNOT_DELETE_USER, 48),
    forbidden(c.UserDeletion(2), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.PasswordChange(2, HASH), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.PasswordChange(1, "a plain password"), ErrorCode.INVALID_PASSWORD, 44),
    forbidden(c.PermissionUpdate(0, None), ErrorCode.CANNOT_CHANGE_PERMISSIONS, 49),
    forbidden(c.PermissionUpdate(2, None), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.TokenCreation(2, "new", bytes(32)), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.TokenCreation(1, "", bytes(32)), ErrorCode.INVALID_TOKEN_NAME, 50),
    forbidden(c.TokenCreation(1, NAME_256, bytes(32)), ErrorCode.INVALID_TOKEN_NAME, 50),
    forbidden(c.TokenCreation(1, HALF_A_PAIR, bytes(32)), ErrorCode.INVALID_TOKEN_NAME, 50),
    forbidden(c.TokenCreation(1, "new", b"a plain token"), ErrorCode.INVALID_COMMAND, 3),
    forbidden(c.TokenCreation(1, "laptop", bytes(32)), ErrorCode.TOKEN_ALREADY_EXISTS, 51),
    forbidden(c.TokenDeletion(1, "other"), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.TokenDeletion(2, "laptop"), ErrorCode.RESOURCE_NOT_FOUND, 20),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{type(case.command).__name__}-{case.number}")
def test_what_the_rules_forbid_is_rejected_with_its_number(store: CatalogStore, case: Forbidden) -> None:
    assert rejection(store, case.command).code == case.code == case.number


ALLOWED: list[c.AnyChange] = [
    c.StreamCreation("n", uuid(9)),
    c.StreamCreation(NAME_255, uuid(9)),
    c.StreamCreation("é" * 127, uuid(9)),
    c.StreamCreation("../../etc\n\0 \U0001f600", uuid(9)),
    c.StreamCreation("gone", uuid(9)),
    c.StreamUpdate(0, "zero"),
    create_topic(partition_count=0),
    create_topic(partition_count=PARTITION_COUNT_MAX),
    create_topic(stream_id=5, name="zero"),
    c.TopicUpdate(0, 0, "zero", OPTIONS),
    c.PartitionCreation(0, 0, PARTITION_COUNT_MAX),
    c.PartitionDeletion(0, 0, 3),
    c.GroupCreation(0, 0, "gone"),
    c.UserCreation("abc", HASH),
    c.UserCreation("n" * 50, HASH),
    c.UserUpdate(0, "administrator", True),
    c.UserUpdate(1, "alice", False),
    c.UserUpdate(1),
    c.PasswordChange(0, HASH),
    c.UserDeletion(1),
    c.TokenCreation(0, "laptop", bytes(32)),
    c.TokenCreation(1, NAME_255, bytes(32)),
    c.DirectoryRemoval(("never heard of",)),
]


@pytest.mark.parametrize("command", ALLOWED, ids=lambda command: type(command).__name__)
def test_what_is_just_allowed_is_accepted(store: CatalogStore, command: c.AnyChange) -> None:
    store.submit(command)


def test_a_user_has_at_most_so_many_tokens(store: CatalogStore) -> None:
    for number in range(TOKEN_COUNT_MAX - 1):
        store.submit(c.TokenCreation(1, f"token {number}", bytes(32)))
    assert rejection(store, c.TokenCreation(1, "one more", bytes(32))).code == 52
    store.submit(c.TokenDeletion(1, "laptop"))
    store.submit(c.TokenCreation(1, "one more", bytes(32)))


def test_there_are_at_most_so_many_users(store: CatalogStore) -> None:
    for number in range(3, USER_COUNT_MAX):
        store.state.users[number] = User(number, f"user {number}", HASH, True, 0, None, {})
    store.submit(c.UserCreation("the last", HASH))
    assert len(store.state.users) == USER_COUNT_MAX
    assert rejection(store, c.UserCreation("too many", HASH)).code == 55


def test_a_command_larger_than_an_entry_is_rejected(store: CatalogStore) -> None:
    huge = c.DirectoryRemoval(("x" * (64 * 1024 * 1024),))
    assert rejection(store, huge).code == ErrorCode.INVALID_COMMAND


# --- ids ---


def test_ids_go_up_and_never_come_back(store: CatalogStore) -> None:
    for kind in range(3):
        made = store.submit(c.StreamCreation(f"new {kind}", uuid(9)))
        assert made is store.state.streams[6 + kind]
        store.submit(c.StreamDeletion(6 + kind))
    for kind in range(3):
        store.submit(create_topic(name=f"new {kind}"))
        store.submit(c.TopicDeletion(0, 6 + kind))
        store.submit(c.GroupCreation(0, 0, f"new {kind}"))
        store.submit(c.GroupDeletion(0, 0, 6 + kind))
        store.submit(c.UserCreation(f"new {kind}", HASH))
        store.submit(c.UserDeletion(2 + kind))
    assert rejection(store, c.StreamCreation("new", uuid(9), 8)).code == 1011
    assert rejection(store, create_topic(topic_id=8)).code == 2012
    assert rejection(store, c.GroupCreation(0, 0, "new", 8)).code == 5001
    assert store.state.user_ids.next_id == 5


def test_a_hole_may_be_used_once(store: CatalogStore) -> None:
    for number in (3, 2, 4):
        store.submit(c.StreamCreation(f"hole {number}", uuid(9), number))
        assert rejection(store, c.StreamCreation("again", uuid(9), number)).code == 1011
        store.submit(c.StreamDeletion(number))
        assert rejection(store, c.StreamCreation("again", uuid(9), number)).code == 1011
    assert store.state.stream_ids == UsedIds(6, [])


def test_topics_of_different_streams_have_their_own_ids(store: CatalogStore) -> None:
    store.submit(create_topic(stream_id=5, topic_id=1))
    store.submit(create_topic(stream_id=5, name="next"))
    assert sorted(store.state.streams[5].topics) == [1, 2]


def test_partition_ids_come_back_with_another_incarnation(store: CatalogStore) -> None:
    topic = store.state.streams[0].topics[0]
    first = topic.partitions[2]
    store.submit(c.PartitionDeletion(0, 0, 1))
    store.submit(c.PartitionCreation(0, 0, 1))
    assert topic.partitions[2].partition_id == first.partition_id == 2
    assert topic.partitions[2].incarnation == store.last_op
    assert topic.partitions[2].incarnation > first.incarnation


def test_the_largest_id_leaves_the_smaller_ones_to_others(store: CatalogStore) -> None:
    store.submit(c.StreamCreation("largest", uuid(9), ID_MAX))
    for expected in (2, 3, 4, 6):
        store.submit(c.StreamCreation(f"stream {expected}", uuid(9)))
        assert store.state.stream_by_name[f"stream {expected}"] == expected


def test_when_all_ids_are_used_nothing_more_is_made(store: CatalogStore) -> None:
    store.state.stream_ids = UsedIds(ID_MAX + 1, [(9, 10)])
    store.submit(c.StreamCreation("the last", uuid(9)))
    assert store.state.stream_by_name["the last"] == 9
    assert rejection(store, c.StreamCreation("too late", uuid(9))).code == ErrorCode.INVALID_COMMAND
