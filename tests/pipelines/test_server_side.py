"""What a pipeline asks the server needs no more permissions than its messages do."""

from dataclasses import replace
from pathlib import Path

import pytest

from courser.client.contexts import resolve_target
from courser.client.targets import Target
from courser.model.permissions import Permissions, StreamPermissions
from courser.pipelines.definition import Definition
from courser.pipelines.definition_file import parse_definition
from courser.pipelines.server_side import TopicMissing, check_topics
from tests.pipelines.scenes import STREAM, Scene
from tests.servers import RunningServer

TEXT = """
[pipeline]
name = "p"
[source]
stream = "shop"
topic = "from"
[sink]
type = "topic"
stream = "shop"
topic = "{to}"
{more}
"""


@pytest.fixture
def target(tmp_path: Path, server: RunningServer) -> Target:
    """Logged in as somebody who may poll and send in one stream, and do nothing else."""
    scene = Scene(tmp_path, server)
    with scene.client() as client:
        if "limited" not in [user.name for user in client.get_users()]:
            for topic in ("from", "to"):
                scene.make_topic(topic)
            may = StreamPermissions(poll_messages=True, send_messages=True)
            permissions = Permissions(streams={client.get_stream(STREAM).stream.stream_id: may})
            client.create_user("limited", "secret", permissions=permissions)
    return replace(resolve_target(scene.url).target, username="limited", password="secret")


def define(to: str, more: str = "") -> Definition:
    return parse_definition(TEXT.format(to=to, more=more), Path("p.toml"))


def test_whoever_may_poll_and_send_may_run_a_pipeline(target: Target) -> None:
    facts = check_topics(define("to"), target)
    assert [fact.partition for fact in facts.partitions] == [0, 1]
    assert len(facts.uuid) == 32
    assert check_topics(define("to", "create_partitions = 2"), target) == facts


def test_a_missing_topic_is_named_without_a_list_of_the_others(target: Target) -> None:
    with pytest.raises(TopicMissing, match=r'sink.topic: topic "shop/two" does not exist$'):
        check_topics(define("two"), target)
