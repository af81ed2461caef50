"""The options that a client can ask for."""

import pytest

from courser.broker.partition.topic_settings import describe_options
from courser.broker.settings import USUAL_TOPIC_OPTIONS
from courser.errors import CommandRejected, ErrorCode

NEVER = 2**64 - 1


def test_options_of_a_topic_come_in_the_order_of_iggy_with_the_defaults_of_this_server() -> None:
    described = describe_options(1, USUAL_TOPIC_OPTIONS).options
    assert [(option.key, option.default) for option in described] == [
        ("compression_algorithm", "none"),
        ("message_expiry", NEVER),
        ("max_topic_size", NEVER),
        ("segment_size", 2**30),
        ("enforce_fsync", False),
        ("messages_required_to_save", 1024),
        ("size_of_messages_required_to_save", 2**20),
        ("preallocate_segments", False),
        ("durability", "replicated"),
        ("consumer_offset_durability", "replicated"),
        ("keep_latest_by_key", False),
    ]
    assert all(option.description for option in described)


@pytest.mark.parametrize("scope", [2, 3])
def test_streams_and_users_have_no_options(scope: int) -> None:
    assert describe_options(scope, USUAL_TOPIC_OPTIONS).options == []


@pytest.mark.parametrize("scope", [0, 4, 255])
def test_nothing_else_has_options(scope: int) -> None:
    with pytest.raises(CommandRejected) as refused:
        describe_options(scope, USUAL_TOPIC_OPTIONS)
    assert refused.value.code is ErrorCode.INVALID_COMMAND
