"""What the real server had, as far as its recorded replies tell, and under which numbers Courser has the same.

The real servers use freed ids again and restart offsets at a purge; Courser does neither. So every number that a server
gave out is looked up here, in requests and in replies.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from tests.replay.fields import Key

_LONGEST_SECTION = 600 * 1_000_000
"""Microseconds."""

Topic = tuple[int, int]
"""Stream and topic, as the real server numbered them."""


@dataclass
class _Run:
    """Messages sent in one request."""

    first: int
    """Offset of the first on the real server."""
    count: int
    ours: int | None
    """Offset of the first here; None if they were refused here."""


@dataclass
class PartitionOffsets:
    """Which offset here is which offset there."""

    recorded_next: int = 0
    our_next: int = 0
    _runs: list[_Run] = field(default_factory=list)

    def sent(self, count: int, *, was_accepted: bool, is_accepted: bool) -> None:
        """Messages were sent: to the real server, and to ours."""
        if was_accepted:
            self._runs.append(_Run(self.recorded_next, count, self.our_next if is_accepted else None))
            self.recorded_next += count
        if is_accepted:
            self.our_next += count

    def purge(self) -> None:
        """The real server starts again at 0; ours goes on."""
        self.recorded_next = 0
        self._runs.clear()

    def ours(self, recorded: int) -> int | None:
        """The offset here of a message there; None if it was refused here. Beyond the end, as far beyond the end."""
        if recorded >= self.recorded_next:
            return min(recorded - self.recorded_next + self.our_next, 2**64 - 1)
        for run in self._runs:
            if run.first <= recorded < run.first + run.count:
                return None if run.ours is None else run.ours + recorded - run.first
        raise AssertionError(f"offset {recorded} belongs to no request")

    def ours_from(self, recorded: int) -> int:
        """Where a read that begins there begins here: at the first message from there on that was accepted here."""
        while (ours := self.ours(recorded)) is None:
            recorded += 1
        return ours

    @property
    def recorded_current(self) -> int:
        """What the real server calls the current offset."""
        return max(self.recorded_next - 1, 0)

    @property
    def our_current(self) -> int:
        """The same here."""
        return max(self.our_next - 1, 0)


class Books:
    """One section's knowledge."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        """``clock`` tells our server's time; without it every time is as good as any other."""
        self._clock = clock
        self._names: dict[Key, int] = {}
        """("stream", name), ("topic", stream, name), ("group", stream, topic, name): the real server's number."""
        self._ours: dict[Key, int] = {}
        self._given: dict[Key, set[int]] = {}
        """Numbers that we ever gave out, by kind and parent."""
        self._gone: set[Key] = set()
        self._refused: set[Key] = set()
        self._partition_counts: dict[Topic, int] = {}
        self._balanced_counts: dict[Topic, int] = {}
        self._partitions: dict[Key, PartitionOffsets] = {}
        self.times: dict[int, int] = {}
        """Append times there and here."""
        self.tokens: dict[bytes, bytes] = {}
        self.message_ids: dict[bytes, bytes] = {}
        """Ids that the servers made."""
        self.sent_message_ids: set[bytes] = set()

    # --- names and numbers ---

    def number(self, kind: str, parent: tuple[int, ...], name: bytes) -> int | None:
        """The real server's number of a name."""
        return self._names.get((kind, *parent, name.hex()))

    def rename(self, kind: str, parent: tuple[int, ...], number: int, name: bytes) -> None:
        """It has this name from now on."""
        self.forget_name(kind, parent, number)
        self._names[(kind, *parent, name.hex())] = number

    def forget_name(self, kind: str, parent: tuple[int, ...], number: int) -> None:
        """It was deleted, or renamed."""
        for key in [key for key, value in self._names.items() if key[:-1] == (kind, *parent) and value == number]:
            del self._names[key]

    def ours(self, key: Key) -> int | None:
        """Our number of a thing; None if it was never seen here."""
        return self._ours.get(key)

    def bind(self, key: Key, ours: int) -> bool:
        """From now on this number there is that number here. False if ours was given to something else before."""
        if self._ours.get(key) == ours and key not in self._gone:
            # A reply that was sent again.
            return True
        self._gone.discard(key)
        self._refused.discard(key)
        given = self._given.setdefault(key[:-1], set())
        is_new = ours not in given
        given.add(ours)
        self._forget_children(key)
        self._ours[key] = ours
        return is_new

    def remove(self, key: Key) -> None:
        """It was deleted. Its number still means what it meant, until the real server uses it again."""
        self._gone.add(key)
        self.forget_name(str(key[0]), tuple(map(int, key[1:-1])), int(key[-1]))

    def refuse(self, key: Key) -> None:
        """The real server made this, and ours did not."""
        self._refused.add(key)

    def is_refused(self, key: Key) -> bool:
        """Whether only the real server has this."""
        return key in self._refused

    def is_bound(self, parent: Key, ours: int) -> bool:
        """Whether a number of ours is known."""
        return ours in self._given.get(parent, ())

    def _forget_children(self, key: Key) -> None:
        """The real server uses a number again: what belonged to its former owner is gone."""
        numbers = key[1:]
        children = {"stream": ("topic", "group", "member", "partition"), "topic": ("group", "member", "partition")}
        kinds = children.get(str(key[0]), ("member",) if key[0] == "group" else ())
        for table in (self._ours, self._given, self._partitions, self._names):
            assert isinstance(table, dict)
            for old in [old for old in table if old[0] in kinds and old[1 : 1 + len(numbers)] == numbers]:
                del table[old]

    # --- partitions ---

    def partition(self, stream: int, topic: int, partition: int) -> PartitionOffsets:
        """The offsets of a partition."""
        return self._partitions.setdefault(("partition", stream, topic, partition), PartitionOffsets())

    def offsets(self, key: Key) -> PartitionOffsets:
        """The same, by its key."""
        return self._partitions.setdefault(key, PartitionOffsets())

    def set_partition_count(self, topic: Topic, count: int) -> None:
        """A topic has so many partitions now. Those that it loses, lose their messages."""
        self._partition_counts[topic] = count
        for key in [key for key in self._partitions if key[1:3] == topic and int(key[3]) >= count]:
            del self._partitions[key]

    def partition_count(self, topic: Topic) -> int:
        """How many partitions the topic has."""
        return self._partition_counts.get(topic, 0)

    def next_balanced(self, topic: Topic) -> int:
        """Where the next balanced send goes: one partition after another."""
        count = self._balanced_counts.get(topic, 0)
        self._balanced_counts[topic] = count + 1
        return count % max(self.partition_count(topic), 1)

    def partition_of_key(self, topic: Topic, key: bytes) -> int:
        """Where a send with this key goes."""
        return xxhash.xxh32_intdigest(key) % max(self.partition_count(topic), 1)

    def purge(self, stream: int, topic: int | None) -> None:
        """A topic, or all topics of a stream, were purged."""
        for key, offsets in self._partitions.items():
            if key[1] == stream and (topic is None or key[2] == topic):
                offsets.purge()

    # --- times ---

    def is_plausible(self, time: int) -> bool:
        """Whether our server, which has just been started, can have stamped something with this time."""
        return self._clock is None or 0 <= self._clock() - time <= _LONGEST_SECTION

    def our_time(self, recorded: int) -> int:
        """The time here that a request means with a time of its own run: that of a batch, or a microsecond off."""
        for distance in (0, 1, -1):
            if recorded - distance in self.times:
                return self.times[recorded - distance] + distance
        return recorded
