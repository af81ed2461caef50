"""From what somebody set to what holds: defaults, durability levels, sizes of segments."""

import pytest

from courser.broker.partition.topic_settings import (
    durability_of,
    effective_options,
    expiry_of,
    log_settings,
    merged_options,
    size_limit,
    stored_options,
)
from courser.broker.settings import TOPIC_SIZE_MIN, USUAL_TOPIC_OPTIONS, BrokerSettings
from courser.model.durability import Durability
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from courser.storage.settings import SEGMENT_SIZE_LIMIT

MIB = 1024 * 1024
GIB = 1024 * MIB
SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
FSYNC = effective_options(TopicOptions(enforce_fsync=True), USUAL_TOPIC_OPTIONS)
FSYNC_EACH = effective_options(TopicOptions(messages_required_to_save=1), FSYNC)


@pytest.mark.parametrize(
    ("defaults", "options", "level"),
    [
        (USUAL_TOPIC_OPTIONS, TopicOptions(), Durability.WRITTEN),
        (USUAL_TOPIC_OPTIONS, TopicOptions(durability="replicated"), Durability.WRITTEN),
        (USUAL_TOPIC_OPTIONS, TopicOptions(messages_required_to_save=1), Durability.WRITTEN),
        (FSYNC, TopicOptions(), Durability.BOUNDED),
        (FSYNC, TopicOptions(durability="replicated"), Durability.BOUNDED),
        (FSYNC, TopicOptions(messages_required_to_save=1), Durability.SYNCED),
        (FSYNC, TopicOptions(enforce_fsync=False), Durability.WRITTEN),
        (FSYNC_EACH, TopicOptions(), Durability.SYNCED),
        (FSYNC_EACH, TopicOptions(messages_required_to_save=50), Durability.BOUNDED),
        # Set on the topic itself it is meant: every message, unless the topic has a bound of its own.
        (USUAL_TOPIC_OPTIONS, TopicOptions(enforce_fsync=True), Durability.SYNCED),
        (USUAL_TOPIC_OPTIONS, TopicOptions(enforce_fsync=True, messages_required_to_save=1), Durability.SYNCED),
        (USUAL_TOPIC_OPTIONS, TopicOptions(enforce_fsync=True, messages_required_to_save=2), Durability.BOUNDED),
        # Whatever the thresholds.
        (USUAL_TOPIC_OPTIONS, TopicOptions(durability="persisted"), Durability.SYNCED),
        (
            USUAL_TOPIC_OPTIONS,
            TopicOptions(durability="persisted", enforce_fsync=True, messages_required_to_save=1000),
            Durability.SYNCED,
        ),
    ],
)
def test_levels(defaults: TopicOptions, options: TopicOptions, level: Durability) -> None:
    assert durability_of(options, BrokerSettings(topic_defaults=defaults)).level is level


def test_bounds_are_those_of_the_topic_or_of_the_server() -> None:
    settings = BrokerSettings(topic_defaults=FSYNC, saver_interval=3 * SECOND)
    policy = durability_of(TopicOptions(size_of_messages_required_to_save=7), settings)
    assert (policy.message_count_max, policy.size_max, policy.interval) == (1024, 7, 3 * SECOND)


def test_the_savers_own_flag_bounds_every_topic_by_time_alone() -> None:
    settings = BrokerSettings(saver_enforce_fsync=True)
    policy = durability_of(TopicOptions(), settings)
    assert (policy.level, policy.interval) == (Durability.BOUNDED, SECOND)
    assert min(policy.message_count_max, policy.size_max) > 2**60
    without_saver = BrokerSettings(saver_enforce_fsync=True, saver_interval=None)
    assert durability_of(TopicOptions(), without_saver).level is Durability.WRITTEN


@pytest.mark.parametrize(
    "settings",
    [
        BrokerSettings(topic_defaults=FSYNC, saver_interval=None),
        BrokerSettings(topic_defaults=FSYNC, saver_enforce_fsync=False),
    ],
)
def test_without_a_saver_only_the_number_of_messages_is_bounded(settings: BrokerSettings) -> None:
    policy = durability_of(TopicOptions(), settings)
    assert (policy.level, policy.message_count_max) == (Durability.BOUNDED, 1024)
    assert policy.interval > 1000 * DAY


@pytest.mark.parametrize(
    ("limit", "partition_count", "size"),
    [
        (NEVER, 1, GIB),
        (4 * GIB, 1, GIB),
        (GIB, 1, 512 * MIB),
        (GIB, 4, 128 * MIB),
        (GIB, 1000, TOPIC_SIZE_MIN),
        (GIB, 0, 512 * MIB),
        (TOPIC_SIZE_MIN, 1, TOPIC_SIZE_MIN),
    ],
)
def test_segments_of_a_limited_topic(limit: int, partition_count: int, size: int) -> None:
    assert log_settings(TopicOptions(max_topic_size=limit), partition_count, BrokerSettings()).segment_size == size


def test_options_of_any_version_give_settings_that_work() -> None:
    odd = TopicOptions(segment_size=2**60, max_topic_size=1, message_expiry=1, messages_required_to_save=0)
    settings = log_settings(odd, 1, BrokerSettings(topic_defaults=FSYNC))
    assert 1 <= settings.segment_size <= SEGMENT_SIZE_LIMIT
    assert log_settings(TopicOptions(segment_size=2**60), 1, BrokerSettings()).segment_size == SEGMENT_SIZE_LIMIT


@pytest.mark.parametrize(
    ("expiry", "age"), [(NEVER, 7 * DAY), (30 * DAY, 7 * DAY), (2 * DAY, DAY), (SECOND, 60 * SECOND)]
)
def test_segments_are_rolled_so_that_their_messages_can_expire(expiry: int, age: int) -> None:
    assert log_settings(TopicOptions(message_expiry=expiry), 1, BrokerSettings()).segment_age_max == age


def test_limits_as_numbers() -> None:
    assert size_limit(USUAL_TOPIC_OPTIONS) is None
    assert expiry_of(USUAL_TOPIC_OPTIONS) is None
    effective = effective_options(TopicOptions(message_expiry=5, max_topic_size=GIB), USUAL_TOPIC_OPTIONS)
    assert (expiry_of(effective), size_limit(effective)) == (5, GIB)


def test_zero_is_the_servers_default() -> None:
    zeros = TopicOptions(message_expiry=0, max_topic_size=0, replication_factor=0, segment_size=0)
    assert stored_options(zeros) == TopicOptions()


def test_a_patch_can_put_an_option_back_to_the_default() -> None:
    present = TopicOptions(message_expiry=5, compression=2)
    assert merged_options(present, TopicOptions(message_expiry=0), is_patch=True) == TopicOptions(compression=2)
    assert merged_options(present, TopicOptions(), is_patch=True) == present
    assert merged_options(present, TopicOptions(), is_patch=False) == TopicOptions()
