"""The frame of the console: login, navigation, search, keyboard, what is shown when something is missing."""

import re
from importlib.resources import files

from playwright.async_api import Browser, expect

from tests.console.browsing import Tab, open_tab
from tests.transports.whole_servers import WholeServer

FIRST_VIEW_SIZE_MAX = 100_000


async def test_a_password_logs_in_and_the_button_logs_out(browser: Browser, server: WholeServer) -> None:
    async with open_tab(browser, server.http_port) as tab:
        tab.refusals = {400, 401}
        page = tab.page
        await tab.open("/streams")
        await page.get_by_label("User").fill("iggy")
        await page.get_by_label("Password").fill("wrong")
        await page.get_by_role("button", name="Log in", exact=True).click()
        await expect(page.get_by_role("alert")).to_contain_text("wrong password")
        await page.get_by_label("Password").fill("iggy")
        await page.get_by_role("button", name="Log in", exact=True).click()
        # The view that was asked for.
        await expect(page.get_by_role("heading", name="Streams and topics")).to_be_visible()
        cookie = (await page.context.cookies())[0]
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_label("Password")).to_be_visible()
        assert await page.context.cookies() == []


def test_the_page_names_all_modules_of_the_first_view() -> None:
    """The browser would fetch them one behind the other, as it finds each import."""
    directory = files("courser.console")
    wanted, found = ["app.js", "view_overview.js"], set[str]()
    while wanted:
        found.add(name := wanted.pop())
        imports = re.findall(r'^import .* from "\./(\w+\.js)";$', directory.joinpath(name).read_text(), re.MULTILINE)
        wanted += set(imports) - found
    named = re.findall(r'<link rel="modulepreload" href="(.*)">', directory.joinpath("index.html").read_text())
    assert set(named) == found - {"app.js"}


async def test_the_first_view_is_small(browser: Browser, server: WholeServer) -> None:
    await server.add_topic()
    async with open_tab(browser, server.http_port) as tab:
        await tab.log_in(server)
        await expect(tab.page.get_by_role("heading", name="Overview")).to_be_visible()
        await tab.page.wait_for_load_state("networkidle")
        assert 10_000 < tab.size < FIRST_VIEW_SIZE_MAX


async def test_the_next_view_loads_only_data_and_asks_for_nothing_twice(tab: Tab, server: WholeServer) -> None:
    await server.add_topic()
    page = tab.page
    await tab.open("/?all")
    await expect(page.locator(".figure strong").first).to_be_visible()
    await page.reload()
    await expect(page.locator(".figure strong").first).to_be_visible()
    sizes = await page.evaluate(
        "() => performance.getEntriesByType('resource').map((one) => [new URL(one.name).pathname, one.transferSize])"
    )
    sent = [path.rpartition("/")[2] for path, size in sizes if size > 0]
    # The requests that are sent before the modules are there are not sent again.
    assert sorted(sent[:4]) == ["history", "ready", "session", "stats"]
    assert sent.count("session") == 1
    assert not [name for name in sent if name.endswith((".js", ".css"))]


async def test_a_link_is_valid_once(tab: Tab, server: WholeServer, browser: Browser) -> None:
    user = server.broker.catalog.state.users[0]
    token, _ = server.broker.authentication.one_time_tokens.create(user, None)
    assert "login" not in tab.page.url
    for is_valid in (True, False):
        async with open_tab(browser, server.http_port) as other:
            other.refusals = {400, 401}
            await other.page.goto(f"{other.root}#login={token}")
            if is_valid:
                await expect(other.page.locator(".who")).to_have_text("iggy")
            else:
                await expect(other.page.get_by_role("alert")).not_to_be_empty()


async def test_keys_lead_to_views_and_to_the_search(tab: Tab, server: WholeServer) -> None:
    await server.add_topic("shop", "orders")
    page = tab.page
    await page.keyboard.press("g")
    await page.keyboard.press("t")
    await expect(page.get_by_role("heading", name="Streams and topics")).to_be_visible()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    await expect(page.get_by_role("combobox", name="Search")).to_be_focused()
    await page.keyboard.type("shop ord")
    await expect(page.get_by_role("option", name="shop/orders")).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("orders")
    assert page.url.endswith("#/streams/shop/topics/orders")


async def test_the_theme_and_the_time_zone_are_remembered(tab: Tab) -> None:
    page = tab.page
    await page.get_by_role("button", name="Dark colours").click()
    await page.get_by_role("button", name="Times are in local time").click()
    await page.reload()
    await expect(page.get_by_role("button", name="Light colours")).to_be_visible()
    await expect(page.get_by_role("button", name="Times are in UTC")).to_be_visible()
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
