"""The binary protocol over WebSocket and QUIC, with every release that can use them."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from courser.server.certificates import Certificate
from courser.server.configuration.settings import TlsSettings
from courser.storage.watched_clock import SystemClock
from tests.sdk.conversations import Conversation, Refused
from tests.sdk.programs.catalogue import scenarios_of
from tests.servers import RunningServer

SETTINGS = {
    "websocket.enabled": "true",
    "websocket.address": "127.0.0.1:0",
    "quic.enabled": "true",
    "quic.address": "127.0.0.1:0",
    "http.enabled": "true",
    "http.address": "127.0.0.1:0",
}
VALIDATED = "tls_validate_certificate=true"
"""Over WebSocket the SDKs accept every certificate unless they are told otherwise, even if they get a file."""
SELF_SIGNED = TlsSettings(certificate_file=None, key_file=None, is_self_signed=True)
SCHEMES = {"iggy+ws": "websocket", "iggy+quic": "quic"}
RELEASES = ("0.6.0", "0.7.0", "0.8.0")
"""Those that can use WebSocket, beside the newest. Over QUIC they fail to make a socket, whatever the server."""
NEWEST = "0.9.0"
PREVIEW = "0.9.1.dev5"
ABOUT_TCP = {
    "a_connection_string_logs_in",
    "every_field_of_the_tcp_configuration_is_taken",
    "a_token_in_the_configuration_logs_in_and_disabled_means_by_hand",
}
IMPOSSIBLE = {
    # Over QUIC the SDK reads replies of ten million bytes at most.
    ("iggy+quic", "messages_near_the_limit_come_one_to_a_poll"),
}
LARGE = "x" * 2_000_000


def place_of(server: RunningServer, scheme: str) -> str:
    return f"{scheme}://{server.address_of(SCHEMES[scheme])}"


@pytest.fixture(scope="module")
def server_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("carriers"), settings=SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def newest_over(server_of_all: RunningServer) -> Iterator[Callable[..., Conversation]]:
    """A child of the newest release, or of the one that comes next, for each transport."""
    children: dict[tuple[str, str], Conversation] = {}
    with ExitStack() as stack:
        first = stack.enter_context(Conversation(NEWEST, server_of_all.address))
        first.ask("connect", client="root")
        token = first.ask("token", client="root", name="for-the-tests")

        def child(scheme: str, release: str = NEWEST) -> Conversation:
            if (scheme, release) not in children:
                made = Conversation(release, place_of(server_of_all, scheme), token)
                children[scheme, release] = stack.enter_context(made)
            return children[scheme, release]

        yield child


CASES = [
    pytest.param(scheme, release, scenario.name, id=f"{transport}-{release}-{scenario.name}")
    for release in (NEWEST, PREVIEW)
    for scheme, transport in SCHEMES.items()
    for scenario in scenarios_of(release)
    if scenario.name not in ABOUT_TCP and (scheme, scenario.name) not in IMPOSSIBLE
]


@pytest.mark.parametrize(("scheme", "release", "name"), CASES)
def test_scenario_with_the_newest_releases(
    newest_over: Callable[..., Conversation], scheme: str, release: str, name: str
) -> None:
    newest_over(scheme, release).ask("run", scenario=name)


def exchange(child: Conversation, name: str, options: str) -> None:
    """Create, send and poll, with a message that needs more than one read."""
    place = {"stream": name, "topic": name}
    child.ask("connect", client="own", options=options)
    child.ask("create", client="own", partitions=1, **place)
    child.ask("send", client="own", payloads=["small", LARGE], **place)
    child.ask("send", client="own", payloads=[f"message {number}" for number in range(1000)], **place)
    found = child.ask("poll", client="own", **place)
    assert [payload for _, payload, _ in found] == ["small", LARGE, *(f"message {number}" for number in range(1000))]
    child.ask("ping", client="own")


@pytest.mark.parametrize("release", RELEASES)
def test_websocket_with_older_releases(server_of_all: RunningServer, release: str) -> None:
    with Conversation(release, place_of(server_of_all, "iggy+ws")) as child:
        exchange(child, f"websocket-{release}", "?heartbeat_interval=1s")


@pytest.mark.parametrize("release", [*RELEASES, NEWEST, PREVIEW])
def test_websocket_on_the_port_of_http(server_of_all: RunningServer, release: str) -> None:
    with Conversation(release, f"iggy+ws://{server_of_all.address_of('http')}") as child:
        exchange(child, f"upgraded-{release}", "?heartbeat_interval=1s")


@pytest.mark.parametrize("release", [*RELEASES, NEWEST, PREVIEW])
def test_websocket_with_tls(tmp_path: Path, release: str) -> None:
    with RunningServer(tmp_path, settings=SETTINGS | {"websocket.tls.enabled": "true"}) as server:
        host, port = server.address_of("websocket").split(":")
        trusted = tmp_path / "certificate.pem"
        trusted.write_text(ssl.get_server_certificate((host, int(port))))
        assert trusted.read_bytes() == (server.data / "runtime" / "websocket_certificate.pem").read_bytes()
        with Conversation(release, place_of(server, "iggy+ws")) as child:
            exchange(child, "with-tls", f"?tls=true&{VALIDATED}&tls_domain=localhost&tls_ca_file={trusted}")


def test_a_certificate_over_websocket_is_checked(tmp_path: Path) -> None:
    """The client refuses one that nobody vouches for, and one that is for another name."""
    with (
        RunningServer(tmp_path / "server", settings=SETTINGS | {"websocket.tls.enabled": "true"}) as server,
        Conversation(NEWEST, place_of(server, "iggy+ws")) as child,
    ):
        own = server.data / "runtime" / "websocket_certificate.pem"
        other = tmp_path / "other.pem"
        other.write_bytes(Certificate(SELF_SIGNED, "localhost", SystemClock()).pem)
        for domain, trusted in (("localhost", f"&tls_ca_file={other}"), ("example.org", f"&tls_ca_file={own}")):
            options = f"?tls=true&{VALIDATED}&tls_domain={domain}{trusted}&reconnection_retries=0"
            with pytest.raises(Refused):
                child.ask("connect", client="own", options=options)
        # With the right one it connects: nothing else was wrong.
        child.ask("connect", client="own", options=f"?tls=true&{VALIDATED}&tls_domain=localhost&tls_ca_file={own}")


def test_large_messages_over_quic(newest_over: Callable[[str], Conversation]) -> None:
    exchange(newest_over("iggy+quic"), "large-over-quic", "?heartbeat_interval=1s")


def test_a_reply_that_is_too_large_for_quic_is_an_error(newest_over: Callable[[str], Conversation]) -> None:
    child, place = newest_over("iggy+quic"), {"stream": "too-large", "topic": "too-large"}
    child.ask("connect", client="other", options="?heartbeat_interval=1s")
    child.ask("create", client="other", partitions=1, **place)
    child.ask("send", client="other", payloads=["x" * 10_000_000], **place)
    with pytest.raises(Refused) as refusal:
        child.ask("poll", client="other", **place)
    assert "payload" in refusal.value.text
    child.ask("ping", client="other")
