"""Every view, as a user would use it: empty, filled, and what its buttons do."""

import logging
import re
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, expect

import courser
from courser.api import commands as c
from courser.api.operating_replies import Setting
from courser.broker.access.sessions import Session
from courser.errors import ConnectionFailed
from courser.handlers.dispatcher import Dispatcher
from courser.model.messaging import Transport
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from courser.server.logs import LogRing
from tests.console.browsing import Tab, open_tab
from tests.transports.whole_servers import WholeServer, whole_server

TOPIC_COUNT = 10_000


async def press(page: Page, name: str) -> None:
    await page.get_by_role("button", name=name, exact=True).click()


async def fill(page: Page, label: str, text: str) -> None:
    await page.get_by_role("dialog").get_by_label(label, exact=True).fill(text)


async def submit(page: Page, name: str) -> None:
    await page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def add_user(server: WholeServer, name: str, permissions: Permissions | None = None) -> None:
    await server.ask(c.CreateUser(name, "secret", True, permissions))


# --- the first minute and the overview ---


async def test_an_empty_server_shows_how_to_send_and_notices_the_message(server: WholeServer, tab: Tab) -> None:
    page = tab.page
    await expect(page.get_by_role("heading", name="Send the first message")).to_be_visible()
    for name, text in {"curl": f"http://127.0.0.1:{server.http_port}/users/login", "Python": "courser.connect"}.items():
        await page.get_by_role("tab", name=name).click()
        await expect(page.locator(".snippet pre")).to_contain_text(text)
    await expect(page.get_by_text("Waiting for the first message")).to_be_visible()
    await server.add_topic("demo", "orders")
    await server.send(b"one", stream="demo", topic="orders")
    await expect(page.get_by_text("demo/orders has 1 message")).to_be_visible()
    await page.get_by_role("link", name="Look at the topic").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("orders")


async def test_the_overview_shows_rates_lag_and_disk_and_can_be_paused(server: WholeServer, tab: Tab) -> None:
    page = tab.page
    await server.add_topic()
    await server.ask(c.CreateConsumerGroup("s", "t", "g"))
    await server.broker.operating.history.take()
    await server.send(*[b"x"] * 500)
    await tab.open("/?all")
    figures = page.get_by_label("Figures")
    await expect(figures).to_contain_text("Messages in")
    await expect(figures.locator("div", has_text=re.compile("^Lag"))).to_contain_text("500")
    await expect(figures).to_contain_text("free")
    chart = page.get_by_role("img", name=re.compile("Messages, last hour. Now: in"))
    await expect(chart).to_be_visible()
    await press(page, "Pause")
    await server.send(*[b"x"] * 500)
    await expect(page.get_by_role("button", name="Continue")).to_have_attribute("aria-pressed", "true")
    await expect(figures.locator("div", has_text=re.compile("^Lag"))).to_contain_text("500")
    await press(page, "Continue")
    await expect(figures.locator("div", has_text=re.compile("^Lag"))).to_contain_text("1,000")


# --- streams and topics ---


async def test_a_topic_is_created_changed_purged_and_deleted(server: WholeServer, tab: Tab) -> None:
    page = tab.page
    await tab.open("/streams")
    await expect(page.get_by_text("This server has no streams yet")).to_be_visible()
    await press(page, "Create a stream")
    await fill(page, "Name", "shop")
    await submit(page, "Create")
    await press(page, "Create a topic")
    await fill(page, "Name", "orders")
    await fill(page, "Partitions", "3")
    await fill(page, "Keep messages for", "soon")
    await page.get_by_role("dialog").get_by_role("button", name="Create").click()
    await expect(page.get_by_role("alert").filter(has_text="soon")).to_contain_text("7 days")
    await fill(page, "Keep messages for", "7 days")
    await submit(page, "Create")
    row = page.get_by_role("row", name="shop/orders")
    await expect(row).to_contain_text("7 d")
    await row.get_by_role("link").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("orders")
    await press(page, "Change")
    await fill(page, "Largest size", "1 GiB")
    await submit(page, "Change")
    await expect(page.locator(".facts")).to_contain_text("1.0 GiB")
    topic = server.broker.catalog.state.streams[0].topics[0]
    assert (topic.options.message_expiry, topic.options.max_topic_size) == (604_800_000_000, 2**30)
    await press(page, "Partitions")
    await submit(page, "Change")
    await expect(page.get_by_role("row")).to_have_count(5)
    await server.send(b"one", stream="shop", topic="orders")
    await press(page, "Purge")
    confirm = page.get_by_role("button", name="Delete all messages")
    await expect(confirm).to_be_disabled()
    await fill(page, "Type orders to confirm", "orders")
    await submit(page, "Delete all messages")
    await expect(page.locator(".figures")).to_contain_text("0 B")
    await press(page, "Delete")
    await fill(page, "Type orders to confirm", "order")
    await expect(page.get_by_role("button", name="Delete the topic")).to_be_disabled()
    await fill(page, "Type orders to confirm", "orders")
    await submit(page, "Delete the topic")
    await expect(page.get_by_text("0 topics in 1 stream")).to_be_visible()
    assert server.broker.catalog.state.streams[0].topics == {}


