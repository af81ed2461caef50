"""The views of consumer groups: lag, its trend and its cause, unread messages, resets with a preview."""

from playwright.async_api import Browser, Locator, Page, expect

import courser
from courser.api import commands as c
from courser.model.messaging import Transport
from courser.model.permissions import GlobalPermissions, Permissions
from tests.console.browsing import Tab, open_tab
from tests.transports.whole_servers import WholeServer

GROUPS = "/streams/shop/topics/orders/groups"
GROUP = f"{GROUPS}/billing"


async def connect(server: WholeServer) -> courser.Client:
    return await courser.connect(f"iggy://iggy:iggy@{server.addresses[Transport.TCP]}")


async def fill(server: WholeServer) -> None:
    """Five messages in the first of two partitions; the group has read two."""
    await server.add_topic("shop", "orders", partition_count=2)
    async with await connect(server) as client:
        await client.send_messages("shop/orders", partitioning=0, messages=[f"m{number}" for number in range(5)])
        await client.create_consumer_group("shop/orders", name="billing")
    await server.ask(c.ResetGroupOffsets("shop", "orders", "billing", is_forced=False, offsets=((0, 2),)))


def cells(page: Page, table: str, column: int) -> Locator:
    return page.get_by_role("table", name=table).locator(f"tbody td:nth-child({column})")


def figure(page: Page, name: str) -> Locator:
    return page.locator(".figure").filter(has=page.get_by_text(name, exact=True)).locator("strong")


async def test_groups_are_created_and_deleted(tab: Tab, server: WholeServer) -> None:
    await server.add_topic("shop", "orders")
    page = tab.page
    await tab.open(GROUPS)
    await expect(page.get_by_text("No consumer group reads this topic")).to_be_visible()
    await page.get_by_role("button", name="Create a group").click()
    await page.get_by_label("Name").fill("audit")
    await page.get_by_role("dialog").get_by_role("button", name="Create", exact=True).click()
    await page.get_by_role("link", name="audit").click()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_label("Type audit to confirm").fill("audit")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("No consumer group reads this topic")).to_be_visible()


async def test_all_groups_with_their_lag(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    page = tab.page
    await page.keyboard.press("g")
    await page.keyboard.press("g")
    await expect(cells(page, "Consumer groups", 1)).to_have_text(["billing"])
    await expect(cells(page, "Consumer groups", 2)).to_have_text(["shop/orders"])
    await expect(cells(page, "Consumer groups", 4)).to_have_text(["3"])
    await page.get_by_label("Find a group or a topic").fill("nothing")
    await expect(cells(page, "Consumer groups", 1)).to_have_count(0)
    await page.get_by_label("Find a group or a topic").fill("bill")
    await page.get_by_role("link", name="billing").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("billing")


async def test_a_group_says_how_far_it_is_behind_and_why(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    page = tab.page
    await tab.open(GROUP)
    await expect(figure(page, "Lag")).to_have_text("3")
    await expect(cells(page, "Partitions", 5)).to_have_text(["3", "0"])
    await expect(page.locator(".notices")).to_contain_text("Nobody reads: the group has no members. 3 messages wait")
    async with await connect(server) as client, await connect(server) as consumer:
        await consumer.join_consumer_group("shop/orders", consumer_group="billing")
        await expect(figure(page, "Members")).to_have_text("1")
        await expect(cells(page, "Members", 2)).to_have_text(["0, 1"])
        await expect(page.locator(".notices")).to_contain_text("Partition 0 has 100 % of the lag")
        await client.send_messages("shop/orders", partitioning=1, messages=["more"] * 4)
        await expect(figure(page, "Lag")).to_have_text("7")
        await expect(figure(page, "Trend")).to_contain_text("grows")
        await expect(page.locator(".notices")).to_contain_text("The lag grows")


async def test_the_messages_that_a_group_has_not_read(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    page = tab.page
    await tab.open(GROUP)
    await page.get_by_role("link", name="Unread messages").click()
    await expect(cells(page, "Messages", 5)).to_have_text(["m2", "m3", "m4"])
    await expect(page.get_by_text("has not read yet")).to_be_visible()


async def test_a_reset_shows_first_what_it_changes(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    page = tab.page
    await tab.open(GROUP)
    await page.get_by_role("button", name="Reset offsets").click()
    form = page.get_by_role("dialog")
    go = form.get_by_role("button", name="Set offsets")
    await expect(go).to_be_disabled()
    await form.get_by_label("Continue at").select_option("offset")
    await form.get_by_label("Offset", exact=True).fill("4")
    await form.get_by_label("Offset", exact=True).press("Tab")
    await expect(form).to_contain_text("0 messages would be read again, 2 messages would be skipped")
    await expect(cells(page, "What changes", 3)).to_have_text(["4", "0"])
    await form.get_by_label("Continue at").select_option("time")
    await form.get_by_label("Time", exact=True).fill("20 minutes ago")
    await form.get_by_label("Time", exact=True).press("Tab")
    await expect(form).to_contain_text("2 messages would be read again, 0 messages would be skipped")
    await expect(cells(page, "What changes", 4)).to_have_text(["2", "0"])
    await go.click()
    await expect(form).to_have_count(0)
    await expect(figure(page, "Lag")).to_have_text("5")


async def test_a_group_with_members_is_reset_by_force_only(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    page = tab.page
    async with await connect(server) as consumer:
        await consumer.join_consumer_group("shop/orders", consumer_group="billing")
        await tab.open(GROUP)
        await expect(figure(page, "Members")).to_have_text("1")
        await page.get_by_role("button", name="Reset offsets").click()
        form = page.get_by_role("dialog")
        await form.get_by_label("Continue at").select_option("latest")
        await expect(form).to_contain_text("3 messages would be skipped")
        await expect(form.get_by_role("button", name="Set offsets")).to_be_disabled()
        await form.get_by_label("Remove 1 member first").check()
        await form.get_by_role("button", name="Set offsets").click()
        await expect(figure(page, "Lag")).to_have_text("0")
        await expect(figure(page, "Members")).to_have_text("0")


async def test_a_missing_permission_is_named(browser: Browser, server: WholeServer) -> None:
    await fill(server)
    async with await connect(server) as client:
        permissions = Permissions(GlobalPermissions(poll_messages=True))
        await client.create_user("clerk", "secret-of-clerk", permissions=permissions)
    async with open_tab(browser, server.http_port) as tab:
        tab.refusals = {403}
        await tab.log_in(server, "clerk")
        for view in ("/groups", GROUPS, GROUP, "/storage", "/streams/shop/topics/orders/storage"):
            await tab.open(view)
            await expect(tab.page.get_by_role("heading", name="Missing permission")).to_be_visible()
            await tab.open("/nowhere")
            await expect(tab.page.get_by_role("heading", name="There is no such view")).to_be_visible()
