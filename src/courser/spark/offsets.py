"""How far a query got, as Spark checkpoints it.

Of one topic: ``{"v": 1, "topic_id": "...", "p": {"0": 1200}, "lost": {"0": 50}}``. ``p`` has the next offset to read of
every partition, ``lost`` how many messages were gone before they could be read (only where there were some).

Of several: ``{"v": 2, "topics": {"orders": {"topic_id": "...", "p": {...}}, "payments": {...}}}``.

A topic is known by its identity, not by its name: it may be renamed. So a query of one topic can get others as well.
Spark compares offsets as text: keys always come in the same order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from courser.spark.errors import ReadFailed
from courser.spark.topic_names import listed
from courser.spark.topics import TopicFacts

ONE_TOPIC, SEVERAL_TOPICS = 1, 2
"""The versions: what the offsets of one topic and of several look like."""
NAMELESS = ""
"""Stands for the name of a topic that is alone in its checkpoint, and is not named there."""


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """How far a query got in one topic."""

    topic_uuid: bytes
    next: Mapping[int, int]
    """By partition."""
    lost: Mapping[int, int] = field(default_factory=dict)
    """By partition: since the query began."""

    def as_json(self) -> dict[str, Any]:
        """The canonical form."""
        return {
            "topic_id": self.topic_uuid.hex(),
            "p": _texts(self.next),
            **({"lost": _texts(self.lost)} if self.lost else {}),
        }


Progress = Mapping[str, TopicProgress]
"""How far a query got, by topic."""


def progress_json(progress: Progress) -> dict[str, Any]:
    """The canonical form."""
    if len(progress) == 1:
        (topic,) = progress.values()
        return {"v": ONE_TOPIC, **topic.as_json()}
    return {"v": SEVERAL_TOPICS, "topics": {name: progress[name].as_json() for name in sorted(progress)}}


def _texts(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): numbers[partition] for partition in sorted(numbers)}


def parse_progress(value: Mapping[str, Any], query: str) -> Progress:
    """Understand what a checkpoint holds, by the names that topics had then. ``query``: for messages.

    Raises:
        ReadFailed: another version or another source made it.
    """
    version = value.get("v")
    if version not in (ONE_TOPIC, SEVERAL_TOPICS):
        raise ReadFailed(
            f"{query}: the checkpoint has offsets of version {version!r}, but this release knows versions {ONE_TOPIC} "
            f"and {SEVERAL_TOPICS}: another source or another release made it; start with a new checkpoint"
        )
    try:
        topics = {NAMELESS: value} if version == ONE_TOPIC else value["topics"]
        return {name: _topic_progress(topic) for name, topic in topics.items()}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ReadFailed(f"{query}: the checkpoint has offsets that cannot be understood: {error!r}") from error


def _topic_progress(value: Mapping[str, Any]) -> TopicProgress:
    return TopicProgress(
        bytes.fromhex(value["topic_id"]),
        {int(partition): int(offset) for partition, offset in value["p"].items()},
        {int(partition): int(count) for partition, count in value.get("lost", {}).items()},
    )


@dataclass(frozen=True, slots=True)
class Matched:
    """A checkpoint beside the topics that a query reads now."""

    progress: Progress
    """By their names of today. Topics that the checkpoint does not know are not in it."""
    left_out: tuple[str, ...]
    """Topics that the checkpoint knows and the query does not read any more."""


def match_topics(saved: Progress, facts: Mapping[str, TopicFacts], query: str) -> Matched:
    """Find the topics of a checkpoint among those that are read.

    Raises:
        ReadFailed: a topic was deleted and created again, or the checkpoint is about something else altogether.
    """
    names = {topic.uuid: name for name, topic in facts.items()}
    left_out = tuple(name for name, topic in saved.items() if topic.topic_uuid not in names)
    for name in left_out:
        if name == NAMELESS or name in facts:
            raise _another_topic(name, saved[name].topic_uuid, facts, query)
    progress = {names[topic.topic_uuid]: topic for topic in saved.values() if topic.topic_uuid in names}
    if not progress:
        raise ReadFailed(
            f"{query}: the checkpoint is about {listed(saved)}, and none of these topics is read: it belongs to "
            "another query; start with a new checkpoint"
        )
    return Matched(progress, left_out)


def _another_topic(name: str, uuid: bytes, facts: Mapping[str, TopicFacts], query: str) -> ReadFailed:
    is_alone = name == NAMELESS and len(facts) == 1
    today = next(iter(facts.values())) if is_alone else facts.get(name)
    found = f"none of {listed(facts)} is that one" if today is None else f"this one is {today.uuid.hex()}"
    named = "" if name == NAMELESS else f'"{name}", '
    return ReadFailed(
        f"{query}: the checkpoint is about topic {named}{uuid.hex()}, but {found}: it was deleted and created again, "
        "or the checkpoint belongs to another query; start with a new checkpoint"
    )
