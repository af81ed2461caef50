"""The membership of a consumer in its group: join, leave, and the assigned partitions."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from courser.api import commands as c
from courser.api import replies as r
from courser.client.link import Link
from courser.errors import AlreadyExists, CourserError, ErrorCode, NotAssigned, NotFound
from courser.model.identifiers import Identifier


@dataclass(frozen=True, slots=True)
class Share:
    """The partitions assigned to one member."""

    partition_ids: tuple[int, ...]
    is_doubtful: bool
    """Whether another member may have owned some of the partitions in between."""


class Membership:
    """One member of a group."""

    def __init__(
        self, link: Link, place: tuple[Identifier, Identifier], group: Identifier, *, creates_group: bool
    ) -> None:
        self._link = link
        self._stream, self._topic = place
        self._group = group
        self._creates_group = creates_group
        self.generation = 0
        """The generation of the last known share."""
        self.synced_at = 0.0
        """The time of the last request, by the event loop's clock."""

    async def join(self, *, patient: bool) -> None:
        """Become a member. Creates a missing group, if that is enabled and the group is given by name."""
        join = c.JoinConsumerGroup(self._stream, self._topic, self._group)
        try:
            await self._link.request(join, patient=patient)
        except NotFound as missing:
            if (
                missing.code is not ErrorCode.GROUP_NOT_FOUND
                or not self._creates_group
                or not isinstance(self._group, str)
            ):
                raise
            with suppress(AlreadyExists):
                await self._link.request(c.CreateConsumerGroup(self._stream, self._topic, self._group))
            await self._link.request(join)

    async def sync(self, *, is_doubtful: bool, patient: bool) -> Share | None:
        """The partitions now assigned to this member; None if they have not changed."""
        command = c.SyncConsumerGroup(self._stream, self._topic, self._group)
        try:
            reply = await self._link.request(command, patient=True)
        except (NotAssigned, NotFound):
            # Removed because of silence, or the group was deleted: join again.
            await self.join(patient=patient)
            reply = await self._link.request(command, patient=True)
            is_doubtful = True
        assert isinstance(reply, r.Assignment)
        self.synced_at = asyncio.get_running_loop().time()
        if reply.generation == self.generation and not is_doubtful:
            return None
        # After more than one rebalance, another member may have owned these partitions in between.
        is_doubtful = is_doubtful or reply.generation != self.generation + 1
        self.generation = reply.generation
        return Share(tuple(reply.partition_ids), is_doubtful)

    async def leave(self) -> None:
        """Leave the group. Errors are ignored: the server notices a missing member itself."""
        with suppress(CourserError):
            await self._link.request(c.LeaveConsumerGroup(self._stream, self._topic, self._group))
