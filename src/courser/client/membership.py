"""The membership of a consumer in its group: join, leave, and the assigned partitions.

A member confirms each assignment once it has committed and given up what it lost. Only then do others get it.
"""

import time
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

    generation: int
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
        """The generation of the share that is in effect: what it took away has been given up."""
        self.synced_at = 0.0
        """The time of the last request, by the monotonic clock."""

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
        """Confirm the share that is in effect. Returns the next one; None if it has not changed."""
        if is_doubtful:
            # A new membership, perhaps of a server that counts from 1 again.
            self.generation = 0
        try:
            reply = await self._confirm()
        except (NotAssigned, NotFound):
            # Removed because of silence, too slow to give up a partition, or the group was deleted.
            await self.join(patient=patient)
            self.generation, is_doubtful = 0, True
            reply = await self._confirm()
        self.synced_at = time.monotonic()
        if reply.generation == self.generation and not is_doubtful:
            return None
        return Share(reply.generation, tuple(reply.partition_ids), is_doubtful)

    async def _confirm(self) -> r.Assignment:
        command = c.ConfirmAssignment(self._stream, self._topic, self._group, self.generation)
        return await self._link.ask(command, r.Assignment, patient=True)

    async def leave(self) -> None:
        """Leave the group. Errors are ignored: the server notices a missing member itself."""
        with suppress(CourserError):
            await self._link.request(c.LeaveConsumerGroup(self._stream, self._topic, self._group))
