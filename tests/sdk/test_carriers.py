"""The binary protocol over other carriers than TCP, with every release whose connection strings can name them."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.conversations import Conversation, Refused
from tests.servers import RunningServer

RELEASES = ("0.6.0", "0.7.0", "0.8.0", "0.9.0")
SETTINGS = {
    "websocket.enabled": "true",
    "websocket.address": "127.0.0.1:0",
    "quic.enabled": "true",
    "quic.address": "127.0.0.1:0",
}
LARGE = "x" * 2_000_000


@pytest.fixture(scope="module")
def carriers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("carriers"), settings=SETTINGS) as server:
        yield server


def exchange(child: Conversation, name: str, **how: str) -> None:
    """Create, send and poll, with a message that needs more than one read."""
    place = {"stream": name, "topic": name}
    child.ask("connect", client="own", **how)
    child.ask("create", client="own", partitions=1, **place)
    child.ask("send", client="own", payloads=["small", LARGE], **place)
    child.ask("send", client="own", payloads=[f"message {number}" for number in range(1000)], **place)
    found = child.ask("poll", client="own", **place)
    assert [payload for _, payload, _ in found] == ["small", LARGE, *(f"message {number}" for number in range(1000))]
    child.ask("ping", client="own")


@pytest.mark.parametrize("release", RELEASES)
def test_over_websocket(carriers: RunningServer, release: str) -> None:
    with Conversation(release, carriers.address_of("websocket")) as child:
        exchange(child, f"websocket-{release}", scheme="iggy+ws")


def test_over_quic(carriers: RunningServer) -> None:
    """Older packages cannot: they fail to make a socket, whatever the server."""
    with Conversation("0.9.0", carriers.address_of("quic")) as child:
        exchange(child, "quic", scheme="iggy+quic")


def test_a_reply_that_is_too_large_for_quic_is_an_error(carriers: RunningServer) -> None:
    place = {"stream": "too-large", "topic": "too-large"}
    with Conversation("0.9.0", carriers.address_of("quic")) as child:
        child.ask("connect", client="own", scheme="iggy+quic")
        child.ask("create", client="own", partitions=1, **place)
        child.ask("send", client="own", payloads=["x" * 10_000_000], **place)
        with pytest.raises(Refused, match=r"TooBigMessagePayload|[Tt]oo big"):
            child.ask("poll", client="own", **place)
        child.ask("ping", client="own")


@pytest.mark.parametrize("release", RELEASES)
def test_over_websocket_with_tls(tmp_path: Path, release: str) -> None:
    with RunningServer(tmp_path, settings=SETTINGS | {"websocket.tls.enabled": "true"}) as server:
        address = server.address_of("websocket")
        host, port = address.split(":")
        trusted = tmp_path / "certificate.pem"
        trusted.write_text(ssl.get_server_certificate((host, int(port))))
        assert trusted.read_bytes() == (server.data / "runtime" / "websocket_certificate.pem").read_bytes()
        with Conversation(release, address) as child:
            options = f"?tls=true&tls_domain=localhost&tls_ca_file={trusted}"
            exchange(child, f"websocket-tls-{release}", scheme="iggy+ws", options=options)
