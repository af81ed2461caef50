"""How quick the console is in a real browser: ``make console-speed``. It prints figures; no test depends on them."""

import asyncio
import re
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from playwright.async_api import Browser, expect

from tests.console.browsing import open_browser, open_tab
from tests.transports.whole_servers import WholeServer, whole_server

FIRST_VIEW_COUNT = 7
MESSAGE_RATE = 5_000
"""Messages per second."""
MESSAGE_COUNT = 25_000
_BATCH_COUNT = 50
_PAYLOAD = b'{"order": {"number": "A-%07d"}, "total": "12.50", "customer": {"name": "Ann", "city": "Bern"}}'
_NOTE_FIRST_FIGURES = """
new MutationObserver((_, observer) => {
  if (document.querySelector(".figure strong") === null) return;
  observer.disconnect();
  requestAnimationFrame(() => { window.firstViewAt = performance.now(); });
}).observe(document, { childList: true, subtree: true });
"""
_FIRST_VIEW_AT = "() => new Promise((done) => requestAnimationFrame(() => done(window.firstViewAt)))"
"""Of a frame that comes after the one that is noted."""
_NOTE_FRAMES = """() => {
  window.frames_at = [];
  const step = (at) => { window.frames_at.push(at); requestAnimationFrame(step); };
  requestAnimationFrame(step);
}"""


async def measure_first_view(browser: Browser, server: WholeServer) -> list[float]:
    """Milliseconds from the start of the navigation until the overview shows figures, each with an empty cache."""
    async with open_tab(browser, server.http_port) as tab:
        await tab.log_in(server)
        session = await tab.page.context.storage_state()
    times = []
    for _ in range(FIRST_VIEW_COUNT):
        async with open_tab(browser, server.http_port, storage_state=session) as tab:
            await tab.page.add_init_script(_NOTE_FIRST_FIGURES)
            await tab.open("/?all")
            await expect(tab.page.locator(".figure strong").first).to_be_visible()
            times.append(float(await tab.page.evaluate(_FIRST_VIEW_AT)))
    return times


async def send_steadily(server: WholeServer) -> float:
    """Send at the rate. Returns the messages per second that were reached."""
    began = time.perf_counter()
    for start in range(0, MESSAGE_COUNT, _BATCH_COUNT):
        await asyncio.sleep(began + start / MESSAGE_RATE - time.perf_counter())
        batch = (_PAYLOAD % number for number in range(start, start + _BATCH_COUNT))
        await server.send(*batch, stream="shop", topic="orders")
    return MESSAGE_COUNT / (time.perf_counter() - began)


async def measure_live_tail(browser: Browser, server: WholeServer) -> str:
    async with open_tab(browser, server.http_port) as tab:
        await tab.log_in(server)
        page = tab.page
        await tab.open("/streams/shop/topics/orders/messages?live=1")
        await expect(page.locator(".status")).to_contain_text("Waiting for new messages")
        await page.evaluate(_NOTE_FRAMES)
        rate = await send_steadily(server)
        frames = await page.evaluate("window.frames_at")
        await expect(page.locator(".status")).to_contain_text(f"{MESSAGE_COUNT:,} received")
        left_out = re.sub(r"\D", "", await page.locator(".dropped").inner_text()) or "0"
    gaps = [after - before for before, after in pairwise(frames)]
    return (
        f"{rate:,.0f} messages/s sent, {1000 * len(gaps) / sum(gaps):.0f} frames/s, longest frame {max(gaps):.0f} ms, "
        f"{int(left_out):,} of {MESSAGE_COUNT:,} messages counted as too fast to be shown"
    )


async def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        async with whole_server(Path(data) / "data") as server, open_browser() as browser:
            await server.add_topic("shop", "orders")
            times = await measure_first_view(browser, server)
            print(f"first view  {median(times):.0f} ms ({min(times):.0f} to {max(times):.0f}, {len(times)} times)")
            print(f"live tail   {await measure_live_tail(browser, server)}")


if __name__ == "__main__":
    asyncio.run(main())
