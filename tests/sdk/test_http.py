"""The official packages over HTTP: 0.9 with its own configuration, 0.6 to 0.8 by connection string, 0.5 not at all."""

from collections.abc import Iterator

import pytest

from tests.sdk.conversations import Conversation
from tests.sdk.environments import RELEASES
from tests.sdk.programs.catalogue import scenarios_of
from tests.servers import RunningServer

RELEASES_OVER_HTTP = [release for release in RELEASES[1:] if ".dev" not in release]
"""SDK 0.10 has requests of its own over HTTP."""
NEWEST = RELEASES_OVER_HTTP[-1]
MODULES = ("access", "administration", "connections", "messages", "topics")
"""Those whose scenarios need nothing but requests. Producers and consumers of the SDK work on connections."""
IMPOSSIBLE = {
    # The SDK does not log in by connection string over HTTP: it sends no request for it.
    "a_connection_string_logs_in",
    "a_connection_string_with_a_token_logs_in",
    # About other transports.
    "every_field_of_the_tcp_configuration_is_taken",
    "a_token_in_the_configuration_logs_in_and_disabled_means_by_hand",
    # The SDK refuses to join a group over HTTP ("Feature is unavailable").
    "groups_are_made_listed_joined_left_and_deleted",
    "a_group_is_polled_without_naming_a_partition",
    # The SDK refuses to send binary requests over HTTP ("Feature is unavailable").
    "raw_requests_are_answered",
}
CASES = [
    scenario.name
    for scenario in scenarios_of(NEWEST)
    if scenario.body.__module__.rpartition(".")[2] in MODULES and scenario.name not in IMPOSSIBLE
]


@pytest.fixture(scope="module")
def http_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # As large as a message of 20 MB becomes in base64.
    settings = {"http.enabled": "true", "http.address": "127.0.0.1:0", "http.max_request_size": "30 MB"}
    with RunningServer(tmp_path_factory.mktemp("http-server"), settings=settings) as server:
        yield f"iggy+http://{server.address_of('http')}"


@pytest.mark.parametrize("release", RELEASES_OVER_HTTP)
def test_messages_travel_over_http(http_address: str, release: str) -> None:
    place = {"stream": f"web-{release}", "topic": "orders"}
    with Conversation(release, http_address) as child:
        child.ask("connect", client="own")
        child.ask("create", client="own", partitions=2, **place)
        child.ask("send", client="own", payloads=["one", "two", "x" * 1_000_000], **place)
        found = child.ask("poll", client="own", **place)
        assert [payload for _, payload, _ in found] == ["one", "two", "x" * 1_000_000]


@pytest.fixture(scope="module")
def newest(http_address: str) -> Iterator[Conversation]:
    with Conversation(NEWEST, http_address) as child:
        yield child


@pytest.mark.parametrize("name", CASES)
def test_scenario_with_the_newest_release(newest: Conversation, name: str) -> None:
    newest.ask("run", scenario=name)
