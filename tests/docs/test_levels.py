"""The table of docs/durability.md that says which level a topic has."""

import re

import pytest

from courser.broker.partition.topic_settings import durability_of
from courser.broker.settings import BrokerSettings
from courser.model.topic_options import TopicOptions
from tests.docs.blocks import text_of

_ROWS = dict(
    re.findall(
        r"^\| (.+?) \| (.+?) \|$",
        text_of("docs/durability.md").partition("| a topic says | its level |")[2].partition("\n\n")[0],
        re.MULTILINE,
    )
)
SAYINGS = {
    "`durability = persisted`": TopicOptions(durability="persisted", enforce_fsync=False),
    "`enforce_fsync = true`": TopicOptions(enforce_fsync=True),
    "`enforce_fsync = true` and its own `messages_required_to_save` above 1": TopicOptions(
        enforce_fsync=True, messages_required_to_save=100
    ),
    "`enforce_fsync = false`": TopicOptions(enforce_fsync=False),
}


@pytest.mark.parametrize("saying", SAYINGS)
def test_what_a_topic_says_comes_before_what_the_server_says(saying: str) -> None:
    expected = re.match(r"`(\w+)`", _ROWS[saying])
    assert expected is not None
    for is_synced in (False, True):
        defaults = TopicOptions(enforce_fsync=is_synced, messages_required_to_save=1, durability="replicated")
        settings = BrokerSettings(topic_defaults=defaults)
        assert durability_of(SAYINGS[saying], settings).level.value == expected[1]


def test_every_other_topic_is_as_the_server_says() -> None:
    rest = [row for row in _ROWS if row not in SAYINGS and row != "---"]
    assert rest == ["nothing, or `durability = replicated`"]
    assert _ROWS[rest[0]] == "the server's"
    for is_synced, level in ((False, "written"), (True, "synced")):
        defaults = TopicOptions(enforce_fsync=is_synced, messages_required_to_save=1, durability="replicated")
        settings = BrokerSettings(topic_defaults=defaults)
        for options in (TopicOptions(), TopicOptions(durability="replicated")):
            assert durability_of(options, settings).level.value == level


def test_with_a_saver_that_syncs_every_topic_is_bounded_at_least() -> None:
    settings = BrokerSettings(saver_enforce_fsync=True)
    assert durability_of(TopicOptions(enforce_fsync=False), settings).level.value == "bounded"
