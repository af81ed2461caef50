"""Permissions by name, and the answer of ``courser user can``: the same that the server gives."""

import json
from itertools import product

import msgspec
import pytest

from courser.api.replies import UserDetails, UserInfo
from courser.broker.access.access import AccessControl
from courser.catalog.state import CatalogState
from courser.cli.allowing import ACTIONS, judge
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from tests.cli.commands import Cli

STREAM_ID, TOPIC_ID = 3, 5


def details(permissions: Permissions | None, *, user_id: int = 7, is_active: bool = True) -> UserDetails:
    return UserDetails(UserInfo(user_id, 0, is_active, "bob"), permissions)


def single_permissions() -> list[Permissions]:
    """Each permission alone, at each level."""
    return [
        *(Permissions(GlobalPermissions(**{name: True})) for name in GlobalPermissions.__struct_fields__),
        *(
            Permissions(streams={STREAM_ID: msgspec.structs.replace(StreamPermissions(), **{name: True})})
            for name in StreamPermissions.__struct_fields__
            if name != "topics"
        ),
        *(
            Permissions(streams={STREAM_ID: StreamPermissions(topics={TOPIC_ID: TopicPermissions(**{name: True})})})
            for name in TopicPermissions.__struct_fields__
        ),
    ]


@pytest.mark.parametrize("word", ACTIONS)
def test_the_answer_is_that_of_the_server(word: str) -> None:
    access = AccessControl(CatalogState())
    places = [(None, None), (STREAM_ID, None), (STREAM_ID, TOPIC_ID), (STREAM_ID, 9), (9, TOPIC_ID)]
    for permissions, (stream_id, topic_id) in product(single_permissions(), places):
        action = ACTIONS[word][0 if stream_id is None else 1 if topic_id is None else 2]
        if action is not None:
            verdict = judge(details(permissions), word, stream_id, topic_id)
            assert verdict.is_allowed == access.allows(permissions, action, stream_id, topic_id), verdict.reason


def test_root_may_do_everything_and_who_is_inactive_nothing() -> None:
    everything = Permissions(GlobalPermissions(manage_streams=True))
    assert judge(details(None, user_id=0), "manage", None, None).is_allowed
    assert judge(details(everything), "manage", None, None).is_allowed
    assert judge(details(everything, is_active=False), "manage", None, None).reason == "the user is inactive"
    assert not judge(details(None), "send", STREAM_ID, TOPIC_ID).is_allowed


def test_a_user_can_do_what_is_allowed_by_name_and_nothing_else(cli: Cli, stream: str) -> None:
    topic = f"{stream}/orders"
    name = f"user-{stream}"
    assert cli("user", "create", name, "secret", "--allow", f"{topic}:send").code == 0
    as_user = ("--user", name, "--password", "secret")
    assert cli("send", topic, "hello", *as_user).code == 0
    assert cli("tail", topic, *as_user).code == 4
    yes, no = cli("user", "can", name, "send", topic), cli("user", "can", name, "read", topic, "-o", "json")
    assert (yes.code, yes.out) == (0, f'yes: user "{name}" may send to "{topic}"; granted by send_messages (topic)\n')
    assert (no.code, no.err) == (1, "")
    verdict = json.loads(no.out)
    includes = "needed: read_topic (topic), or a permission that includes it"
    assert verdict["reason"] == f"it has send_messages (topic); {includes}"
    assert "read_streams (everywhere)" in verdict["sufficient"]
    assert cli("user", "permissions", name, "--allow", f"{topic}:read", "--allow", f"{stream}:send").code == 0
    assert cli("tail", topic, *as_user).code == 0
    assert cli("send", topic, "hello", *as_user).code == 0
    assert cli("user", "can", name, "manage", topic, *as_user).code == 4
    rows = cli("user", "get", name).out.splitlines()[-2:]
    assert [row.split() for row in rows] == [[stream, "send_messages"], [topic, "read_topic"]]