async def test_a_stream_is_renamed_purged_and_deleted(server: WholeServer, tab: Tab) -> None:
    page = tab.page
    await server.add_topic("shop", "orders")
    await tab.open("/streams?stream=shop")
    await press(page, "Rename stream")
    await fill(page, "Name", "store")
    await submit(page, "Rename")
    await page.get_by_label("Stream", exact=True).select_option("store")
    assert page.url.endswith("stream=store")
    await server.send(b"one", stream="store", topic="orders")
    await expect(page.get_by_role("row", name="store/orders")).to_contain_text("1")
    await press(page, "Purge stream")
    await fill(page, "Type store to confirm", "store")
    await submit(page, "Delete all messages")
    await press(page, "Delete stream")
    await fill(page, "Type store to confirm", "store")
    await submit(page, "Delete the stream")
    await expect(page.get_by_text("This server has no streams yet")).to_be_visible()


async def test_ten_thousand_topics_are_searched_and_scrolled_at_once(server: WholeServer, tab: Tab) -> None:
    rows = [
        {
            "stream_id": 0,
            "stream": "big",
            "topic_id": n,
            "topic": f"topic-{n}",
            "partition_count": 1,
            "message_count": n,
        }
        | {"size": n, "appended_count": n, "message_expiry": 2**64 - 1, "max_topic_size": 2**64 - 1}
        | {"durability": "written", "group_count": 0, "lag": None}
        for n in range(TOPIC_COUNT)
    ]
    await server.ask(c.CreateStream("big"))
    page = tab.page
    await page.route("**/topics", lambda route: route.fulfill(json=rows))
    await tab.open("/streams")
    await expect(page.get_by_text("10,000 topics")).to_be_visible()
    # Only those in sight are in the page.
    assert await page.get_by_role("row").count() < 200
    await page.locator(".table-scroll").evaluate("element => element.scrollTo(0, element.scrollHeight)")
    await expect(page.get_by_role("link", name="big/topic-9999", exact=True)).to_be_visible()
    await page.get_by_label("Filter by name").fill("4321")
    await expect(page.get_by_text("1 topic in")).to_be_visible()
    await expect(page.get_by_role("link", name="big/topic-4321")).to_be_visible()


# --- users, tokens and sessions ---


async def test_a_user_gets_permissions_and_the_matrix_says_why(server: WholeServer, tab: Tab) -> None:
    await server.add_topic("shop", "orders")
    page = tab.page
    await tab.open("/users")
    await press(page, "Create a user")
    await fill(page, "Name", "clerk")
    await fill(page, "Password", "secret")
    await (
        page.get_by_role("dialog")
        .get_by_label("Permissions for one stream or topic")
        .select_option("topic shop/orders")
    )
    await page.get_by_role("dialog").get_by_role("button", name="Add").click()
    box = page.get_by_role("group", name="In the topic shop/orders")
    await box.get_by_label("send_messages").check()
    await submit(page, "Create")
    row = page.get_by_role("row", name="clerk")
    await expect(row).not_to_contain_text("✓")
    await page.get_by_label("Where").select_option("in shop/orders")
    await expect(row.locator("td[data-title=Send]")).to_contain_text("send_messages in the topic")
    await expect(row.locator("td[data-title=Read]")).not_to_contain_text("✓")
    user = server.broker.catalog.state.users[1]
    assert user.permissions == Permissions(
        GlobalPermissions(), {0: StreamPermissions(topics={0: TopicPermissions(send_messages=True)})}
    )
    await row.get_by_role("button", name="Edit").click()
    await press(page, "Permissions")
    everywhere = page.get_by_role("group", name="Everywhere")
    await everywhere.get_by_label("read_users").check()
    await submit(page, "Save")
    assert user.permissions is not None
    await expect(page.get_by_text("The permissions of clerk are changed.")).to_be_visible()
    await row.get_by_role("button", name="Edit").click()
    await press(page, "Delete")
    await fill(page, "Type clerk to confirm", "clerk")
    await submit(page, "Delete the user")
    await expect(row).to_have_count(0)


