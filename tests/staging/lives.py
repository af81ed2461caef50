"""A server that stages and publishes on a disk that a test breaks, and a driver that does what Spark's would."""

from collections import Counter
from pathlib import Path

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.settings import BrokerSettings
from courser.errors import CourserError, ErrorCode
from courser.model.messaging import ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from tests.broker.fake_disks import PATH, FakeServer

SINK = "a query"
PARTS = {0: [(0, "a"), (1, "b"), (0, "c")], 1: [(1, "d"), (0, "e")]}
"""By part: partition and text of each chunk."""
EXPECTED = Counter({(0, "a"): 1, (1, "b"): 1, (0, "c"): 1, (1, "d"): 1, (0, "e"): 1})
ONE_THREAD = BrokerSettings(disk_thread_count=1)


class Life:
    """A server on a disk that exists only here, and what a driver does with it."""

    def __init__(self, seed: int, *, level: str, settings: BrokerSettings = ONE_THREAD) -> None:
        self.server = FakeServer(seed, settings)
        self.level = level
        self.attempt = 0
        self.is_answered = False
        """Whether the driver was told that the batch is published."""

    async def begin(self) -> None:
        await self.server.open()
        await self.server.ask(c.CreateStream("s"))
        await self.server.add_topic("t", 2, TopicOptions(durability=self.level))
        await self.server.send("t", "before", 0)

    async def stage(self) -> dict[int, int]:
        """All parts, under an attempt of their own."""
        self.attempt += 1
        for part, chunks in PARTS.items():
            name = c.StagedPartName(SINK, 0, part, self.attempt)
            for chunk, (partition, text) in enumerate(chunks):
                batch = build_batch([NewMessage(text.encode())])
                await self.server.ask(c.StageMessages(name, chunk, "s", "t", ToPartition(partition), batch))
            await self.server.ask(c.FinishStage(name, len(chunks)))
        return dict.fromkeys(PARTS, self.attempt)

    async def publish(self, parts: dict[int, int]) -> r.Published:
        reply = await self.server.ask(c.PublishStaged(SINK, 0, tuple(parts.items()), 0))
        assert isinstance(reply, r.Published)
        return reply

    async def work(self, *, to_the_end: bool = True) -> None:
        """A whole batch, as tasks and driver of Spark do it, after whatever happened before.

        ``to_the_end``: with what the server does behind its answer.
        """
        try:
            parts = await self.stage()
        except CourserError as error:
            if error.code is not ErrorCode.BATCH_ALREADY_PUBLISHED:
                raise
            parts = {}
        await self.publish(parts)
        self.is_answered = True
        if to_the_end:
            await self.server.broker.publishing.idle()

    async def check_shown(self) -> None:
        """A whole batch; what is answered can be read."""
        await self.work(to_the_end=False)
        assert await self.seen() == EXPECTED

    async def seen(self) -> Counter[tuple[int, str]]:
        found: Counter[tuple[int, str]] = Counter()
        for partition in range(2):
            found.update((partition, text) for text in (await self.server.read("t", partition)).values())
        # Sent and not synced: a power cut may have taken it.
        del found[0, "before"]
        return found

    async def is_open(self) -> bool:
        """Whether the publish is decided and not ended."""
        sink = await self.server.ask(c.GetSink(SINK))
        assert isinstance(sink, r.SinkInfo)
        return sink.is_open

    def staged_files(self) -> list[Path]:
        return [path for path in self.server.disk.files() if path.parent == PATH / "staging"]


async def not_yet(*_: object) -> None:
    return
