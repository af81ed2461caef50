"""What tests of the console share: one server and one tab for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.console.browsing import PATIENCE, Tab, open_browser, open_tab
from tests.transports.whole_servers import WholeServer, whole_server

expect.set_options(timeout=PATIENCE)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[WholeServer]:
    async with whole_server(tmp_path / "data") as server:
        yield server


@pytest.fixture
async def tab(browser: Browser, server: WholeServer) -> AsyncIterator[Tab]:
    """Logged in as root."""
    async with open_tab(browser, server.http_port) as tab:
        await tab.log_in(server)
        yield tab
