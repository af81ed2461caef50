"""A consumer's place in its group: joining, and which partitions are its own."""

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
    """The partitions of one member."""

    partition_ids: tuple[int, ...]
    is_doubtful: bool
    """Whether somebody else may have had those in between that it had before."""


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
        """Of the share that it knows."""
        self.synced_at = 0.0
        """When it asked for the last time, by the event loop's clock."""

    async def join(self, *, patient: bool) -> None:
        """Become a member. A group that is not there is made, if that is wanted and it has a name."""
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
        """Which partitions are this member's now; None if they are those that it knows."""
        command = c.SyncConsumerGroup(self._stream, self._topic, self._group)
        try:
            reply = await self._link.request(command, patient=True)
        except (NotAssigned, NotFound):
            # Dropped as silent, or the group was deleted: begin anew.
            await self.join(patient=patient)
            reply = await self._link.request(command, patient=True)
            is_doubtful = True
        assert isinstance(reply, r.Assignment)
        self.synced_at = asyncio.get_running_loop().time()
        if reply.generation == self.generation and not is_doubtful:
            return None
        # After two rebalances at a time somebody else may have had these partitions in between.
        is_doubtful = is_doubtful or reply.generation != self.generation + 1
        self.generation = reply.generation
        return Share(tuple(reply.partition_ids), is_doubtful)

    async def leave(self) -> None:
        """Give the partitions back; who cannot be told finds out."""
        with suppress(CourserError):
            await self._link.request(c.LeaveConsumerGroup(self._stream, self._topic, self._group))
