"""The web console shows how pipelines are doing: real ones, with Spark, in a real browser."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import Page, expect

from tests.console.browsing import open_browser, open_tab
from tests.pipelines.scenes import PATIENCE, Scene, orders_source
from tests.servers import RunningServer, free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = PATIENCE * 1000
"""Milliseconds: on a busy machine Spark takes minutes for its first batch."""
_SINK = '[sink]\ntype = "parquet"\npath = "{path}"\n'


@pytest.fixture
def http_port() -> int:
    return free_port()


@pytest.fixture
def scene(tmp_path: Path, http_port: int, spark: "SparkSession") -> Iterator[Scene]:
    """With a server that has a console."""
    settings = {"http.enabled": "true", "http.address": f"127.0.0.1:{http_port}"}
    with RunningServer(tmp_path / "server", settings=settings) as server:
        yield Scene(tmp_path, server, spark)


async def look(scene: Scene, page: Page) -> None:
    """State, progress, lag, last error, and the definition in effect."""
    await page.get_by_role("link", name="Pipelines").click()
    rows = page.get_by_role("table", name="Pipelines")
    lake, broken = rows.get_by_role("row", name="lake"), rows.get_by_role("row", name="broken")
    await expect(lake.locator("td[data-title=State]")).to_have_text("running", timeout=LONG)
    await expect(lake.locator("td[data-title=Rows]")).to_have_text("300", timeout=LONG)
    await expect(broken.locator("td[data-title=State]")).to_have_text("failed", timeout=LONG)
    await expect(broken.locator("td[data-title='Last error']")).to_contain_text("the payload is not JSON")
    # It goes on, and so does the page.
    await asyncio.to_thread(scene.send_orders, "orders", range(300, 400))
    await expect(lake.locator("td[data-title=Rows]")).to_have_text("400", timeout=LONG)
    await expect(lake.locator("td[data-title=Lag]")).to_have_text("0", timeout=LONG)
    await lake.get_by_role("button", name="Details").click()
    details = page.get_by_role("dialog", name="lake")
    await expect(details).to_contain_text("400")
    definition = details.get_by_label("Definition")
    await expect(definition).to_contain_text('topic = "orders"')
    await expect(definition).to_contain_text("://***@")
    await expect(definition).not_to_contain_text("iggy:iggy")


def test_the_console_shows_how_pipelines_are_doing(scene: Scene, http_port: int) -> None:
    for topic in ("orders", "notes"):
        scene.make_topic(topic)
    scene.send_orders("orders", range(300))
    scene.send("notes", [b"no order"])
    lake = scene.define("lake", orders_source("orders") + _SINK.format(path="lake"))
    broken = scene.define("broken", orders_source("notes") + _SINK.format(path="notes"))

    async def see() -> None:
        async with open_browser() as browser, open_tab(browser, http_port) as tab:
            with scene.client() as client:
                token = client.create_one_time_token().token
            await tab.page.goto(f"{tab.root}#login={token}")
            await look(scene, tab.page)

    with scene.running(lake, broken, once=False):
        asyncio.run(see())
