"""Staged writes: messages that are published together, exactly once, or not at all.

For writers that run as many tasks and commit together, such as Spark. A *sink* publishes numbered batches. Each task
stages its part under the number of its attempt, and the coordinator publishes one attempt of each part.
"""

from collections.abc import Iterable, Mapping

from courser.api import commands as c
from courser.api import replies as r
from courser.client.argument_checks import check_seconds
from courser.client.asking import Asking, place_of
from courser.client.messages import AnyPartitioning, Payload, SendMessage, outgoing, partitioning_of
from courser.client.messaging import make_batch
from courser.errors import TimedOut
from courser.model.identifiers import Identifier
from courser.records.batch import Batch

PUBLISH_ATTEMPT_MAX = 60
"""How often a publish that exceeds the request timeout is repeated. The server continues in the meantime."""


class SinkCommands(Asking):
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
        """Stage messages on the server, for one partition. They are invisible until they are published.

        Args:
            sink: The name of the sink: 1 to 255 bytes, the same after a restart.
            batch: The number of the batch. Batches are published once, in ascending order.
            part: The number of the task.
            attempt: A different number for every attempt of the task, also for concurrent attempts.
            chunk: 0, 1, 2 and so on in this attempt. A chunk whose reply was lost is sent again with its number.
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            partitioning: A partition id, or a ``Partitioning``; None uses all partitions in turn.
            messages: Bytes, text, ``SendMessage``, several in a list, or a ``Batch``.

        Raises:
            InvalidRequest: the batch is published already, or the numbers do not follow each other.
            ServerFailure: there is no room for more staged messages.

        Example:
            await client.stage("loader", 1, 0, 0, 0, "shop/orders", partitioning=0, messages=["one", "two"])
            await client.finish_stage("loader", 1, 0, 0, chunk_count=1)
            await client.publish_staged("loader", 1, {0: 0})
        """
        packed = (
            messages if isinstance(messages, Batch) else make_batch(outgoing(messages), self._encryptor, self._link)
        )
        name = c.StagedPartName(sink, batch, part, attempt)
        place = place_of(stream, topic)
        await self._tell(c.StageMessages(name, chunk, *place, partitioning_of(partitioning), packed))

    async def finish_stage(self, sink: str, batch: int, part: int, attempt: int, chunk_count: int) -> r.StagedPart:
        """Make a part durable. Nothing can be added to it afterwards.

        Raises:
            InvalidRequest: chunks are missing.

        Example:
            await client.stage("loader", 1, 0, 0, 0, "shop/orders", partitioning=0, messages=["one"])
            part = await client.finish_stage("loader", 1, 0, 0, chunk_count=1)
            print(part.message_count, part.size)
        """
        name = c.StagedPartName(sink, batch, part, attempt)
        return await self._ask(c.FinishStage(name, chunk_count), r.StagedPart)

    async def publish_staged(
        self, sink: str, batch: int, parts: Mapping[int, int], *, keep: float = 0.0
    ) -> r.Published:
        """Append all messages of these parts to their partitions: all or none, exactly once, durable on return.

        Publishing a batch again, or a lower one, succeeds without effect. If a publish exceeds the request timeout, the
        request is repeated while the server continues.

        Args:
            sink: The name of the sink.
            batch: The number of the batch.
            parts: By part number, the chosen attempt.
            keep: Seconds that the server remembers the sink; 0 means forever.

        Raises:
            NotFound: a part does not exist, or its topic is gone.
            InvalidRequest: a part is not finished.

        Example:
            await client.stage("loader", 1, 0, 0, 0, "shop/orders", partitioning=0, messages=["one"])
            await client.finish_stage("loader", 1, 0, 0, chunk_count=1)
            published = await client.publish_staged("loader", 1, {0: 0})
            print(published.message_count, published.is_repeated)
        """
        if not isinstance(parts, Mapping):
            raise TypeError(f"parts must be a mapping of parts to attempts, not {parts!r}")
        microseconds = int(check_seconds("keep", keep) * 1_000_000)
        command = c.PublishStaged(sink, batch, tuple(sorted(parts.items())), microseconds)
        for _ in range(PUBLISH_ATTEMPT_MAX - 1):
            try:
                return await self._ask(command, r.Published)
            except TimedOut:
                continue
        return await self._ask(command, r.Published)

    async def discard_staged(self, sink: str, batch: int | None = None, *, forget: bool = False) -> None:
        """Delete the staged, unpublished parts of a batch, or of all batches.

        Args:
            sink: The name of the sink.
            batch: The number of the batch; None means all.
            forget: Also forget which batches the sink has published. Its numbers can then be used again.

        Example:
            await client.stage("loader", 1, 0, 0, 0, "shop/orders", partitioning=0, messages=["one"])
            await client.discard_staged("loader", 1)
        """
        await self._tell(c.DiscardStaged(sink, batch, forget))

    async def get_sink(self, sink: str) -> r.SinkInfo:
        """The published batch and the staged data of a sink. One that does not exist has neither."""
        return await self._ask(c.GetSink(sink), r.SinkInfo)

    async def get_sinks(self) -> list[r.SinkSummary]:
        """The sinks of the current user, or all sinks for a user who may read the server."""
        return (await self._ask(c.GetSinks(), r.SinkList)).sinks

    async def get_staged_parts(self, sink: str) -> list[r.StagedPartInfo]:
        """The staged, unpublished parts of a sink: those of the current user, or all, as in ``get_sinks``."""
        return (await self._ask(c.GetStagedParts(sink), r.StagedPartList)).parts