async def test_the_matrix_shows_what_the_server_says(server: WholeServer, tab: Tab) -> None:
    """Also in a stream, of a user who is inactive, and why not."""
    await server.add_topic("shop", "orders")
    await add_user(server, "clerk", Permissions(GlobalPermissions(read_users=True), {0: StreamPermissions(True)}))
    await add_user(server, "former")
    await server.ask(c.UpdateUser("former", None, False))
    page = tab.page
    await tab.open("/users?stream=shop&topic=orders")
    clerk, former = page.get_by_role("row", name="clerk"), page.get_by_role("row", name="former")
    await expect(clerk.locator("td[data-title=Send]")).to_have_text("✓ manage_stream in the stream")
    why = re.compile("may not manage users: it has read_users .*; needed: manage_users")
    await expect(clerk.locator("td[data-title='Manage users'] span")).to_have_attribute("title", why)
    await expect(former.locator("td[data-title=Read] span")).to_have_attribute("title", re.compile("is inactive"))
    await page.get_by_label("Where").select_option("everywhere")
    await expect(clerk.locator("td[data-title=Send]")).not_to_contain_text("✓")
    await page.get_by_label("Where").select_option("in the stream shop")
    await expect(clerk.locator("td[data-title=Send]")).to_have_text("✓ manage_stream in the stream")


async def test_a_token_is_shown_once_and_works(server: WholeServer, tab: Tab) -> None:
    page = tab.page
    await tab.open("/users")
    await press(page, "Create a token")
    await fill(page, "Name", "nightly")
    await page.get_by_role("dialog").get_by_role("button", name="Create").click()
    token = await page.locator(".secret code").inner_text()
    session = Session(5, Transport.TCP, "127.0.0.1:2", now=0)
    await Dispatcher(server.broker).dispatch(session, c.LoginWithToken(token))
    await page.keyboard.press("Escape")
    row = page.get_by_role("row", name="nightly")
    await expect(row).to_be_visible()
    assert token not in await page.content()
    await row.get_by_role("button", name="Delete").click()
    await submit(page, "Delete the token")
    await expect(row).to_have_count(0)


async def test_a_session_is_listed_and_ended(server: WholeServer, tab: Tab) -> None:
    page = tab.page
    await tab.open("/sessions")
    await expect(page.get_by_text("Nobody is connected")).to_be_visible()
    address = server.addresses[Transport.TCP]
    async with await courser.connect(f"iggy://iggy:iggy@{address}", reconnect=False) as client:
        row = page.get_by_role("row", name="iggy")
        await expect(row).to_contain_text("courser")
        await row.get_by_role("button", name="End").click()
        await submit(page, "End the session")
        await expect(row).to_have_count(0)
        with pytest.raises(ConnectionFailed):
            await client.get_me()


# --- log and configuration ---


async def test_log_lines_arrive_live_and_are_filtered(server: WholeServer, tab: Tab) -> None:
    ring = LogRing()
    log = logging.getLogger("courser.example")
    log.setLevel(logging.INFO)
    log.addHandler(ring)
    server.broker.operating.diagnosis.list_log_lines = ring.after
    log.info("listening address=%s", "127.0.0.1:1")
    page = tab.page
    await tab.open("/logs")
    await expect(page.get_by_text("listening address")).to_be_visible()
    log.warning("<img src=x onerror=alert(1)>")
    await expect(page.get_by_text("<img src=x")).to_be_visible()
    await page.get_by_label("Level").select_option("warning")
    await expect(page.get_by_text("listening address")).to_have_count(0)
    await page.get_by_label("Filter by text").fill("nothing like this")
    await expect(page.get_by_text("No line fits.")).to_be_visible()
    log.removeHandler(ring)


async def test_the_configuration_shows_origins_and_masks_secrets(server: WholeServer, tab: Tab) -> None:
    server.broker.operating.diagnosis.list_settings = lambda: [
        Setting("tcp.address", '"127.0.0.1:1"', "--set", '"127.0.0.1:8090"', "where to listen"),
        Setting("http.jwt.encoding_secret", '"***"', "server.toml", '""', "the secret"),
        Setting("http.enabled", "true", "default", "true", "whether to listen for HTTP"),
    ]
    page = tab.page
    await tab.open("/configuration")
    await expect(page.get_by_role("row", name="tcp.address")).to_contain_text("--set")
    await expect(page.get_by_role("row", name="encoding_secret")).to_contain_text("***")
    await page.get_by_label("Only what was set").check()
    await expect(page.get_by_role("row")).to_have_count(3)


# --- pipelines ---


async def test_a_pipeline_that_reports_is_shown_with_its_definition(server: WholeServer, tab: Tab) -> None:
    page = tab.page
    await tab.open("/pipelines")
    await expect(page.get_by_text("No pipeline has reported")).to_be_visible()
    async with await courser.connect(f"iggy://iggy:iggy@{server.addresses[Transport.TCP]}") as client:
        await client.report_pipeline(
            "loader",
            "failed",
            source="shop/orders",
            rows=1_234,
            error="the lake is full",
            definition="[source]\ntopic = 1",
        )
        await server.add_topic()
        await client.stage("nightly", 1, 0, 0, 0, "s/t", partitioning=0, messages=["one", "two"])
    row = page.get_by_role("row", name="loader")
    await expect(row).to_contain_text("failed")
    await expect(row).to_contain_text("1,234")
    await expect(row).to_contain_text("the lake is full")
    await row.get_by_role("button", name="Details").click()
    await expect(page.get_by_role("dialog")).to_contain_text("topic = 1")
    await page.keyboard.press("Escape")
    await page.get_by_role("row", name="nightly").get_by_role("button", name="Parts").click()
    await expect(page.get_by_role("dialog")).to_contain_text("being written")


