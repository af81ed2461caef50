"""Durability: what an acknowledgement guarantees."""

from dataclasses import dataclass
from enum import Enum


class Durability(Enum):
    """When a send is acknowledged."""

    WRITTEN = "written"
    """After the write call: a killed process loses nothing, a power cut loses what was not written back."""
    BOUNDED = "bounded"
    """After the write call, with a limit on what a power cut may lose."""
    SYNCED = "synced"
    """After the data is synced: neither a kill nor a power cut loses anything."""


PERSISTED = "persisted"
"""What Iggy calls ``synced``."""
REPLICATED = "replicated"
"""What Iggy calls the level of the server."""
REQUESTS = {Durability.SYNCED.value: PERSISTED, "default": REPLICATED}
"""What a client can request for a topic, and Iggy's words for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DurabilityPolicy:
    """A level, and the bounds for ``bounded`` (the other levels ignore them)."""

    level: Durability = Durability.WRITTEN
    message_count_max: int = 1024
    """Messages that a power cut may lose: `messages_required_to_save`."""
    size_max: int = 1024 * 1024
    """Bytes that a power cut may lose: `size_of_messages_required_to_save`."""
    interval: int = 1_000_000
    """Microseconds from the first unsynced write to its sync: the interval of the message saver."""

    def __post_init__(self) -> None:
        if self.message_count_max < 1 or self.size_max < 1 or self.interval < 1:
            raise ValueError(f"every bound of a durability policy must be at least 1: {self}")
