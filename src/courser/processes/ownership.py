"""Which process owns a topic: its partitions, its consumer groups, and whatever else belongs to it."""

import secrets
from collections.abc import Callable

from courser.broker.partition.peers import Owns

FIRST = 0
"""The process that owns the metadata, and starts and supervises the others."""
_CLIENT_ID_BITS = 32


def owner_of(stream_id: int, topic_id: int, process_count: int) -> int:
    """The number of the process.

    Only the ids count, so that all processes agree without asking. Streams with one topic each are spread evenly, and
    so are the topics of one stream.
    """
    return (stream_id + topic_id) % process_count


def owns_of(number: int, process_count: int) -> Owns:
    """The topics of one process."""

    def owns(stream_id: int, topic_id: int) -> bool:
        return owner_of(stream_id, topic_id, process_count) == number

    return owns


def share_name(number: int, process_count: int) -> str:
    """Part of the names of files that tell about the topics of one process. With another count they are others."""
    return f"-{number}-of-{process_count}" if process_count > 1 else ""


def client_ids_of(number: int, process_count: int) -> Callable[[], int]:
    """Draws numbers for the connections of one process: no other process draws the same ones."""

    def draw() -> int:
        drawn = secrets.randbits(_CLIENT_ID_BITS)
        number_below = drawn - drawn % process_count + number
        return number_below if number_below < 2**_CLIENT_ID_BITS else number

    return draw
