"""What tests of single commands find on the server: a stream, a topic, messages, a group, a user, a token, a sink."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count

from courser.client.client import connect
from courser.client.messages import SendMessage
from courser.errors import NotFound

_NUMBERS = count(1)


@dataclass(frozen=True)
class Scene:
    """Names of things that one test has for itself."""

    number: int

    @property
    def names(self) -> dict[str, str]:
        """For command lines: ``{s}`` is the stream, ``{t}`` stream and topic, and so on."""
        return {
            "s": f"stream{self.number}",
            "t": f"stream{self.number}/orders",
            "g": "readers",
            "u": f"user{self.number}",
            "p": f"token{self.number}",
            "k": f"sink{self.number}",
            "new": f"new{self.number}",
        }


def make_scene(address: str) -> Scene:
    """Three messages in ``orders``, whose group ``readers`` has committed the first; consumer ``app`` the second."""
    scene = Scene(next(_NUMBERS))
    asyncio.run(_make(address, scene.names))
    return scene


async def _make(address: str, names: dict[str, str]) -> None:
    async with connect(f"iggy://iggy:iggy@{address}") as client:
        await client.create_stream(names["s"])
        await client.create_topic(names["t"], partitions_count=2)
        messages = [SendMessage(f'{{"n":{number}}}', headers={"h": number}, key="k") for number in range(3)]
        await client.send_messages(names["t"], partitioning=0, messages=messages)
        await client.create_consumer_group(names["t"], name=names["g"])
        await client.join_consumer_group(names["t"], consumer_group=names["g"])
        await client.store_consumer_offset(names["t"], partition_id=0, offset=0, group=names["g"])
        await client.store_consumer_offset(names["t"], partition_id=0, offset=1, consumer="app")


def make_user(address: str, name: str) -> None:
    """An account with the password ``secret``."""

    async def make() -> None:
        async with connect(f"iggy://iggy:iggy@{address}") as client:
            await client.create_user(name, "secret")

    asyncio.run(make())


def make_sink(address: str, name: str, topic: str) -> None:
    """Batch 0 is published, a part of batch 1 is staged."""

    async def make() -> None:
        async with connect(f"iggy://iggy:iggy@{address}") as client:
            for batch in (0, 1):
                await client.stage(name, batch, 0, 1, 0, topic, None, 0, f"of batch {batch}")
                await client.finish_stage(name, batch, 0, 1, 1)
            await client.publish_staged(name, 0, {0: 1})

    asyncio.run(make())


@contextmanager
def token(address: str, name: str) -> Iterator[None]:
    """A token, gone at the end: a user has a hundred at most."""

    async def change(*, is_made: bool) -> None:
        async with connect(f"iggy://iggy:iggy@{address}") as client:
            if is_made:
                await client.create_personal_access_token(name, "1 day")
            else:
                with suppress(NotFound):
                    await client.delete_personal_access_token(name)

    asyncio.run(change(is_made=True))
    yield
    asyncio.run(change(is_made=False))
