"""The official packages over HTTP. It takes a connection string, which 0.5 does not have."""

from collections.abc import Iterator

import pytest

from tests.sdk.conversations import Conversation
from tests.sdk.environments import RELEASES
from tests.servers import RunningServer


@pytest.fixture(scope="module")
def http_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"http.enabled": "true", "http.address": "127.0.0.1:0"}
    with RunningServer(tmp_path_factory.mktemp("http-server"), settings=settings) as server:
        yield f"iggy+http://{server.address_of('http')}"


@pytest.mark.parametrize("release", RELEASES[1:])
def test_messages_travel_over_http(http_address: str, release: str) -> None:
    place = {"stream": f"web-{release}", "topic": "orders"}
    with Conversation(release, http_address) as child:
        child.ask("connect", client="own")
        child.ask("create", client="own", partitions=2, **place)
        child.ask("send", client="own", payloads=["one", "two", "x" * 1_000_000], **place)
        found = child.ask("poll", client="own", **place)
        assert [payload for _, payload, _ in found] == ["one", "two", "x" * 1_000_000]
