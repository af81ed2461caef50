"""The console in a real browser: opens it logged in, and notices everything that must not happen on any page."""

import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Error, Page, Request, async_playwright, expect

from tests.transports.whole_servers import WholeServer

PATIENCE = 60_000
"""Milliseconds: a browser takes a while to start on a busy machine."""
_LOST = re.compile(r"net::ERR_(CONNECTION|EMPTY|SOCKET|NETWORK|ABORTED|INCOMPLETE)")
"""What a browser itself writes to the console when a server is stopped."""


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""Complete browsers, as users have them."""
_WITHOUT_WINDOWS = "chromium-headless-shell"
"""The same engine from the same package source, without what surrounds a page. A new tab takes half the CPU time."""


def browser_program(programs: Sequence[str] = (_WITHOUT_WINDOWS, *BROWSERS)) -> str:
    """Debian's browser, or one that was there before. ``make test`` installs it if it may."""
    for name in programs:
        program = shutil.which(name)
        if program is not None:
            return program
    pytest.skip(f"there is no browser: apt-get install {programs[0]}")


@asynccontextmanager
async def open_browser(program: str | None = None) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program or browser_program(), args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE
        )
        try:
            yield browser
        finally:
            await browser.close()


class SharedBrowser:
    """One browser for all tests of a worker. If it did not start or has crashed, the next test starts another one.

    A fixture for all tests that starts it itself would fail them all: pytest remembers that it failed.
    """

    def __init__(self) -> None:
        self._contexts = AsyncExitStack()
        self._browser: Browser | None = None

    async def get(self) -> Browser:
        """The browser; started if it does not run."""
        if self._browser is None or not self._browser.is_connected():
            self._browser = None
            await self.close()
            self._browser = await self._contexts.enter_async_context(open_browser())
        return self._browser

    async def close(self) -> None:
        await self._contexts.aclose()


@dataclass
class Tab:
    """A tab with the console."""

    page: Page
    port: int
    problems: list[str] = field(default_factory=list)
    """Errors in the console of the browser, and requests that leave the host."""
    size: int = 0
    """Bytes that were transferred, heads and bodies."""
    refusals: set[int] = field(default_factory=set)
    """Statuses that the test expects: the browser logs each as an error."""

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}/ui/"

    async def open(self, view: str) -> None:
        """Show a view, such as ``/streams``."""
        await self.page.goto(f"{self.root}#{view}")

    async def log_in(self, server: WholeServer, username: str = "iggy") -> None:
        """With a link that is valid once, as ``courser ui`` does."""
        state = server.broker.catalog.state
        user = state.users[state.user_by_name[username]]
        token, _ = server.broker.authentication.one_time_tokens.create(user, None)
        await self.page.goto(f"{self.root}#login={token}")
        await expect(self.page.locator(".who")).to_have_text(username)

    def note_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme != "data" and parts.netloc != f"127.0.0.1:{self.port}":
            self.problems.append(f"a request left the host: {request.url}")

    def note_console(self, kind: str, text: str) -> None:
        is_expected = any(f"status of {status}" in text for status in self.refusals) or _LOST.search(text) is not None
        if kind in ("error", "warning") and not is_expected:
            self.problems.append(f"{kind}: {text}")

    async def note_finished(self, request: Request) -> None:
        try:
            sizes = await request.sizes()
        except Error:
            # The tab was closed.
            return
        self.size += sizes["responseHeadersSize"] + sizes["responseBodySize"]

    def check(self) -> None:
        """Nothing went wrong that a user would not see."""
        assert self.problems == []


@asynccontextmanager
async def open_tab(browser: Browser, port: int, **options: object) -> AsyncIterator[Tab]:
    """A tab without a login. When it is closed, nothing may have gone wrong in it."""
    context = await browser.new_context(**options)  # type: ignore[arg-type]  # as new_context takes them
    page = await context.new_page()
    page.set_default_timeout(PATIENCE)
    tab = Tab(page, port)
    page.on("console", lambda message: tab.note_console(message.type, message.text))
    page.on("pageerror", lambda error: tab.problems.append(f"exception: {error}"))
    page.on("request", tab.note_request)
    page.on("requestfinished", tab.note_finished)
    try:
        yield tab
        tab.check()
    finally:
        await context.close()
