"""What a new user wants to know, answered with clicks alone: no address is typed, nothing else is read."""

import json
import re

from playwright.async_api import expect

from courser.api import commands as c
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from courser.model.quantities import SECOND
from courser.model.topic_options import TopicOptions
from tests.console.browsing import Tab
from tests.transports.whole_servers import WholeServer


async def fill(server: WholeServer) -> None:
    """A shop with orders, of which the group billing has read none."""
    await server.add_topic("shop", "orders")
    orders = [json.dumps({"order": {"number": f"A-{number:04d}"}}).encode() for number in range(500)]
    await server.send(*orders, stream="shop", topic="orders")
    await server.ask(c.CreateConsumerGroup("shop", "orders", "billing"))


async def test_where_is_the_message_with_this_order_number(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    page = tab.page
    await page.get_by_role("link", name="Streams and topics").click()
    await page.get_by_role("link", name="shop/orders", exact=True).click()
    await page.get_by_role("link", name="Messages", exact=True).click()
    await expect(page.get_by_text("such as an order number")).to_be_visible()
    await page.get_by_label("Filter", exact=True).fill("A-0321")
    await page.keyboard.press("Enter")
    found = page.get_by_role("table", name="Messages").get_by_role("button")
    await expect(found).to_have_text(['{"order": {"number": "A-0321"}}'])
    await found.click()
    await expect(page.get_by_role("dialog", name="Message")).to_contain_text('"number": "A-0321"')


async def test_why_does_a_group_lag(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    page = tab.page
    # From the figure on the overview,
    await tab.open("/?all")
    await page.get_by_label("Figures").get_by_role("link", name="which groups?").click()
    await page.get_by_role("link", name="billing").click()
    await expect(page.locator(".notices")).to_contain_text("Nobody reads: the group has no members")
    # or from the topic.
    await page.get_by_role("link", name="Streams and topics").click()
    await page.get_by_role("row", name="shop/orders").get_by_role("link", name="500", exact=True).click()
    await page.get_by_role("link", name="billing").click()
    await expect(page.locator(".notices")).to_contain_text("500 messages wait")


async def test_what_will_be_deleted(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    await server.ask(c.CreateTopic("shop", "visits", 1, TopicOptions(message_expiry=60 * SECOND)))
    await server.send(b"GET /cart", stream="shop", topic="visits")
    page = tab.page
    # A topic that deletes nothing says so.
    await page.get_by_role("link", name="Streams and topics").click()
    await expect(page.get_by_role("row", name="shop/orders")).to_contain_text("forever")
    await page.get_by_role("link", name="Storage").click()
    # Tonight would end while the test runs, if it runs at midnight.
    await page.get_by_label("When").select_option("In the next 24 hours")
    await expect(page.locator(".plan")).to_contain_text("1 segment")
    plan = page.get_by_role("table", name="What will be deleted")
    await expect(plan.get_by_role("columnheader", name="First deletion")).to_be_visible()
    await expect(plan).to_contain_text("older than the topic keeps messages")
    await expect(plan.get_by_role("link")).to_have_text(["shop/visits"])


async def test_who_may_write_to_a_topic(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    only_here = StreamPermissions(topics={0: TopicPermissions(send_messages=True)})
    await server.ask(c.CreateUser("webshop", "secret", True, Permissions(GlobalPermissions(), {0: only_here})))
    await server.ask(c.CreateUser("clerk", "secret", True, Permissions(GlobalPermissions(read_streams=True))))
    page = tab.page
    await page.get_by_role("link", name="Streams and topics").click()
    await page.get_by_role("link", name="shop/orders", exact=True).click()
    await page.get_by_role("link", name="Who may send and read").click()
    await expect(page.get_by_label("Where").locator("option:checked")).to_have_text("in shop/orders")
    may_send = page.get_by_role("row").filter(has=page.locator("td[data-title=Send]", has_text="✓"))
    await expect(may_send).to_have_text([re.compile("^iggy"), re.compile("^webshop.*send_messages in the topic")])