# --- what is missing ---


@pytest.mark.parametrize(
    ("view", "permission"),
    [
        ("/?all", "read_servers"),
        ("/streams", "read_streams"),
        ("/users", "read_users"),
        ("/sessions", "read_servers"),
        ("/logs", "manage_servers"),
        ("/configuration", "read_servers"),
    ],
)
async def test_a_view_without_permission_names_it(
    browser: Browser, server: WholeServer, view: str, permission: str
) -> None:
    await add_user(server, "nobody")
    async with open_tab(browser, server.http_port) as tab:
        tab.refusals = {403}
        await tab.log_in(server, "nobody")
        await tab.open(view)
        alert = tab.page.get_by_role("alert").filter(has_text="Missing permission")
        await expect(alert).to_contain_text(permission)


async def test_a_read_only_console_offers_no_changes(browser: Browser, tmp_path: Path) -> None:
    async with whole_server(tmp_path / "data", "ui.read_only=true") as server:
        await server.add_topic()
        async with open_tab(browser, server.http_port) as tab:
            await tab.log_in(server)
            await tab.open("/streams")
            await expect(tab.page.get_by_text("read only")).to_be_visible()
            await expect(tab.page.get_by_role("button", name="Create a topic")).to_be_disabled()


async def test_behind_a_proxy_every_view_and_file_is_found_below_the_base_path(
    browser: Browser, tmp_path: Path
) -> None:
    async with whole_server(tmp_path / "data", "ui.base_path=/courser") as server:
        await server.add_topic("shop", "orders")
        await server.send(b"hello", stream="shop", topic="orders")
        async with open_tab(browser, server.http_port) as tab:
            page = tab.page
            tab.refusals = {401}
            asked: list[str] = []
            page.on("request", lambda request: asked.append(urlsplit(request.url).path))
            await page.goto(f"http://127.0.0.1:{server.http_port}/courser/ui/")
            await page.get_by_label("User").fill("iggy")
            await page.get_by_label("Password").fill("iggy")
            await page.get_by_role("button", name="Log in", exact=True).click()
            await page.get_by_role("link", name="Streams and topics").click()
            await page.get_by_role("link", name="shop/orders", exact=True).click()
            await page.get_by_role("link", name="Messages", exact=True).click()
            await expect(page.get_by_role("button", name="hello")).to_be_visible()
            assert all(path.startswith("/courser/") for path in asked), asked


async def test_a_thousand_partitions_are_shown_with_few_requests(server: WholeServer, tab: Tab) -> None:
    await server.add_topic("shop", "orders", 1_000)
    await server.send(b"hello", stream="shop", topic="orders")
    await server.ask(c.CreateConsumerGroup("shop", "orders", "billing"))
    page = tab.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for view, table in (("", "Partitions"), ("/groups/billing", "Partitions")):
        await tab.open(f"/streams/shop/topics/orders{view}")
        rows = page.get_by_role("table", name=table).get_by_role("row")
        await expect(rows.nth(1)).to_be_visible()
        # Only those in sight are in the page.
        assert await rows.count() < 200
    await tab.open("/streams/shop/topics/orders/messages")
    await expect(page.get_by_role("button", name="hello")).to_be_visible()
    assert len(asked) < 200, "not one for each partition"


async def test_a_restart_in_the_middle_is_shown_and_survived(browser: Browser, tmp_path: Path) -> None:
    async with AsyncExitStack() as running:
        server = await running.enter_async_context(whole_server(tmp_path / "data"))
        await server.add_topic()
        port = server.http_port
        async with open_tab(browser, port) as tab:
            page = tab.page
            await tab.log_in(server)
            await tab.open("/streams")
            await expect(page.get_by_role("link", name="s/t")).to_be_visible()
            await running.aclose()
            await expect(page.get_by_text("The connection to the server is lost")).to_be_visible()
            # What was there stays readable.
            await expect(page.get_by_role("link", name="s/t")).to_be_visible()
            again = await running.enter_async_context(whole_server(tmp_path / "data", f"http.address=127.0.0.1:{port}"))
            await expect(page.get_by_text("The connection to the server is lost")).to_have_count(0)
            await again.add_topic("s", "new")
            await expect(page.get_by_role("link", name="s/new")).to_be_visible()
