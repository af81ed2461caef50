"""The view of messages: reading, seeking, filtering, following, sending; also what is hostile, huge or forbidden."""

import json
import re
import time
from pathlib import Path
from uuid import UUID

from playwright.async_api import Browser, Locator, Page, expect

import courser
from courser.model.messaging import Transport
from courser.model.permissions import GlobalPermissions, Permissions
from tests.console.browsing import Tab, open_tab
from tests.transports.whole_servers import WholeServer

VIEW = "/streams/shop/topics/orders/messages"
HUGE_SIZE = 10 * 1024 * 1024
BIG_ID = 2**128 - 5


def rows(page: Page) -> Locator:
    return page.get_by_role("table", name="Messages").locator("tbody tr")


def previews(page: Page) -> Locator:
    return rows(page).locator(".preview")


async def connect(server: WholeServer) -> courser.Client:
    return await courser.connect(f"iggy://iggy:iggy@{server.addresses[Transport.TCP]}")


async def fill(server: WholeServer, count: int = 5) -> None:
    await server.add_topic("shop", "orders")
    payloads = [json.dumps({"order": {"id": f"A-{number}"}, "n": number}).encode() for number in range(count)]
    await server.send(*payloads, stream="shop", topic="orders")


def moment_between(server: WholeServer) -> int:
    """Microseconds: later than every message so far, and earlier than every message to come."""
    now = server.broker.clock.now
    before = now()
    while (moment := now()) <= before:
        pass
    while now() <= moment:
        pass
    return moment


async def search(page: Page, **fields: str) -> None:
    for label, text in fields.items():
        await page.get_by_label(label.capitalize(), exact=True).fill(text)
    await page.get_by_role("button", name="Search", exact=True).last.click()


async def test_three_clicks_lead_to_a_readable_message(tab: Tab, server: WholeServer) -> None:
    await fill(server, 2)
    page = tab.page
    await page.get_by_role("link", name="Streams and topics").click()
    await page.get_by_role("link", name="shop/orders", exact=True).click()
    await page.get_by_role("link", name="Messages", exact=True).click()
    await expect(previews(page)).to_have_text(['{"order": {"id": "A-1"}, "n": 1}', '{"order": {"id": "A-0"}, "n": 0}'])


async def test_an_empty_topic_says_what_to_do_and_the_form_sends(tab: Tab, server: WholeServer) -> None:
    await server.add_topic("shop", "orders", partition_count=2)
    page = tab.page
    await tab.open(VIEW)
    await expect(page.get_by_role("heading", name="No messages yet")).to_be_visible()
    await page.get_by_role("button", name="Send a message").click()
    form = page.get_by_role("dialog")
    await form.get_by_label("Payload", exact=True).fill('{"n": 1}')
    await form.get_by_label("Key").fill("customer-7")
    await form.get_by_label("Headers").fill("source: shop")
    await form.get_by_role("button", name="Send", exact=True).click()
    await expect(previews(page)).to_have_text(['{"n": 1}'])
    await expect(rows(page).first).to_contain_text("customer-7")
    await previews(page).first.get_by_role("button").click()
    message = page.get_by_role("dialog", name="Message")
    await expect(message.locator(".headers")).to_contain_text("source")
    # Once more, as it is.
    await message.get_by_role("button", name="Send again").first.click()
    await page.get_by_role("dialog", name="Send again").get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator(".toast").last).to_contain_text("at offset 1")
    async with await connect(server) as client:
        sent = await client.get_topic("shop/orders")
        assert sent.topic.message_count == 2


