"""Commit the offsets of a consumer: collect them, and store them on the server."""

import asyncio
import logging

from courser.api import commands as c
from courser.client.link import Link
from courser.errors import NotAssigned
from courser.model.identifiers import Consumer as Reader
from courser.model.identifiers import Identifier

_log = logging.getLogger(__name__)


class Commits:
    """The processed offsets of one reader of a topic, and when they were last stored."""

    def __init__(self, link: Link, place: tuple[Identifier, Identifier], reader: Reader | None) -> None:
        """``reader`` is None if no offsets are stored: then nothing is recorded."""
        self._link = link
        self._stream, self._topic = place
        self._reader = reader
        self._done: dict[int, int] = {}
        """By partition, the last offset that is processed but not committed."""
        self.stored_at = 0.0
        """When all of them were last stored, by the event loop's clock."""
        self.is_patient = True
        """Whether to wait for a reconnect if the connection breaks."""

    def note(self, partition_id: int, offset: int) -> None:
        """Record that this offset and all before it are processed. They are stored later, together with others."""
        self._done[partition_id] = offset

    def forget(self, partition_id: int) -> None:
        """Drop a partition that now belongs to another member."""
        self._done.pop(partition_id, None)

    async def store_all(self) -> None:
        """Store the recorded offsets."""
        self.stored_at = asyncio.get_running_loop().time()
        done, self._done = self._done, {}
        if done:
            await asyncio.gather(*(self._store(partition_id, offset) for partition_id, offset in done.items()))

    async def store(self, partition_id: int, offset: int) -> bool:
        """Store an offset at once. Returns False if the partition now belongs to another member."""
        if self._done.get(partition_id, -1) <= offset:
            self._done.pop(partition_id, None)
        return await self._store(partition_id, offset)

    async def _store(self, partition_id: int, offset: int) -> bool:
        assert self._reader is not None
        command = c.StoreConsumerOffset(self._reader, self._stream, self._topic, partition_id, offset)
        try:
            await self._link.request(command, patient=self.is_patient)
        except NotAssigned:
            _log.info("partition %d was reassigned before offset %d was committed", partition_id, offset)
            return False
        return True
