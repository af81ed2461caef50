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
    c.CreateUser("root", HASH),
    c.CreateUser("alice", HASH),
    c.CreateToken(1, "laptop", bytes(32)),
    c.CreateStream("zero", uuid(0)),
    c.CreateStream("gone", uuid(1)),
    c.CreateStream("five", uuid(2), 5),
    c.DeleteStream(1),
    c.CreateTopic(0, "zero", uuid(3), 3, OPTIONS),
    c.CreateTopic(0, "gone", uuid(4), 0, OPTIONS),
    c.CreateTopic(0, "five", uuid(5), 0, OPTIONS, 5),
    c.DeleteTopic(0, 1),
    c.CreateGroup(0, 0, "zero"),
    c.CreateGroup(0, 0, "gone"),
    c.CreateGroup(0, 0, "five", 5),
    c.DeleteGroup(0, 0, 1),
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


def create_topic(**changes: object) -> c.CreateTopic:
    values: dict[str, object] = {
        "stream_id": 0,
        "name": "new",
        "uuid": uuid(9),
        "partition_count": 1,
        "options": OPTIONS,
        "topic_id": None,
    }
    return c.CreateTopic(**(values | changes))  # type: ignore[arg-type]


CASES: list[Forbidden] = [
    # streams
    forbidden(c.CreateStream("", uuid(9)), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.CreateStream(NAME_256, uuid(9)), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.CreateStream(NAME_OF_256_BYTES, uuid(9)), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.CreateStream(HALF_A_PAIR, uuid(9)), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.CreateStream("new", b"short"), ErrorCode.INVALID_COMMAND, 3),
    forbidden(c.CreateStream("new", uuid(9), -1), ErrorCode.INVALID_COMMAND, 3),
    forbidden(c.CreateStream("new", uuid(9), ID_MAX + 1), ErrorCode.INVALID_COMMAND, 3),
    forbidden(c.CreateStream("new", uuid(9), 0), ErrorCode.STREAM_ID_ALREADY_EXISTS, 1011),
    forbidden(c.CreateStream("new", uuid(9), 1), ErrorCode.STREAM_ID_ALREADY_EXISTS, 1011),
    forbidden(c.CreateStream("new", uuid(9), 5), ErrorCode.STREAM_ID_ALREADY_EXISTS, 1011),
    forbidden(c.CreateStream("zero", uuid(9)), ErrorCode.STREAM_NAME_ALREADY_EXISTS, 1012),
    forbidden(c.UpdateStream(1, "new"), ErrorCode.STREAM_NOT_FOUND, 1009),
    forbidden(c.UpdateStream(0, ""), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.UpdateStream(0, "five"), ErrorCode.STREAM_NAME_ALREADY_EXISTS, 1012),
    forbidden(c.DeleteStream(1), ErrorCode.STREAM_NOT_FOUND, 1009),
    forbidden(c.PurgeStream(2), ErrorCode.STREAM_NOT_FOUND, 1009),
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
    forbidden(c.UpdateTopic(1, 0, "new", OPTIONS), ErrorCode.STREAM_NOT_FOUND, 1009),
    forbidden(c.UpdateTopic(0, 1, "new", OPTIONS), ErrorCode.TOPIC_NOT_FOUND, 2010),
    forbidden(c.UpdateTopic(0, 0, NAME_256, OPTIONS), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.UpdateTopic(0, 0, "five", OPTIONS), ErrorCode.TOPIC_NAME_ALREADY_EXISTS, 2013),
    forbidden(c.DeleteTopic(0, 1), ErrorCode.TOPIC_NOT_FOUND, 2010),
    forbidden(c.DeleteTopic(1, 0), ErrorCode.STREAM_NOT_FOUND, 1009),
    forbidden(c.PurgeTopic(0, 2), ErrorCode.TOPIC_NOT_FOUND, 2010),
    # partitions
    forbidden(c.CreatePartitions(0, 1, 1), ErrorCode.TOPIC_NOT_FOUND, 2010),
    forbidden(c.CreatePartitions(0, 0, 0), ErrorCode.TOO_MANY_PARTITIONS, 2015),
    forbidden(c.CreatePartitions(0, 0, -1), ErrorCode.TOO_MANY_PARTITIONS, 2015),
    forbidden(c.CreatePartitions(0, 0, PARTITION_COUNT_MAX + 1), ErrorCode.TOO_MANY_PARTITIONS, 2015),
    forbidden(c.DeletePartitions(0, 1, 1), ErrorCode.TOPIC_NOT_FOUND, 2010),
    forbidden(c.DeletePartitions(0, 0, 0), ErrorCode.TOO_MANY_PARTITIONS, 2015),
    forbidden(c.DeletePartitions(0, 0, 4), ErrorCode.INVALID_PARTITIONS_COUNT, 2019),
    # groups
    forbidden(c.CreateGroup(0, 1, "new"), ErrorCode.TOPIC_NOT_FOUND, 2010),
    forbidden(c.CreateGroup(0, 0, ""), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.CreateGroup(0, 0, NAME_256), ErrorCode.INVALID_FORMAT, 4),
    forbidden(c.CreateGroup(0, 0, "new", -1), ErrorCode.INVALID_COMMAND, 3),
    forbidden(c.CreateGroup(0, 0, "new", 0), ErrorCode.GROUP_ID_ALREADY_EXISTS, 5001),
    forbidden(c.CreateGroup(0, 0, "new", 1), ErrorCode.GROUP_ID_ALREADY_EXISTS, 5001),
    forbidden(c.CreateGroup(0, 0, "zero"), ErrorCode.GROUP_NAME_ALREADY_EXISTS, 5004),
    forbidden(c.DeleteGroup(0, 0, 1), ErrorCode.GROUP_NOT_FOUND, 5000),
    forbidden(c.DeleteGroup(0, 1, 0), ErrorCode.TOPIC_NOT_FOUND, 2010),
    # users and tokens
    forbidden(c.CreateUser("ab", HASH), ErrorCode.INVALID_USERNAME, 43),
    forbidden(c.CreateUser("n" * 51, HASH), ErrorCode.INVALID_USERNAME, 43),
    forbidden(c.CreateUser("n" + HALF_A_PAIR, HASH), ErrorCode.INVALID_USERNAME, 43),
    forbidden(c.CreateUser("bob", "a plain password"), ErrorCode.INVALID_PASSWORD, 44),
    forbidden(c.CreateUser("bob", "$argon2i$weaker"), ErrorCode.INVALID_PASSWORD, 44),
    forbidden(c.CreateUser("alice", HASH), ErrorCode.USER_ALREADY_EXISTS, 46),
    forbidden(c.UpdateUser(2, "bob"), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.UpdateUser(1, "ab"), ErrorCode.INVALID_USERNAME, 43),
    forbidden(c.UpdateUser(1, "root"), ErrorCode.USER_ALREADY_EXISTS, 46),
    forbidden(c.UpdateUser(0, None, False), ErrorCode.CANNOT_CHANGE_PERMISSIONS, 49),
    forbidden(c.DeleteUser(0), ErrorCode.CANNOT_DELETE_USER, 48),
    forbidden(c.DeleteUser(2), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.ChangePassword(2, HASH), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.ChangePassword(1, "a plain password"), ErrorCode.INVALID_PASSWORD, 44),
    forbidden(c.UpdatePermissions(0, None), ErrorCode.CANNOT_CHANGE_PERMISSIONS, 49),
    forbidden(c.UpdatePermissions(2, None), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.CreateToken(2, "new", bytes(32)), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.CreateToken(1, "", bytes(32)), ErrorCode.INVALID_TOKEN_NAME, 50),
    forbidden(c.CreateToken(1, NAME_256, bytes(32)), ErrorCode.INVALID_TOKEN_NAME, 50),
    forbidden(c.CreateToken(1, HALF_A_PAIR, bytes(32)), ErrorCode.INVALID_TOKEN_NAME, 50),
    forbidden(c.CreateToken(1, "new", b"a plain token"), ErrorCode.INVALID_COMMAND, 3),
    forbidden(c.CreateToken(1, "laptop", bytes(32)), ErrorCode.TOKEN_ALREADY_EXISTS, 51),
    forbidden(c.DeleteToken(1, "other"), ErrorCode.RESOURCE_NOT_FOUND, 20),
    forbidden(c.DeleteToken(2, "laptop"), ErrorCode.RESOURCE_NOT_FOUND, 20),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{type(case.command).__name__}-{case.number}")
def test_what_the_rules_forbid_is_rejected_with_its_number(store: CatalogStore, case: Forbidden) -> None:
    assert rejection(store, case.command).code == case.code == case.number


ALLOWED: list[c.AnyChange] = [
    c.CreateStream("n", uuid(9)),
    c.CreateStream(NAME_255, uuid(9)),
    c.CreateStream("é" * 127, uuid(9)),
    c.CreateStream("../../etc\n\0 \U0001f600", uuid(9)),
    c.CreateStream("gone", uuid(9)),
    c.UpdateStream(0, "zero"),
    create_topic(partition_count=0),
    create_topic(partition_count=PARTITION_COUNT_MAX),
    create_topic(stream_id=5, name="zero"),
    c.UpdateTopic(0, 0, "zero", OPTIONS),
    c.CreatePartitions(0, 0, PARTITION_COUNT_MAX),
    c.DeletePartitions(0, 0, 3),
    c.CreateGroup(0, 0, "gone"),
    c.CreateUser("abc", HASH),
    c.CreateUser("n" * 50, HASH),
    c.UpdateUser(0, "administrator", True),
    c.UpdateUser(1, "alice", False),
    c.UpdateUser(1),
    c.ChangePassword(0, HASH),
    c.DeleteUser(1),
    c.CreateToken(0, "laptop", bytes(32)),
    c.CreateToken(1, NAME_255, bytes(32)),
    c.ForgetDeleted(("never heard of",)),
]


@pytest.mark.parametrize("command", ALLOWED, ids=lambda command: type(command).__name__)
def test_what_is_just_allowed_is_accepted(store: CatalogStore, command: c.AnyChange) -> None:
    store.submit(command)


def test_a_user_has_at_most_so_many_tokens(store: CatalogStore) -> None:
    for number in range(TOKEN_COUNT_MAX - 1):
        store.submit(c.CreateToken(1, f"token {number}", bytes(32)))
    assert rejection(store, c.CreateToken(1, "one more", bytes(32))).code == 52
    store.submit(c.DeleteToken(1, "laptop"))
    store.submit(c.CreateToken(1, "one more", bytes(32)))


def test_there_are_at_most_so_many_users(store: CatalogStore) -> None:
    for number in range(3, USER_COUNT_MAX):
        store.state.users[number] = User(number, f"user {number}", HASH, True, 0, None, {})
    store.submit(c.CreateUser("the last", HASH))
    assert len(store.state.users) == USER_COUNT_MAX
    assert rejection(store, c.CreateUser("too many", HASH)).code == 55


def test_a_command_larger_than_an_entry_is_rejected(store: CatalogStore) -> None:
    huge = c.ForgetDeleted(("x" * (64 * 1024 * 1024),))
    assert rejection(store, huge).code == ErrorCode.INVALID_COMMAND


# --- ids ---


def test_ids_go_up_and_never_come_back(store: CatalogStore) -> None:
    for kind in range(3):
        made = store.submit(c.CreateStream(f"new {kind}", uuid(9)))
        assert made is store.state.streams[6 + kind]
        store.submit(c.DeleteStream(6 + kind))
    for kind in range(3):
        store.submit(create_topic(name=f"new {kind}"))
        store.submit(c.DeleteTopic(0, 6 + kind))
        store.submit(c.CreateGroup(0, 0, f"new {kind}"))
        store.submit(c.DeleteGroup(0, 0, 6 + kind))
        store.submit(c.CreateUser(f"new {kind}", HASH))
        store.submit(c.DeleteUser(2 + kind))
    assert rejection(store, c.CreateStream("new", uuid(9), 8)).code == 1011
    assert rejection(store, create_topic(topic_id=8)).code == 2012
    assert rejection(store, c.CreateGroup(0, 0, "new", 8)).code == 5001
    assert store.state.user_ids.next_id == 5


def test_a_hole_may_be_used_once(store: CatalogStore) -> None:
    for number in (3, 2, 4):
        store.submit(c.CreateStream(f"hole {number}", uuid(9), number))
        assert rejection(store, c.CreateStream("again", uuid(9), number)).code == 1011
        store.submit(c.DeleteStream(number))
        assert rejection(store, c.CreateStream("again", uuid(9), number)).code == 1011
    assert store.state.stream_ids == UsedIds(6, [])


def test_topics_of_different_streams_have_their_own_ids(store: CatalogStore) -> None:
    store.submit(create_topic(stream_id=5, topic_id=1))
    store.submit(create_topic(stream_id=5, name="next"))
    assert sorted(store.state.streams[5].topics) == [1, 2]


def test_partition_ids_come_back_with_another_incarnation(store: CatalogStore) -> None:
    topic = store.state.streams[0].topics[0]
    first = topic.partitions[2]
    store.submit(c.DeletePartitions(0, 0, 1))
    store.submit(c.CreatePartitions(0, 0, 1))
    assert topic.partitions[2].partition_id == first.partition_id == 2
    assert topic.partitions[2].incarnation == store.last_op
    assert topic.partitions[2].incarnation > first.incarnation


def test_the_largest_id_leaves_the_smaller_ones_to_others(store: CatalogStore) -> None:
    store.submit(c.CreateStream("largest", uuid(9), ID_MAX))
    for expected in (2, 3, 4, 6):
        store.submit(c.CreateStream(f"stream {expected}", uuid(9)))
        assert store.state.stream_by_name[f"stream {expected}"] == expected


def test_when_all_ids_are_used_nothing_more_is_made(store: CatalogStore) -> None:
    store.state.stream_ids = UsedIds(ID_MAX + 1, [(9, 10)])
    store.submit(c.CreateStream("the last", uuid(9)))
    assert store.state.stream_by_name["the last"] == 9
    assert rejection(store, c.CreateStream("too late", uuid(9))).code == ErrorCode.INVALID_COMMAND
