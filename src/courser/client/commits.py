"""Commit the offsets of a consumer: collect them, and store them on the server.

The commit of a group member belongs to one connection. After a reconnect the partition may belong to another member, or
may have belonged to one in between, and a late commit would take the group back. So it is not repeated on the next
connection before the consumer knows its partitions there.
"""

import asyncio
import logging
import time
from collections.abc import Collection

from courser.api import commands as c
from courser.client.link import Link
from courser.errors import ConnectionFailed, NotAssigned, RequestFailed
from courser.model.identifiers import Consumer as Reader
from courser.model.identifiers import ConsumerKind, Identifier

_log = logging.getLogger(__name__)


class Commits:
    """The processed offsets of one reader of a topic, and when they were last stored."""

    def __init__(self, link: Link, place: tuple[Identifier, Identifier], reader: Reader | None) -> None:
        """``reader`` is None if no offsets are stored: then nothing is recorded."""
        self._link = link
        self._stream, self._topic = place
        self._reader = reader
        self._is_member = reader is not None and reader.kind is ConsumerKind.GROUP
        self._done: dict[int, int] = {}
        """By partition, the last offset that is processed but not committed."""
        self._floors: dict[int, int] = {}
        """By partition, an offset that the group committed while this member was away."""
        self._stored: dict[int, int] = {}
        """By partition, the last offset that this member has committed."""
        self.stored_at = 0.0
        """When all of them were last stored, by the monotonic clock."""
        self.is_patient = True
        """Whether to wait for a reconnect if the connection breaks."""
        self.connection_count = 0
        """The connection for which the assigned partitions are known."""

    def note(self, partition_id: int, offset: int) -> None:
        """Record that this offset and all before it are processed. They are stored later, together with others."""
        if not self._floors or not self.is_behind(partition_id, offset):
            self._done[partition_id] = offset

    def forget(self, partition_id: int) -> None:
        """Drop a partition: it belongs to another member, or is read from another offset."""
        self._done.pop(partition_id, None)
        self._floors.pop(partition_id, None)
        self._stored.pop(partition_id, None)

    def is_behind(self, partition_id: int, offset: int) -> bool:
        """Whether the group has committed this offset or a later one while this member was away."""
        return offset <= self._floors.get(partition_id, -1)

    def is_reset(self, partition_id: int, stored: int | None) -> bool:
        """Whether the group is behind what this member has committed: somebody has reset it."""
        return partition_id in self._stored and (stored is None or stored < self._stored[partition_id])

    def raise_floor(self, partition_id: int, stored: int | None) -> None:
        """The group has committed this offset. Older offsets are not stored any more."""
        if stored is not None:
            self._floors[partition_id] = stored
            if self._done.get(partition_id, stored + 1) <= stored:
                del self._done[partition_id]

    async def store_all(self) -> set[int]:
        """Store the recorded offsets. Returns the partitions that now belong to other members."""
        self.stored_at = time.monotonic()
        return await self.store_noted(tuple(self._done))

    async def store_noted(self, partition_ids: Collection[int]) -> set[int]:
        """Store what is recorded for some partitions; see ``store_all``. It stays recorded if the connection breaks."""
        done = {partition_id: self._done.pop(partition_id) for partition_id in partition_ids & self._done.keys()}
        results = await asyncio.gather(*(self._store_later(*row) for row in done.items()))
        return {partition_id for partition_id, is_stored in zip(done, results, strict=True) if not is_stored}

    async def _store_later(self, partition_id: int, offset: int) -> bool:
        try:
            return await self._store(partition_id, offset)
        except ConnectionFailed:
            if not self._is_member:
                raise
            self._done.setdefault(partition_id, offset)
            return True

    async def store(self, partition_id: int, offset: int) -> bool:
        """Store an offset at once. Returns False if the partition now belongs to another member.

        Raises:
            ConnectionFailed: the connection broke, and a group member must find out what it owns.
        """
        if self._done.get(partition_id, -1) <= offset:
            self._done.pop(partition_id, None)
        return await self._store(partition_id, offset)

    async def _store(self, partition_id: int, offset: int) -> bool:
        assert self._reader is not None
        command = c.StoreConsumerOffset(self._reader, self._stream, self._topic, partition_id, offset)
        try:
            if self._is_member:
                await self._request_here(command)
            else:
                await self._link.request(command, patient=self.is_patient)
        except NotAssigned:
            _log.info("partition %d was reassigned before offset %d was committed", partition_id, offset)
            return False
        self._stored[partition_id] = offset
        return True

    async def _request_here(self, command: c.StoreConsumerOffset) -> None:
        """Send a command on the connection for which the partitions are known, and on no other."""
        connection = self._link.current
        if connection is None or self._link.connection_count != self.connection_count:
            raise ConnectionFailed(self._link.target.address, "the connection broke before the commit")
        try:
            await connection.request(command)
        except RequestFailed as error:
            if not self._link.logs_in_again(error):
                raise
            failure = ConnectionFailed(connection.address, str(error))
            connection.fail(failure)
            raise failure from error
