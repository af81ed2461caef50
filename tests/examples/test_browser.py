"""A page in a real browser shows messages that a TCP client sends."""

from pathlib import Path

from playwright.async_api import expect

import courser
from courser.model.messaging import Transport
from tests.console.browsing import PATIENCE, open_browser
from tests.transports.whole_servers import whole_server

PAGE = Path(__file__).resolve().parents[2] / "examples" / "browser" / "subscribe.html"


async def test_a_page_shows_what_a_tcp_client_sends(tmp_path: Path) -> None:
    async with whole_server(tmp_path / "data") as server, open_browser() as browser:
        await server.add_topic("shop", "orders")
        async with await courser.connect(f"iggy://iggy:iggy@{server.addresses[Transport.TCP]}") as client:
            await client.send_messages("shop/orders", messages="before the page is open")
            page = await browser.new_page()
            page.set_default_timeout(PATIENCE)
            await page.goto(PAGE.as_uri())
            fields = {"server": f"ws://127.0.0.1:{server.http_port}", "stream": "shop", "topic": "orders"}
            for name, value in (fields | {"token": await server.make_token()}).items():
                await page.fill(f"[name={name}]", value)
            await page.click("button")
            await expect(page.locator("tbody td:nth-child(3)")).to_have_text(
                ["before the page is open"], timeout=PATIENCE
            )
            await client.send_messages("shop/orders", messages="<b>while it is</b>")
            await expect(page.locator("tbody td:nth-child(3)")).to_have_text(
                ["before the page is open", "<b>while it is</b>"], timeout=PATIENCE
            )
