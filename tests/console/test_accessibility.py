"""Every view, light, dark and on a phone, without a violation of the rules for accessibility (WCAG 2.1 AA)."""

from collections.abc import Awaitable, Callable

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]  # it has no types
from playwright.async_api import Browser, Page, expect

from courser.api import commands as c
from courser.api.operating_replies import LogLine, Setting
from courser.model.permissions import GlobalPermissions, Permissions
from tests.console.browsing import open_tab
from tests.transports.whole_servers import WholeServer

RULES: dict[str, object] = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
}
COLOUR_RULES: dict[str, object] = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""All that can differ between the light and the dark look: the elements are the same."""
VIEWS = (
    "/?all",
    "/first-message",
    "/streams",
    "/streams/s/topics/t",
    "/pipelines",
    "/streams/s/topics/t/messages",
    "/streams/s/topics/t/messages?open=0.0",
    "/streams/s/topics/t/groups",
    "/streams/s/topics/t/groups/g",
    "/streams/s/topics/t/storage",
    "/groups",
    "/storage",
    "/users",
    "/sessions",
    "/logs",
    "/configuration",
)
LOOKS: dict[str, dict[str, object]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True},
}


async def violations(page: Page, rules: dict[str, object] = RULES) -> list[str]:
    found = await Axe().run(page, options=rules)
    return [
        f"{rule['id']}: {rule['help']}: {[node['html'][:160] for node in rule['nodes']][:4]}"
        for rule in found.response["violations"]
    ]


async def add_contents(server: WholeServer) -> None:
    await server.add_topic("s", "t", 3)
    await server.ask(c.CreateConsumerGroup("s", "t", "g"))
    await server.send(*[b"x"] * 20)
    await server.ask(c.CreateUser("clerk", "secret", False, Permissions(GlobalPermissions(poll_messages=True))))
    await server.make_token("nightly")
    texts = ("s/t", "lake", "the lake is full", "[source]")
    await server.ask(c.ReportPipeline("loader", "failed", "loader", "host", 1, 2, 3, 4, 5, 6, 7, 8, *texts))
    diagnosis = server.broker.operating.diagnosis
    diagnosis.list_log_lines = lambda _: [LogLine(1, 2**50, "error", "courser.example", "x" * 500)]
    diagnosis.list_settings = lambda: [Setting("tcp.address", '"a"', "--set", '"b"', "where to listen")]
    await server.broker.operating.history.take()


@pytest.mark.parametrize("look", LOOKS)
async def test_no_view_violates_the_rules(browser: Browser, server: WholeServer, look: str) -> None:
    await add_contents(server)
    rules = COLOUR_RULES if look == "dark" else RULES
    async with open_tab(browser, server.http_port, **LOOKS[look]) as tab:
        await tab.open("/")
        await expect(tab.page.get_by_label("Password")).to_be_visible()
        tab.refusals = {401}
        problems = {"login": await violations(tab.page, rules)}
        await tab.log_in(server)
        for view in VIEWS:
            await tab.open(view)
            await expect(tab.page.get_by_role("heading", level=1)).to_be_visible()
            await tab.page.wait_for_load_state("networkidle")
            problems[view] = await violations(tab.page, rules)
        assert {view: found for view, found in problems.items() if found} == {}
        tab.problems = [problem for problem in tab.problems if "401" not in problem]


async def _search(page: Page) -> None:
    await page.keyboard.press("/")


async def _help(page: Page) -> None:
    await page.keyboard.press("?")


async def _create(page: Page) -> None:
    await page.get_by_role("button", name="Create a topic").click()


async def _create_user(page: Page) -> None:
    await page.get_by_role("link", name="Users").click()
    await page.get_by_role("button", name="Create a user").click()


async def _permissions(page: Page) -> None:
    await page.get_by_role("link", name="Users").click()
    await page.get_by_role("row", name="clerk").get_by_role("button", name="Edit").click()
    await page.get_by_role("dialog").get_by_role("button", name="Permissions").click()
    await expect(page.get_by_role("dialog", name="Permissions of clerk")).to_be_visible()


@pytest.mark.parametrize("open_dialog", [_search, _help, _create, _create_user, _permissions])
async def test_no_dialog_violates_the_rules(
    browser: Browser, server: WholeServer, open_dialog: Callable[[Page], Awaitable[None]]
) -> None:
    await add_contents(server)
    async with open_tab(browser, server.http_port) as tab:
        await tab.log_in(server)
        await tab.open("/streams")
        await expect(tab.page.get_by_role("link", name="s/t")).to_be_visible()
        await open_dialog(tab.page)
        await expect(tab.page.get_by_role("dialog")).to_be_visible()
        assert await violations(tab.page) == []
