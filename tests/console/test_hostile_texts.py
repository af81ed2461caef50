"""Stored scripts: whatever users may name or send, every view shows it as text, and no element is made from it."""

import json
import logging
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from playwright.async_api import Page, expect

import courser
from courser.api import commands as c
from courser.api.commands import ReportPipeline
from courser.api.operating_replies import Setting
from courser.model.messaging import Transport
from courser.server.logs import LogRing
from tests.console.browsing import Tab
from tests.transports.whole_servers import WholeServer

WATCH = """
window.taken = [];
window.own = () => { window.taken.push("a script ran"); return ""; };
addEventListener("securitypolicyviolation", (event) => window.taken.push(event.violatedDirective + " " + event.sample));
"""
"""Runs before the page's own scripts."""
MADE_FROM_DATA = (
    "img:not([src$='/icon.svg']), iframe, object, embed, form[action], script:not([src]),"
    " [onerror], [onload], [onclick], [srcdoc], a[href^='javascript' i], [style*='own']"
)
HOSTILE = (
    "<img src=x onerror=own()>",
    '"><svg/onload=own()>',
    "'><iframe srcdoc='<script>parent.own()</script>'>",
    "javascript:own()",
    "</script><script>own()</script>",
    "\u202eevil\u2066 \u200bown()",
    "{{own()}}${own()}<%=own()%>#{own()}",
    "../../users?x=own()#%3Cimg%20src%3Dx%3E",
)


def avro_file(text: str) -> bytes:
    """An Avro container with one string."""

    def long(number: int) -> bytes:
        return bytes([number << 1]) if number < 64 else bytes([number << 1 & 0x7F | 0x80, number >> 6])

    def sized(data: bytes) -> bytes:
        return long(len(data)) + data

    name = json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": "string"}]}).encode()
    row = sized(text.encode())
    mark = bytes(range(16))
    head = b"Obj\x01" + long(1) + sized(b"avro.schema") + sized(name) + long(0) + mark
    return head + long(1) + sized(row) + mark


async def plant(server: WholeServer, text: str) -> courser.Client:
    """The text wherever users may put one. The client stays connected, under that name."""
    await server.ask(c.CreateUser(text, "secret", True, None))
    await server.ask(c.CreateToken(text, 0))
    await server.add_topic(text, text)
    await server.ask(c.CreateConsumerGroup(text, text, text))
    wire = text.encode()
    value = {text: [text]}
    payloads = [wire, msgspec.json.encode(value), msgspec.msgpack.encode(value), avro_file(text)]
    address = server.addresses[Transport.TCP]
    async with await courser.connect(f"iggy://iggy:iggy@{address}") as client:
        stream = next(each for each in server.broker.catalog.state.streams.values() if each.name == text)
        for payload in payloads:
            message = courser.SendMessage(payload, headers={text: text}, key=wire)
            await client.send_messages(stream.stream_id, 0, messages=message)
        fields: dict[str, Any] = {
            "consumer": text,
            "host": text,
            "source": text,
            "sink": text,
            "error": text,
            "definition": text,
        }
        numbers: dict[str, Any] = dict.fromkeys(
            ("started_at", "batch_count", "rows", "rows_per_second", "lag", "lost", "bad_rows"), 1
        )
        await server.ask(ReportPipeline(text, text, restarts=1, **fields, **numbers))
        await client.stage(text, 1, 0, 0, 0, stream.stream_id, 0, partitioning=0, messages=["one"])
    ring = LogRing()
    log = logging.getLogger("courser.hostile")
    log.setLevel(logging.INFO)
    log.addHandler(ring)
    diagnosis = server.broker.operating.diagnosis
    diagnosis.list_log_lines = ring.after
    log.warning("a line with %s", text)
    log.removeHandler(ring)
    diagnosis.list_settings = lambda: [Setting(text, json.dumps(text), text, json.dumps(text), text)]
    await server.broker.operating.history.take()
    return await courser.connect(f"iggy://{quote(text, safe='')}:secret@{address}")


async def check(page: Page) -> None:
    assert await page.evaluate("window.taken") == []
    assert await page.locator(MADE_FROM_DATA).evaluate_all("found => found.map((each) => each.outerHTML)") == []


async def read(page: Page, text: str, place: str = "main") -> None:
    """The text is there, letter by letter, and nothing else has happened."""
    await expect(page.locator(place).last).to_contain_text(text)
    await check(page)


async def look_at_messages(page: Page, text: str) -> None:
    previews = page.get_by_role("table", name="Messages").locator("tbody tr .preview")
    await expect(previews).to_have_count(4)
    for number in range(4):
        await previews.nth(number).get_by_role("button").click()
        dialog = page.get_by_role("dialog")
        shown = text if await page.locator("pre.payload").inner_text() == text else json.dumps(text, ensure_ascii=False)
        await expect(page.locator("pre.payload")).to_contain_text(shown)
        await expect(dialog).to_contain_text(text)
        await check(page)
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)


async def look_at_dialog(page: Page, button: str, text: str) -> None:
    await page.get_by_role("button", name=button, exact=True).first.click()
    await read(page, text, "dialog")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("text", HOSTILE)
async def test_every_view_shows_what_is_hostile_as_text(tab: Tab, server: WholeServer, text: str) -> None:
    page = tab.page
    # Not every text is a filter for messages.
    tab.refusals = {400}
    client = await plant(server, text)
    await page.add_init_script(WATCH)
    await page.reload()
    name = quote(text, safe="")
    topic = f"/streams/{name}/topics/{name}"
    async with client:
        for view in (
            "/streams",
            f"/streams?stream={name}",
            "/groups",
            "/storage",
            topic,
            f"{topic}/messages",
            f"{topic}/groups",
            f"{topic}/groups/{name}",
            f"{topic}/storage",
            "/pipelines",
            "/users",
            "/sessions",
            "/logs",
            "/configuration",
        ):
            await tab.open(view)
            # The server itself escapes what would change how a line of its log reads.
            await read(page, text.encode("unicode_escape").decode() if view == "/logs" else text)
            if view == f"{topic}/messages":
                await look_at_messages(page, text)
            if view == "/pipelines":
                await look_at_dialog(page, "Details", text)
        # An address that somebody else has made, and the search.
        for view in (f"/{name}", f"/logs?{name}={name}", f"{topic}/messages?filter={name}&q={name}", "/?all"):
            await tab.open(view)
            await expect(page.locator("main")).not_to_be_empty()
            await check(page)
        await tab.open("/streams")
        await read(page, text)
        await page.keyboard.press("/")
        await page.get_by_role("combobox", name="Search").fill(text)
        await expect(page.get_by_role("listbox", name="Hits").get_by_role("option").first).to_contain_text(text)
        await check(page)
