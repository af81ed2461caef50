"""What tests of the console share: one browser for all, one server and one tab for each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from pytest_asyncio.plugin import PytestAsyncioFunction

from tests.console.browsing import PATIENCE, SharedBrowser, Tab, open_tab
from tests.transports.whole_servers import WholeServer, whole_server

expect.set_options(timeout=PATIENCE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests on one event loop: the browser, which takes seconds to start, belongs to it."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and isinstance(item, PytestAsyncioFunction):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_browser() -> AsyncIterator[SharedBrowser]:
    shared = SharedBrowser()
    yield shared
    await shared.close()


@pytest_asyncio.fixture(loop_scope="session")
async def browser(shared_browser: SharedBrowser) -> Browser:
    return await shared_browser.get()


@pytest_asyncio.fixture(loop_scope="session")
async def server(tmp_path: Path) -> AsyncIterator[WholeServer]:
    async with whole_server(tmp_path / "data") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def tab(browser: Browser, server: WholeServer) -> AsyncIterator[Tab]:
    """Logged in as root."""
    async with open_tab(browser, server.http_port) as tab:
        await tab.log_in(server)
        yield tab
