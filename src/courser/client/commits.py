"""Offsets that a consumer is done with: gathered, and stored on the server."""

import asyncio
import logging

from courser.api import commands as c
from courser.client.link import Link
from courser.errors import NotAssigned
from courser.model.identifiers import Consumer as Reader
from courser.model.identifiers import Identifier

_log = logging.getLogger(__name__)


class Commits:
    """What one reader of a topic has done and what the server knows of it."""

    def __init__(self, link: Link, place: tuple[Identifier, Identifier], reader: Reader | None) -> None:
        """``reader`` is None if no offsets are stored: then nothing is noted."""
        self._link = link
        self._stream, self._topic = place
        self._reader = reader
        self._done: dict[int, int] = {}
        """By partition, the last offset that is done with and not committed."""
        self.stored_at = 0.0
        """When all of them were stored for the last time, by the event loop's clock."""
        self.is_patient = True
        """Whether a broken connection is waited for."""

    def note(self, partition_id: int, offset: int) -> None:
        """This one, and all before it in its partition, are done with: to be stored with others."""
        self._done[partition_id] = offset

    def forget(self, partition_id: int) -> None:
        """The partition is another's."""
        self._done.pop(partition_id, None)

    async def store_all(self) -> None:
        """Store what was noted."""
        self.stored_at = asyncio.get_running_loop().time()
        done, self._done = self._done, {}
        if done:
            await asyncio.gather(*(self._store(partition_id, offset) for partition_id, offset in done.items()))

    async def store(self, partition_id: int, offset: int) -> bool:
        """Store an offset at once. Returns False if the partition has become another member's."""
        if self._done.get(partition_id, -1) <= offset:
            self._done.pop(partition_id, None)
        return await self._store(partition_id, offset)

    async def _store(self, partition_id: int, offset: int) -> bool:
        assert self._reader is not None
        command = c.StoreConsumerOffset(self._reader, self._stream, self._topic, partition_id, offset)
        try:
            await self._link.request(command, patient=self.is_patient)
        except NotAssigned:
            _log.info("partition %d was given to another member before offset %d was committed", partition_id, offset)
            return False
        return True
