"""Connecting, logging in, and being refused."""

import asyncio
from datetime import timedelta
from typing import Any

from tests.sdk.programs.refusals import refused
from tests.sdk.programs.scenarios import Register
from tests.sdk.programs.sdk import ROOT_NAME, ROOT_PASSWORD, Sdk

register = Register()


@register.scenario()
async def a_client_connects_and_pings(sdk: Sdk) -> None:
    client = sdk.iggy.IggyClient(sdk.place)
    await client.connect()
    await client.ping()


@register.scenario(since="0.7", until="0.8")
async def a_ping_connects_if_need_be(sdk: Sdk) -> None:
    await sdk.iggy.IggyClient(sdk.address).ping()


@register.scenario()
async def a_user_logs_in_and_may_do_so_again(sdk: Sdk) -> None:
    client = await sdk.connected()
    for _ in range(2):
        await client.login_user(ROOT_NAME, ROOT_PASSWORD)
        assert await client.get_stream(sdk.fresh_name("missing")) is None


@register.scenario()
async def nothing_is_done_for_a_client_that_has_not_logged_in(sdk: Sdk) -> None:
    client = await sdk.connected()
    name = sdk.fresh_name("stream")
    await refused(sdk, "unauthenticated", client.create_stream(name))
    await refused(sdk, "unauthenticated", sdk.poll(client, name, name, sdk.iggy.PollingStrategy.First()))
    await client.login_user(ROOT_NAME, ROOT_PASSWORD)
    assert await client.get_stream(name) is None


@register.scenario()
async def wrong_password_and_unknown_user_get_the_same_answer(sdk: Sdk) -> None:
    client = await sdk.connected()
    await refused(sdk, "wrong credentials", client.login_user(ROOT_NAME, "not the password"))
    await refused(sdk, "wrong credentials", client.login_user("nobody-at-all", ROOT_PASSWORD))


@register.scenario()
async def the_right_password_is_taken_after_a_wrong_one(sdk: Sdk) -> None:
    client = await sdk.connected()
    await refused(sdk, "wrong credentials", client.login_user(ROOT_NAME, "a typing error"))
    await client.login_user(ROOT_NAME, ROOT_PASSWORD)
    assert await client.get_stream(sdk.fresh_name("missing")) is None


@register.scenario(since="0.6")
async def a_connection_string_logs_in(sdk: Sdk) -> None:
    for text in (
        sdk.connection_string(),
        sdk.connection_string().replace("iggy://", "iggy+tcp://"),
        sdk.connection_string(options="?heartbeat_interval=1s&reconnection_retries=3&reconnection_interval=100ms"),
    ):
        client = sdk.iggy.IggyClient.from_connection_string(text)
        await client.connect()
        await client.ping()
        assert await client.get_stream(sdk.fresh_name("missing")) is None


@register.scenario(since="0.6")
async def a_connection_string_with_a_token_logs_in(sdk: Sdk) -> None:
    client = sdk.iggy.IggyClient.from_connection_string(sdk.connection_string(sdk.token))
    await client.connect()
    name = sdk.fresh_name("stream")
    await client.create_stream(name)
    assert (await client.get_stream(name)).name == name


@register.scenario(since="0.9")
async def every_field_of_the_tcp_configuration_is_taken(sdk: Sdk) -> None:
    reconnection = sdk.iggy.TcpReconnectionConfig(
        enabled=True,
        max_retries=3,
        interval=timedelta(milliseconds=100),
        reestablish_after=timedelta(milliseconds=200),
    )
    configuration = sdk.iggy.TcpConfig(
        server_address=sdk.address,
        auto_login=sdk.iggy.AutoLogin.username_password(ROOT_NAME, ROOT_PASSWORD),
        reconnection=reconnection,
        heartbeat_interval=timedelta(seconds=1),
        tls_enabled=False,
        tls_domain="localhost",
        tls_ca_file="unread.pem",
        tls_validate_certificate=True,
        nodelay=True,
    )
    assert configuration.server_address == sdk.address
    assert (configuration.auto_login.enabled, configuration.auto_login.username) == (True, ROOT_NAME)
    assert configuration.heartbeat_interval == timedelta(seconds=1)
    assert (configuration.tls_enabled, configuration.tls_validate_certificate) == (False, True)
    assert (configuration.tls_domain, configuration.tls_ca_file) == ("localhost", "unread.pem")
    assert configuration.nodelay
    assert configuration.reconnection.enabled
    assert configuration.reconnection.max_retries == 3
    assert configuration.reconnection.interval == timedelta(milliseconds=100)
    assert configuration.reconnection.reestablish_after == timedelta(milliseconds=200)
    client = sdk.iggy.IggyClient(configuration)
    await client.connect()
    assert await client.get_stream(sdk.fresh_name("missing")) is None


@register.scenario(since="0.9")
async def a_token_in_the_configuration_logs_in_and_disabled_means_by_hand(sdk: Sdk) -> None:
    login = sdk.iggy.AutoLogin.personal_access_token(sdk.token)
    assert (login.enabled, login.username) == (True, None)
    client = sdk.iggy.IggyClient(sdk.iggy.TcpConfig(server_address=sdk.address, auto_login=login))
    await client.connect()
    assert (await client.get_user(ROOT_NAME)).username == ROOT_NAME

    disabled = sdk.iggy.AutoLogin.disabled()
    client = sdk.iggy.IggyClient(sdk.iggy.TcpConfig(server_address=sdk.address, auto_login=disabled))
    await client.connect()
    await refused(sdk, "unauthenticated", client.get_users())
    await client.login_user(ROOT_NAME, ROOT_PASSWORD)
    assert ROOT_NAME in [user.username for user in await client.get_users()]


@register.scenario(since="0.9")
async def after_a_logout_nothing_is_done_until_the_next_login(sdk: Sdk) -> None:
    client = await sdk.client()
    await client.get_streams()
    await client.logout_user()
    await refused(sdk, "unauthenticated", client.get_streams())
    await client.login_user(ROOT_NAME, ROOT_PASSWORD)
    await client.get_streams()


@register.scenario()
async def twenty_clients_work_side_by_side(sdk: Sdk) -> None:
    clients = await asyncio.gather(*(sdk.client() for _ in range(20)))
    stream, topic = await sdk.topic(clients[0], 4)

    async def work(number: int, client: Any) -> None:
        for turn in range(10):
            await sdk.send(client, stream, topic, [f"{number} {turn}"], index=number % 4)

    await asyncio.gather(*(work(number, client) for number, client in enumerate(clients)))
    found = [payload for index in range(4) for payload in await sdk.payloads(clients[1], stream, topic, index)]
    assert sorted(found) == sorted(f"{number} {turn}" for number in range(20) for turn in range(10))
    for number in range(20):
        own = [payload for payload in found if payload.startswith(f"{number} ")]
        assert own == [f"{number} {turn}" for turn in range(10)], "a producer's order is kept"
