"""How quick the console is in a real browser: ``make console-speed``. It prints figures; no test depends on them.

The *first view* lasts from the start of the navigation until the frame with the figures of the overview is painted, for
a user who is logged in. *Cold*: in a new profile, with nothing in the cache. *Again*: in the same profile, which has
the files. The browser itself is running. The server is a process of its own, as users run it.
"""

import asyncio
import os
import re
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from playwright.async_api import Browser, Page, StorageState, expect

import courser
from courser.client.client import Client
from tests.console.browsing import BROWSERS, PATIENCE, browser_program, open_browser
from tests.servers import RunningServer, free_port

FIRST_VIEW_COUNT = 11
MESSAGE_RATE = 5_000
"""Messages per second."""
MESSAGE_COUNT = 25_000
_BATCH_COUNT = 50
_PAYLOAD = b'{"order": {"number": "A-%07d"}, "total": "12.50", "customer": {"name": "Ann", "city": "Bern"}}'
_NOTE_FIRST_VIEW = """
window.firstView = new Promise((resolve) => {
  new MutationObserver((_, observer) => {
    if (document.querySelector(".figure strong") === null) return;
    observer.disconnect();
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => resolve(performance.now());
    // A message that is sent in a frame arrives when the frame is painted.
    requestAnimationFrame(() => port2.postMessage(null));
  }).observe(document, { childList: true, subtree: true });
});
"""
_TRANSFERS = """(end) => performance.getEntries()
  .filter((entry) => "transferSize" in entry && entry.startTime <= end).map((entry) => entry.transferSize)"""
_NOTE_FRAMES = """() => {
  window.frames_at = [];
  const step = (at) => { window.frames_at.push(at); requestAnimationFrame(step); };
  requestAnimationFrame(step);
}"""


@dataclass
class Place:
    """A server, and where its console is."""

    server: RunningServer
    http_port: int
    client: Client

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.http_port}/ui/"

    @property
    def cpu_time(self) -> int:
        """Milliseconds of processor time that the server has used."""
        fields = Path(f"/proc/{self.server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * 1000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class View:
    """One first view."""

    time: float
    """Milliseconds."""
    sizes: list[int]
    """Bytes of each reply that came over the network; 0: from the cache."""


async def log_in(page: Page, place: Place) -> None:
    token = (await place.client.create_one_time_token()).token
    await page.goto(f"{place.root}#login={token}")
    await expect(page.locator(".who")).to_have_text("iggy", timeout=PATIENCE)


async def open_overview(page: Page, place: Place) -> View:
    await page.goto(f"{place.root}#/?all", wait_until="commit")
    end = float(await page.evaluate("() => window.firstView"))
    return View(end, await page.evaluate(_TRANSFERS, end))


async def measure_first_view(browser: Browser, place: Place, session: StorageState) -> tuple[View, View]:
    """In a new profile, and once more in the same."""
    context = await browser.new_context(storage_state=session)
    page = await context.new_page()
    await page.add_init_script(_NOTE_FIRST_VIEW)
    cold = await open_overview(page, place)
    await page.goto("about:blank")
    again = await open_overview(page, place)
    await context.close()
    return cold, again


async def measure_first_views(browser: Browser, place: Place) -> None:
    context = await browser.new_context()
    await log_in(await context.new_page(), place)
    session = await context.storage_state()
    await context.close()
    before = place.cpu_time
    pairs = [await measure_first_view(browser, place, session) for _ in range(FIRST_VIEW_COUNT)]
    cpu_time = (place.cpu_time - before) / len(pairs)
    for name, views in (("cold", [cold for cold, _ in pairs]), ("again", [again for _, again in pairs])):
        times = [view.time for view in views]
        sizes = [size for size in views[-1].sizes if size]
        print(
            f"first view  {name}: {median(times):.0f} ms ({min(times):.0f} to {max(times):.0f}, {len(times)} times), "
            f"{len(sizes)} requests, {sum(sizes):,} bytes"
        )
    print(f"first view  the server needs {cpu_time:.0f} ms of processor time for one of each")


async def send_steadily(client: Client) -> float:
    """Send at the rate. Returns the messages per second that were reached."""
    began = time.perf_counter()
    for start in range(0, MESSAGE_COUNT, _BATCH_COUNT):
        await asyncio.sleep(began + start / MESSAGE_RATE - time.perf_counter())
        batch = [_PAYLOAD % number for number in range(start, start + _BATCH_COUNT)]
        await client.send_messages("shop/orders", messages=batch)
    return MESSAGE_COUNT / (time.perf_counter() - began)


async def measure_live_tail(browser: Browser, place: Place) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await log_in(page, place)
    await page.goto(f"{place.root}#/streams/shop/topics/orders/messages?live=1")
    await expect(page.locator(".status")).to_contain_text("Waiting for new messages", timeout=PATIENCE)
    await page.evaluate(_NOTE_FRAMES)
    rate = await send_steadily(place.client)
    frames = await page.evaluate("window.frames_at")
    await expect(page.locator(".status")).to_contain_text(f"{MESSAGE_COUNT:,} received", timeout=PATIENCE)
    left_out = re.sub(r"\D", "", await page.locator(".dropped").inner_text()) or "0"
    await context.close()
    gaps = [after - before for before, after in pairwise(frames)]
    print(
        f"live tail   {rate:,.0f} messages/s sent, {1000 * len(gaps) / sum(gaps):.0f} frames/s, "
        f"longest frame {max(gaps):.0f} ms, "
        f"{int(left_out):,} of {MESSAGE_COUNT:,} messages counted as too fast to be shown"
    )


async def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        http_port = free_port()
        settings = {"http.enabled": "true", "http.address": f"127.0.0.1:{http_port}"}
        with RunningServer(Path(data) / "server", settings=settings) as server:
            client = await courser.connect(f"iggy://iggy:iggy@127.0.0.1:{server.port}")
            async with client, open_browser(browser_program(BROWSERS)) as browser:
                await client.create_stream("shop")
                await client.create_topic("shop/orders")
                place = Place(server, http_port, client)
                await measure_first_views(browser, place)
                await measure_live_tail(browser, place)
    print(f"load        {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} processors")


if __name__ == "__main__":
    asyncio.run(main())
