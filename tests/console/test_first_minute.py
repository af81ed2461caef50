"""The first message, sent with what the page of an empty server shows, exactly as it is shown."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.console.browsing import Tab
from tests.sdk.environments import python_of


async def run(directory: Path, *command: str) -> None:
    """As in a new shell, with the programs of this environment and without any saved context."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env={"PATH": path, **home},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    # Now and then the Iggy SDK still aborts when the interpreter ends, with everything sent.
    can_abort = "apache_iggy" in command[-1]
    assert process.returncode in ((0, -signal.SIGABRT) if can_abort else (0,)), output.decode()


async def send_as_shown(tab: Tab, directory: Path, name: str, *program: str) -> None:
    page = tab.page
    await page.get_by_role("tab", name=name, exact=True).click()
    text = await page.locator(".snippet pre").inner_text()
    assert "PASSWORD" in text
    await expect(page.get_by_text("Replace PASSWORD.")).to_be_visible()
    await run(directory, *program, text.replace("PASSWORD", "iggy"))
    await expect(page.get_by_text("demo/orders has 1 message")).to_be_visible()
    await page.get_by_role("link", name="Look at the topic").click()
    await page.get_by_role("link", name="Messages", exact=True).click()
    await expect(page.get_by_role("table", name="Messages").get_by_role("button")).to_have_text(['{"order": 1}'])


@pytest.mark.parametrize(
    ("name", "program"),
    [("courser send", ("bash", "-euc")), ("curl", ("bash", "-euc")), ("Python", ("python", "-c"))],
)
async def test_the_snippet_sends_the_first_message(
    tab: Tab, tmp_path: Path, name: str, program: tuple[str, ...]
) -> None:
    await send_as_shown(tab, tmp_path, name, *program)


@pytest.mark.xdist_group("sdk-0.9.0")
async def test_the_snippet_for_the_iggy_sdk_does_too(tab: Tab, tmp_path: Path) -> None:
    await send_as_shown(tab, tmp_path, "Iggy SDK", str(python_of("0.9.0")), "-c")