async def test_seek_by_offset_and_by_time(tab: Tab, server: WholeServer) -> None:
    await fill(server)
    middle = moment_between(server)
    await server.send(b"late", stream="shop", topic="orders")
    page = tab.page
    await tab.open(VIEW)
    offsets = rows(page).locator("td:nth-child(3)")
    await expect(offsets).to_have_text(["5", "4", "3", "2", "1", "0"])
    await search(page, **{"from": "2"})
    await expect(offsets).to_have_text(["2", "1", "0"])
    await page.get_by_label("Order", exact=True).select_option("oldest")
    await expect(offsets).to_have_text(["2", "3", "4", "5"])
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(middle // 10**6)) + f".{middle % 10**6:06d}Z"
    await search(page, **{"from": moment})
    await expect(offsets).to_have_text(["5"])
    await page.get_by_label("Order", exact=True).select_option("newest")
    await expect(offsets).to_have_text(["4", "3", "2", "1", "0"])
    # The address says all of it.
    await page.reload()
    await expect(offsets).to_have_text(["4", "3", "2", "1", "0"])
    await search(page, **{"from": "20 minutes ago"})
    await expect(page.get_by_role("heading", name="No message matches")).to_be_visible()
    await search(page, **{"from": "soon"})
    await expect(page.get_by_role("alert").filter(has_text="is not a time")).to_be_visible()


async def test_filters_are_evaluated_by_the_server(tab: Tab, server: WholeServer) -> None:
    await fill(server, 3000)
    page = tab.page
    await tab.open(VIEW)
    await search(page, filter=".order.id=A-1234")
    await expect(previews(page)).to_have_text(['{"order": {"id": "A-1234"}, "n": 1234}'])
    await expect(page.locator(".status")).to_contain_text("1 found. Looked at 3,000 of 3,000 messages")
    await search(page, filter=".n > 2800")
    await expect(rows(page)).to_have_count(100)
    await page.get_by_role("button", name="Show more").click()
    await expect(page.locator(".status")).to_contain_text("199 found")
    await expect(page.get_by_role("button", name="Show more")).to_be_hidden()
    await page.get_by_text("More conditions").click()
    await page.get_by_label("All of these too").fill(".n < 2803")
    await search(page)
    await expect(rows(page)).to_have_count(2)
    assert "filter=.n" in page.url
    tab.refusals = {400}
    await search(page, filter=".a..b=1")
    await expect(page.get_by_role("alert").filter(has_text="is not a JSON path")).to_be_visible()


async def test_a_payload_that_tries_to_run_a_script_is_shown_as_text(tab: Tab, server: WholeServer) -> None:
    await server.add_topic("shop", "orders")
    hostile = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    async with await connect(server) as client:
        message = courser.SendMessage(hostile, headers={hostile[:200]: hostile}, key=hostile.encode()[:200])
        await client.send_messages("shop/orders", messages=message)
    page = tab.page
    await tab.open(VIEW)
    await expect(previews(page)).to_have_text([hostile])
    await previews(page).first.get_by_role("button").click()
    await expect(page.locator("pre.payload")).to_have_text(hostile)
    assert await page.locator("main img, dialog img, dialog script, main script").count() == 0
    assert "taken" not in await page.title()


async def test_a_huge_payload_is_cut_and_can_be_downloaded(tab: Tab, server: WholeServer, tmp_path: Path) -> None:
    await server.add_topic("shop", "orders")
    payload = b'{"n": "' + b"x" * HUGE_SIZE + b'"}'
    await server.send(payload, stream="shop", topic="orders")
    page = tab.page
    await tab.open(VIEW)
    await expect(rows(page)).to_contain_text(["10.0 MiB"])
    await previews(page).first.get_by_role("button").click()
    await expect(page.locator(".cut")).to_contain_text("Only the first 64.0 KiB of 10.0 MiB are shown")
    assert len(await page.locator("pre.payload").inner_text()) <= 64 * 1024
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download payload").click()
    target = tmp_path / "payload"
    await (await download.value).save_as(target)
    assert target.read_bytes() == payload


async def test_ids_of_128_bits_and_links_to_one_message(tab: Tab, server: WholeServer) -> None:
    await server.add_topic("shop", "orders")
    async with await connect(server) as client:
        await client.send_messages("shop/orders", messages=courser.SendMessage(b"\x81\xa1n\x01", id=BIG_ID))
        await client.send_messages("shop/orders", messages="second")
    page = tab.page
    await tab.open(f"{VIEW}?open=0.0")
    dialog = page.get_by_role("dialog", name="Message")
    await expect(dialog.locator(".id")).to_have_text(str(BIG_ID))
    await expect(dialog).to_contain_text(str(UUID(int=BIG_ID)))
    await expect(dialog.locator("pre.payload")).to_have_text('{\n  "n": 1\n}')
    await dialog.get_by_label("Show as").select_option("hex")
    await expect(dialog.locator("pre.payload")).to_contain_text("81 a1 6e 01")
    await dialog.get_by_role("button", name="Next").click()
    await expect(dialog.locator("pre.payload")).to_have_text("second")
    assert page.url.endswith("?open=0.1")
    await dialog.get_by_role("tab", name="CLI").click()
    await expect(dialog.locator(".snippet code")).to_have_text(
        "courser message poll shop/orders 0 --offset 1 --show-headers"
    )
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(page).not_to_have_url(re.compile("open"))


async def test_rows_are_downloaded_as_json_lines(tab: Tab, server: WholeServer, tmp_path: Path) -> None:
    await fill(server, 2)
    await server.send(b"\xff\x00", stream="shop", topic="orders")
    page = tab.page
    await tab.open(VIEW)
    await expect(rows(page)).to_have_count(3)
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download", exact=True).click()
    target = tmp_path / "messages"
    await (await download.value).save_as(target)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["offset"] for line in lines] == [2, 1, 0]
    assert lines[0]["payload_base64"] == "/wA="
    assert lines[1]["payload"] == {"order": {"id": "A-1"}, "n": 1}


