"""Pictures of the console for the documentation: ``make screenshots``. Look at them before you commit them."""

import asyncio
import math
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Browser, expect

from courser.api import commands as c
from courser.broker.figures.history import INTERVAL
from courser.model.permissions import GlobalPermissions, Permissions
from courser.model.topic_options import TopicOptions
from tests.console.browsing import BROWSERS, browser_program, open_browser, open_tab
from tests.transports.whole_servers import WholeServer, whole_server

DESKTOP = {"viewport": {"width": 1200, "height": 760}}
PHONE = {"viewport": {"width": 390, "height": 760}, "has_touch": True}
PICTURES: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("overview-light", "/?all", DESKTOP | {"color_scheme": "light"}),
    ("overview-dark", "/?all", DESKTOP | {"color_scheme": "dark"}),
    ("overview-phone", "/?all", PHONE | {"color_scheme": "light"}),
    ("topics-light", "/streams", DESKTOP | {"color_scheme": "light"}),
    ("topics-phone", "/streams", PHONE | {"color_scheme": "dark"}),
    ("topic-dark", "/streams/shop/topics/orders", DESKTOP | {"color_scheme": "dark"}),
    ("messages-light", "/streams/shop/topics/orders/messages", DESKTOP | {"color_scheme": "light"}),
    ("messages-phone", "/streams/shop/topics/orders/messages", PHONE | {"color_scheme": "light"}),
    ("group-light", "/streams/shop/topics/payments/groups/warehouse", DESKTOP | {"color_scheme": "light"}),
    ("storage-dark", "/storage", DESKTOP | {"color_scheme": "dark"}),
    ("users-light", "/users?at=0 0", DESKTOP | {"color_scheme": "light"}),
)
_DAY = 86_400_000_000
_TOPICS = {"orders": 6, "payments": 3, "shipments": 2, "returns": 1}
_SAMPLE_COUNT = 360


async def add_contents(server: WholeServer) -> None:
    """A small shop."""
    await server.ask(c.CreateStream("shop"))
    for name, partition_count in _TOPICS.items():
        options = TopicOptions(message_expiry=7 * _DAY, max_topic_size=20 * 2**30)
        await server.ask(c.CreateTopic("shop", name, partition_count, options))
        await server.ask(c.CreateConsumerGroup("shop", name, "warehouse"))
        for first in range(0, 1_500, 50):
            orders = (
                f'{{"order": {10_000 + number}, "total": "{number % 90}.50"}}' for number in range(first, first + 50)
            )
            await server.send(*(order.encode() for order in orders), stream="shop", topic=name)
    await server.add_topic("logs", "web", 4)
    await server.add_topic("logs", "audit", 1)
    await server.send(*[b"GET /cart 200"] * 4_000, stream="logs", topic="web")
    await server.ask(c.ResetGroupOffsets("shop", "returns", "warehouse", True, ((0, 1_500),)))
    readers = Permissions(GlobalPermissions(read_streams=True, read_servers=True))
    await server.ask(c.CreateUser("warehouse", "secret", True, Permissions(GlobalPermissions(poll_messages=True))))
    await server.ask(c.CreateUser("dashboard", "secret", True, readers))


async def add_history(server: WholeServer) -> None:
    """An hour, made up: nobody waits for one."""
    history = server.broker.operating.history
    now, values = await history._measure()
    appended, polled, syncs = values[0], 0, 0
    samples = []
    for number in range(_SAMPLE_COUNT):
        wave = 1 + 0.35 * math.sin(number / 30) + 0.04 * math.sin(number * 0.4)
        appended += int(11_000 * wave)
        polled += int(10_600 * (1 + 0.35 * math.sin((number - 4) / 30)))
        syncs += 40
        row = list(values)
        row[0:4] = [appended, appended * 420, polled, polled * 420]
        row[4:6] = [syncs, int(syncs * (3_000 + 500 * math.sin(number / 50)))]
        row[6:9] = [number * 900, number * 90_000, number // 40]
        row[10:13] = [24 + number % 3, int(2_500 * (1.4 + math.sin(number / 60))), 4_000_000]
        row[13:15] = [appended, appended * 420]
        row[15:17] = [int(210e9 - number * 4e6), int(480e9)]
        samples.append((now - (_SAMPLE_COUNT - number) * INTERVAL, tuple(row)))
    history._samples.extend(samples)
    (before, earlier), (last, newest) = samples[-2:]

    async def go_on() -> tuple[int, tuple[int, ...]]:
        """As in the last interval."""
        time = server.broker.clock.now()
        share = (time - last) / (last - before)
        grown = (new + int((new - old) * share) for old, new in zip(earlier, newest, strict=True))
        return time, tuple(grown)

    history._measure = go_on  # type: ignore[method-assign]  # so that the charts end as they go on
    history._newest = None


async def take(browser: Browser, server: WholeServer, directory: Path) -> None:
    for name, view, look in PICTURES:
        async with open_tab(browser, server.http_port, **look) as tab:
            await tab.log_in(server)
            await tab.open(view)
            await expect(tab.page.get_by_role("heading", level=1)).to_be_visible()
            await asyncio.sleep(3)
            await tab.page.screenshot(path=directory / f"{name}.png")
            print(f"{directory / name}.png")


async def main(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as data:
        async with whole_server(Path(data) / "data") as server, open_browser(browser_program(BROWSERS)) as browser:
            await add_contents(server)
            await add_history(server)
            await take(browser, server, directory)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
