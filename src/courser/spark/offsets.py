"""How far a query got, as Spark checkpoints it: ``{"v": 1, "topic_id": "...", "p": {"0": 1200}, "lost": {"0": 50}}``.

``p`` has the next offset to read of every partition, ``lost`` how many messages were gone before they could be read
(only where there were some). Spark compares offsets as text: keys always come in the same order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from courser.spark.errors import ReadFailed

VERSION = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a query got."""

    topic_uuid: bytes
    next: Mapping[int, int]
    """By partition."""
    lost: Mapping[int, int] = field(default_factory=dict)
    """By partition: since the query began."""

    def as_json(self) -> dict[str, Any]:
        """The canonical form."""
        return {
            "v": VERSION,
            "topic_id": self.topic_uuid.hex(),
            "p": _texts(self.next),
            **({"lost": _texts(self.lost)} if self.lost else {}),
        }


def _texts(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): numbers[partition] for partition in sorted(numbers)}


def parse_progress(value: Mapping[str, Any], topic: str) -> Progress:
    """Understand what a checkpoint holds.

    Raises:
        ReadFailed: another version or another source made it.
    """
    version = value.get("v")
    if version != VERSION:
        raise ReadFailed(
            f"{topic}: the checkpoint has offsets of version {version!r}, but this release knows version {VERSION}: "
            "another source or another release made it; start with a new checkpoint"
        )
    try:
        return Progress(
            bytes.fromhex(value["topic_id"]),
            {int(partition): int(offset) for partition, offset in value["p"].items()},
            {int(partition): int(count) for partition, count in value.get("lost", {}).items()},
        )
    except (KeyError, ValueError, AttributeError) as error:
        raise ReadFailed(f"{topic}: the checkpoint has offsets that cannot be understood: {error!r}") from error


def check_identity(progress: Progress, topic_uuid: bytes, topic: str) -> None:
    """Raise ``ReadFailed`` if the topic is not the one that the checkpoint is about."""
    if progress.topic_uuid != topic_uuid:
        raise ReadFailed(
            f"{topic}: the checkpoint is about topic {progress.topic_uuid.hex()}, but this one is {topic_uuid.hex()}: "
            "it was deleted and created again, or the checkpoint belongs to another query; start with a new checkpoint"
        )
