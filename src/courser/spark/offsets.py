"""The offsets of a streaming query, as Spark checkpoints them.

One topic: ``{"v": 1, "topic_id": "...", "p": {"0": 1200}, "lost": {"0": 50}}``. ``p`` is the next offset to read, by
partition; ``lost`` is how many messages were gone before they were read (partitions without losses are omitted).

Several topics: ``{"v": 2, "topics": {"orders": {"topic_id": "...", "p": {...}}, "payments": {...}}}``.

Topics are identified by id, not by name, so they can be renamed and topics can be added to a query of one topic. Spark
compares offsets as text, so keys are always in the same order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from courser.spark.errors import ReadFailed
from courser.spark.option_kinds import listed
from courser.spark.topic_metadata import TopicFacts

ONE_TOPIC, SEVERAL_TOPICS = 1, 2
"""Format versions: offsets of one topic, and of several."""
NAMELESS = ""
"""Stands for the name of the topic in a version 1 checkpoint, which does not contain it."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """How far a query got in one topic."""

    topic_uuid: bytes
    next: Mapping[int, int]
    """The next offset to read, by partition."""
    lost: Mapping[int, int] = field(default_factory=dict)
    """Messages lost since the query began, by partition."""

    def as_json(self) -> dict[str, Any]:
        """The canonical JSON form."""
        return {
            "topic_id": self.topic_uuid.hex(),
            "p": _texts(self.next),
            **({"lost": _texts(self.lost)} if self.lost else {}),
        }


QueryOffsets = Mapping[str, TopicOffsets]
"""How far a query got, by topic."""


def offsets_json(progress: QueryOffsets) -> dict[str, Any]:
    """The canonical JSON form."""
    if len(progress) == 1:
        (topic,) = progress.values()
        return {"v": ONE_TOPIC, **topic.as_json()}
    return {"v": SEVERAL_TOPICS, "topics": {name: progress[name].as_json() for name in sorted(progress)}}


def _texts(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): numbers[partition] for partition in sorted(numbers)}


def parse_offsets(value: Mapping[str, Any], query: str) -> QueryOffsets:
    """Parse the offsets in a checkpoint, by the names that topics had then. ``query`` is for error messages.

    Raises:
        ReadFailed: they have an unknown version, or come from another data source.
    """
    version = value.get("v")
    if version not in (ONE_TOPIC, SEVERAL_TOPICS):
        raise ReadFailed(
            f"{query}: the checkpoint has offsets of version {version!r}, but this release reads versions {ONE_TOPIC} "
            f"and {SEVERAL_TOPICS}: it was written by another data source or release; start with a new checkpoint"
        )
    try:
        topics = {NAMELESS: value} if version == ONE_TOPIC else value["topics"]
        return {name: _topic_progress(topic) for name, topic in topics.items()}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ReadFailed(f"{query}: could not parse the offsets in the checkpoint: {error!r}") from error


def _topic_progress(value: Mapping[str, Any]) -> TopicOffsets:
    return TopicOffsets(
        bytes.fromhex(value["topic_id"]),
        {int(partition): int(offset) for partition, offset in value["p"].items()},
        {int(partition): int(count) for partition, count in value.get("lost", {}).items()},
    )


@dataclass(frozen=True, slots=True)
class Matched:
    """A checkpoint matched with the topics that the query reads now."""

    progress: QueryOffsets
    """By current topic name. Topics that are not in the checkpoint are absent."""
    left_out: tuple[str, ...]
    """Topics of the checkpoint that the query no longer reads."""


def match_topics(saved: QueryOffsets, facts: Mapping[str, TopicFacts], query: str) -> Matched:
    """Match the topics of a checkpoint with those that are read.

    Raises:
        ReadFailed: a topic was deleted and recreated, or the checkpoint belongs to another query.
    """
    names = {topic.uuid: name for name, topic in facts.items()}
    left_out = tuple(name for name, topic in saved.items() if topic.topic_uuid not in names)
    for name in left_out:
        if name == NAMELESS or name in facts:
            raise _another_topic(name, saved[name].topic_uuid, facts, query)
    progress = {names[topic.topic_uuid]: topic for topic in saved.values() if topic.topic_uuid in names}
    if not progress:
        raise ReadFailed(
            f"{query}: the checkpoint is for {listed(saved)}, but the query reads none of these: it belongs to another "
            "query; start with a new checkpoint"
        )
    return Matched(progress, left_out)


def _another_topic(name: str, uuid: bytes, facts: Mapping[str, TopicFacts], query: str) -> ReadFailed:
    is_alone = name == NAMELESS and len(facts) == 1
    today = next(iter(facts.values())) if is_alone else facts.get(name)
    found = f"none of {listed(facts)} has this id" if today is None else f"this one is {today.uuid.hex()}"
    named = "" if name == NAMELESS else f'"{name}", '
    return ReadFailed(
        f"{query}: the checkpoint is for topic {named}{uuid.hex()}, but {found}: the topic was deleted and recreated, "
        "or the checkpoint belongs to another query; start with a new checkpoint"
    )
