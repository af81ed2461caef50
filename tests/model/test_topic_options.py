"""The rows of topic options: one for each field, and what each accepts."""

import pytest

from courser.model.topic_options import TOPIC_OPTIONS, TopicOptions


def test_every_option_but_the_replication_factor_has_a_row() -> None:
    fields = [option.field for option in TOPIC_OPTIONS.values()]
    assert sorted([*fields, "replication_factor"]) == sorted(TopicOptions.__struct_fields__)


def test_the_catalog_keeps_its_format() -> None:
    # Fields are stored by position: a new one comes last.
    assert TopicOptions.__struct_fields__[:15] == (
        "message_expiry",
        "max_topic_size",
        "compression",
        "replication_factor",
        "segment_size",
        "enforce_fsync",
        "messages_required_to_save",
        "size_of_messages_required_to_save",
        "preallocate_segments",
        "durability",
        "consumer_offset_durability",
        "keep_latest_by_key",
        "local_retention_time",
        "local_retention_size",
        "partition_resize_policy",
    )


@pytest.mark.parametrize("name", TOPIC_OPTIONS)
def test_defaults_and_examples_are_accepted_and_read_back(name: str) -> None:
    option = TOPIC_OPTIONS[name]
    if option.default is not None:
        assert option.accepts(option.default)
    for text in (*option.kind.examples, *option.kind.words, *option.kind.own_words):
        value = option.kind.parse(text)
        assert value is not None
        assert option.accepts(value)
    for word in option.kind.words:
        assert option.kind.text(option.kind.words[word]) == word


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("segment_size", 2**20 + 1, "between 1048576 and 1073741824, a multiple of 512"),
        ("messages_required_to_save", 0, "between 1 and 16777216"),
        ("durability", "synced", "one of persisted, replicated"),
        ("compression_algorithm", 9, "one of none, gzip, snappy, lz4, zstd"),
    ],
)
def test_what_is_out_of_bounds(name: str, value: int | str, expected: str) -> None:
    assert not TOPIC_OPTIONS[name].accepts(value)
    assert TOPIC_OPTIONS[name].bounds == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("durability", "written", 'synced" or "default", not "written"'),
        ("compression_algorithm", "zip", '"lz4" or "zstd", not "zip"'),
        ("enforce_fsync", "yes", 'true or false, not "yes"'),
        ("messages_required_to_save", "-1", 'a whole number, not "-1"'),
        ("message_expiry", "soon", "a duration"),
    ],
)
def test_texts_that_are_none(name: str, text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        TOPIC_OPTIONS[name].kind.parse(text)
