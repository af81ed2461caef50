"""Staged writes: messages that become visible all at once, exactly once, or not at all.

For writers that run as many tasks and decide together, such as Spark's. A *sink* publishes numbered batches; each task
stages its part under the number of its attempt, and whoever decides publishes one attempt of each part.
"""

from collections.abc import Iterable, Mapping

from courser.api import commands as c
from courser.api import replies as r
from courser.client.asking import Asking, place_of
from courser.client.messages import AnyPartitioning, Payload, SendMessage, outgoing, partitioning_of
from courser.client.messaging import make_batch
from courser.errors import TimedOut
from courser.model.identifiers import Identifier
from courser.records.batch import Batch

PUBLISH_ATTEMPT_MAX = 60
"""How often a publish that takes longer than the request's time is asked for again. The server goes on meanwhile."""


class StagingCommands(Asking):
    """Stage, finish, publish, discard."""

    async def stage(
        self,
        sink: str,
        batch: int,
        part: int,
        attempt: int,
        chunk: int,
        stream: Identifier,
        topic: Identifier | None = None,
        partitioning: AnyPartitioning = None,
        messages: Iterable[Payload | SendMessage] | Payload | SendMessage | Batch = (),
    ) -> None:
        """Put messages aside on the server, for one partition. Nobody sees them before they are published.

        Args:
            sink: Who publishes: 1 to 255 bytes, the same over restarts.
            batch: The number of the batch: each is published once, in rising order.
            part: The number of the task.
            attempt: Another one for every try of the task, also of tasks that run twice at a time.
            chunk: 0, 1, 2 and so on in this attempt: a chunk whose answer was lost is sent again under its number.
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            partitioning: The number of a partition, or a ``Partitioning``; None takes the partitions in turn.
            messages: Bytes, text, ``SendMessage``, several in a list, or a ``Batch``.
        """
        packed = messages if isinstance(messages, Batch) else make_batch(outgoing(messages), self._encryptor)
        name = c.StagedPartName(sink, batch, part, attempt)
        place = place_of(stream, topic)
        await self._tell(c.StageMessages(name, chunk, *place, partitioning_of(partitioning), packed))

    async def finish_stage(self, sink: str, batch: int, part: int, attempt: int, chunk_count: int) -> r.StagedPart:
        """Make a part durable; nothing can be added to it any more."""
        name = c.StagedPartName(sink, batch, part, attempt)
        return await self._ask(c.FinishStage(name, chunk_count), r.StagedPart)

    async def publish_staged(
        self, sink: str, batch: int, parts: Mapping[int, int], *, keep: float = 0.0
    ) -> r.Published:
        """Append all messages of these parts to their partitions: all or nothing, once, durable on return.

        A batch that is published already, or a lower one, is a success that changes nothing. What takes longer than
        the time for a request is asked for again, while the server goes on with it.

        Args:
            sink: Who publishes.
            batch: The number of the batch.
            parts: By number, the attempt that is chosen.
            keep: Seconds that the server remembers the sink; 0 is for ever.
        """
        command = c.PublishStaged(sink, batch, tuple(sorted(parts.items())), int(keep * 1_000_000))
        for _ in range(PUBLISH_ATTEMPT_MAX - 1):
            try:
                return await self._ask(command, r.Published)
            except TimedOut:
                continue
        return await self._ask(command, r.Published)

    async def discard_staged(self, sink: str, batch: int | None = None, *, forget: bool = False) -> None:
        """Remove what is staged for a batch, or for all, and not published.

        Args:
            sink: Whose parts.
            batch: Which ones; None is all.
            forget: Forget also what the sink has published: its numbers may then be used again.
        """
        await self._tell(c.DiscardStaged(sink, batch, forget))

    async def get_sink(self, sink: str) -> r.SinkInfo:
        """What a sink has published, and what is staged for it."""
        return await self._ask(c.GetSink(sink), r.SinkInfo)

    async def get_sinks(self) -> list[r.SinkSummary]:
        """All sinks: one's own, or everybody's for a user who may read the server."""
        return (await self._ask(c.GetSinks(), r.SinkList)).sinks

    async def get_staged_parts(self, sink: str) -> list[r.StagedPartInfo]:
        """What is staged for a sink and not published: one's own parts, or everybody's as in ``get_sinks``."""
        return (await self._ask(c.GetStagedParts(sink), r.StagedPartList)).parts
