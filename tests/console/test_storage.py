"""The views of storage: segments, what will be deleted, verification, and what the last start found."""

from pathlib import Path

from playwright.async_api import Browser, Locator, Page, expect

from courser.api import commands as c
from courser.model.quantities import SECOND
from courser.model.topic_options import TopicOptions
from courser.storage.paths import log_path
from tests.console.browsing import Tab, open_tab
from tests.handlers.messaging import damage
from tests.transports.whole_servers import WholeServer, whole_server

VIEW = "/streams/shop/topics/orders/storage"


def cells(page: Page, table: str, column: int) -> Locator:
    return page.get_by_role("table", name=table).locator(f"tbody td:nth-child({column})")


async def fill(server: WholeServer, expiry: int = 60 * SECOND) -> Path:
    """Two sealed segments and an open one; returns the directory."""
    await server.ask(c.CreateStream("shop"))
    await server.ask(c.CreateTopic("shop", "orders", 1, TopicOptions(message_expiry=expiry)))
    partition = server.broker.partitions.topics[0, 0].partition(0)
    for payload in (b"first", b"second"):
        await server.send(payload, stream="shop", topic="orders")
        await partition.roll()
    await server.send(b"third", stream="shop", topic="orders")
    return partition.log.directory


async def test_segments_and_what_will_be_deleted(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    page = tab.page
    await tab.open(VIEW)
    await expect(cells(page, "Segments", 1)).to_have_text(["0", "1", "2"])
    await expect(cells(page, "Segments", 6)).to_have_text(["here", "here", "here, takes new messages"])
    await expect(page.locator("rect.segment")).to_have_count(3)
    await page.get_by_label("When").select_option("day")
    await expect(page.locator(".plan")).to_contain_text("In the next 24 hours: 3 segments")
    await expect(cells(page, "What will be deleted", 3)).to_have_text(["3"])
    # Nothing expires today if the topic keeps messages for a year.
    await server.ask(c.UpdateTopic("shop", "orders", "orders", TopicOptions(message_expiry=365 * 86400 * SECOND), True))
    await page.reload()
    await expect(page.locator(".plan")).to_contain_text("In the next 24 hours: nothing will be deleted.")


async def test_all_topics_and_the_sum_of_what_will_be_deleted(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    page = tab.page
    await page.keyboard.press("g")
    await page.keyboard.press("s")
    await page.get_by_label("When").select_option("day")
    await expect(page.locator(".plan")).to_contain_text("In the next 24 hours: 3 segments")
    await expect(cells(page, "Topics by size", 1)).to_have_text(["shop/orders"])
    await expect(page.get_by_text("The start found nothing to report.")).to_be_visible()
    await page.get_by_role("table", name="What will be deleted").get_by_role("link", name="shop/orders").click()
    await expect(cells(page, "Segments", 1)).to_have_text(["0", "1", "2"])


async def test_segments_are_verified_from_the_page(tab: Tab, server: WholeServer) -> None:
    directory = await fill(server)
    page = tab.page
    await tab.open(VIEW)
    await expect(cells(page, "Segments", 1)).to_have_text(["0", "1", "2"])
    await page.get_by_role("button", name="Verify", exact=True).first.click()
    await expect(cells(page, "Segments", 7).first).to_have_text("good")
    await expect(page.get_by_text("Verified 1 segment: all are good.")).to_be_visible()
    damage(log_path(directory, 1))
    await page.get_by_role("button", name="Verify all").click()
    await expect(cells(page, "Segments", 7).nth(1)).to_have_text("1 damaged range")
    await expect(cells(page, "Segments", 6).nth(1)).to_have_text("damaged")
    await expect(page.locator(".notice.bad")).to_contain_text("messages 1 to 1 are damaged on disk")
    await expect(page.locator("rect.segment.damaged")).to_have_count(1)


async def test_an_empty_server_and_an_empty_topic(tab: Tab, server: WholeServer) -> None:
    page = tab.page
    await tab.open("/storage")
    await expect(page.locator(".plan")).to_contain_text("Tonight: nothing will be deleted.")
    await expect(page.get_by_text("There are no topics yet.")).to_be_visible()
    await server.add_topic("shop", "orders")
    await tab.open(VIEW)
    await expect(page.get_by_text("There are no segments with messages.")).to_be_visible()


async def test_findings_of_the_last_start(browser: Browser, tmp_path: Path) -> None:
    async with whole_server(tmp_path / "data") as server:
        directory = await fill(server)
    log_path(directory, 0).rename(directory / "elsewhere")
    async with whole_server(tmp_path / "data") as server, open_tab(browser, server.http_port) as tab:
        await tab.log_in(server)
        await tab.open("/storage")
        await expect(tab.page.locator(".findings li").first).to_contain_text("error")
        await expect(tab.page.locator(".findings")).to_contain_text("00000000000000000000.log")