async def test_live_messages_come_on_top_and_stay_when_stopped(tab: Tab, server: WholeServer) -> None:
    await fill(server, 1)
    page = tab.page
    await tab.open(VIEW)
    await expect(rows(page)).to_have_count(1)
    await page.get_by_role("button", name="Live", exact=True).click()
    await expect(page.locator(".status")).to_contain_text("Waiting for new messages")
    await server.send(b"one", stream="shop", topic="orders")
    await server.send(b"two", stream="shop", topic="orders")
    await expect(previews(page)).to_have_text(["two", "one"])
    assert "live=1" in page.url
    await page.get_by_role("button", name="Stop live").click()
    await expect(page.get_by_role("button", name="Live", exact=True)).to_be_visible()
    await server.send(b"three", stream="shop", topic="orders")
    await expect(previews(page)).to_have_text(["two", "one"])
    # With a condition, the server looks.
    await page.get_by_label("Filter", exact=True).fill("text~wanted")
    await page.get_by_role("button", name="Live", exact=True).click()
    await expect(page.locator(".status")).to_contain_text("Waiting for new messages")
    await server.send(b"other", b"wanted 1", stream="shop", topic="orders")
    await expect(previews(page)).to_have_text(["wanted 1"])


async def test_a_flood_is_counted_and_does_not_stop_the_page(tab: Tab, server: WholeServer) -> None:
    """More than the page shows arrives: it keeps drawing, keeps the newest rows, and says how many it left out."""
    await server.add_topic("shop", "orders")
    page = tab.page
    await tab.open(f"{VIEW}?live=1")
    await expect(page.locator(".status")).to_contain_text("Waiting for new messages")
    await page.evaluate(
        "() => { window.drawn = 0; const step = () => { window.drawn += 1; requestAnimationFrame(step); }; step(); }"
    )
    count = 20_000
    for start in range(0, count, 1000):
        await server.send(*(b"%d" % number for number in range(start, start + 1000)), stream="shop", topic="orders")
    await expect(previews(page).first).to_have_text(str(count - 1))
    await expect(page.locator(".status")).to_contain_text("20,000 received, the newest 500 shown")
    left_out = await page.locator(".dropped").inner_text()
    # Each of them was shown, at least for a moment, or is counted here.
    assert 0 < int(left_out.split()[0].replace(",", "")) <= count - 500
    assert await page.evaluate("window.drawn") > 0


async def test_who_may_not_poll_learns_which_permission_is_missing(browser: Browser, server: WholeServer) -> None:
    await fill(server, 1)
    async with await connect(server) as client:
        permissions = Permissions(GlobalPermissions(send_messages=True))
        await client.create_user("clerk", "secret-of-clerk", permissions=permissions)
    async with open_tab(browser, server.http_port) as tab:
        tab.refusals = {403}
        await tab.log_in(server, "clerk")
        await tab.open(VIEW)
        await expect(tab.page.get_by_role("heading", name="Missing permission")).to_be_visible()
