"""The staged parts of a server in memory: found by identity, by sink and by user, without walks over all of them."""

import asyncio
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from courser.model.clock import Clock
from courser.storage.staged_file import PartContents, PartIdentity, StagedFileWriter


class OpenPart:
    """One part in memory."""

    __slots__ = ("contents", "identity", "lock", "path", "rests_since", "touched_at", "upkeep", "writer")

    def __init__(self, identity: PartIdentity, path: Path, contents: PartContents, clock: Clock) -> None:
        self.identity = identity
        self.path = path
        self.contents = contents
        self.touch(clock)
        self.writer: StagedFileWriter | None = None
        self.upkeep: asyncio.Future[None] | None = None
        """Write-back hints to the kernel that are running."""
        self.lock = asyncio.Lock()
        """Held while disk work on this part is running."""

    def touch(self, clock: Clock) -> None:
        """Something was added to it, or the server has found it."""
        self.touched_at = clock.now()
        """For people."""
        self.rests_since = clock.monotonic()
        """By the monotonic clock: parts expire by it, so that no step of the wall clock removes or keeps any."""


class PartTable:
    """There may be a hundred thousand parts, and each new one asks how many there are."""

    def __init__(self) -> None:
        self._parts: dict[PartIdentity, OpenPart] = {}
        self._by_sink: dict[tuple[int, str], dict[PartIdentity, OpenPart]] = {}
        """By user and sink."""
        self._count_of_user: Counter[int] = Counter()
        self._in_work: dict[PartIdentity, OpenPart] = {}
        """Parts whose files are open, or about to be created."""

    def __len__(self) -> int:
        return len(self._parts)

    def get(self, identity: PartIdentity) -> OpenPart | None:
        """The part, or None."""
        return self._parts.get(identity)

    def all(self) -> Collection[OpenPart]:
        """All parts of all users."""
        return self._parts.values()

    def of_sink(self, user_id: int, sink: str) -> list[OpenPart]:
        """Those of a user for a sink."""
        return list(self._by_sink.get((user_id, sink), {}).values())

    def add(self, part: OpenPart) -> None:
        """List a part. There is none of its identity."""
        identity = part.identity
        self._parts[identity] = part
        self._by_sink.setdefault((identity.user_id, identity.sink), {})[identity] = part
        self._count_of_user[identity.user_id] += 1

    def remove(self, part: OpenPart) -> None:
        """List it no longer."""
        identity = part.identity
        del self._parts[identity]
        of_sink = self._by_sink[identity.user_id, identity.sink]
        del of_sink[identity]
        if not of_sink:
            del self._by_sink[identity.user_id, identity.sink]
        self._count_of_user[identity.user_id] -= 1
        if not self._count_of_user[identity.user_id]:
            del self._count_of_user[identity.user_id]
        self._in_work.pop(identity, None)

    def begin_work(self, part: OpenPart) -> None:
        """Its file is open, or about to be created."""
        self._in_work[part.identity] = part

    def end_work(self, part: OpenPart) -> None:
        """Its file is closed."""
        self._in_work.pop(part.identity, None)

    @property
    def in_work_count(self) -> int:
        """Parts whose files are open."""
        return len(self._in_work)

    def counts_of_user(self, user_id: int) -> tuple[int, int]:
        """How many parts a user has, and how many of them have open files, of which there are few."""
        return self._count_of_user[user_id], sum(identity.user_id == user_id for identity in self._in_work)
