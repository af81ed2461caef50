"""The official packages over HTTP. It takes a connection string, which 0.5 does not have."""

from collections.abc import Iterator

import pytest

from tests.sdk.conversations import Conversation, Refused
from tests.sdk.environments import RELEASES
from tests.servers import RunningServer


@pytest.fixture(scope="module")
def http_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"http.enabled": "true", "http.address": "127.0.0.1:0"}
    with RunningServer(tmp_path_factory.mktemp("http-server"), settings=settings) as server:
        yield f"iggy+http://{server.address_of('http')}"


@pytest.mark.parametrize("release", RELEASES[2:])
def test_messages_travel_over_http(http_address: str, release: str) -> None:
    place = {"stream": f"web-{release}", "topic": "orders"}
    with Conversation(release, http_address) as child:
        child.ask("connect", client="own")
        child.ask("create", client="own", partitions=2, **place)
        child.ask("send", client="own", payloads=["one", "two", "x" * 1_000_000], **place)
        found = child.ask("poll", client="own", **place)
        assert [payload for _, payload, _ in found] == ["one", "two", "x" * 1_000_000]


def test_0_6_can_send_but_not_poll(http_address: str) -> None:
    """It expects user headers as an object, where later releases and both recorded servers have a list."""
    place = {"stream": "web-0.6.0", "topic": "orders"}
    with Conversation("0.6.0", http_address) as child:
        child.ask("connect", client="own")
        child.ask("create", client="own", partitions=1, **place)
        child.ask("send", client="own", payloads=["one"], **place)
        with pytest.raises(Refused, match="InvalidJsonResponse"):
            child.ask("poll", client="own", **place)
