"""TLS, with every release that can speak it: a connection string of 0.5 does not exist."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.conversations import Conversation, Refused
from tests.sdk.environments import RELEASES
from tests.servers import RunningServer

PLACE: dict[str, str] = {"stream": "secret", "topic": "secret"}


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"tcp.tls.enabled": "true", "tcp.tls.self_signed": "true"}
    with RunningServer(tmp_path_factory.mktemp("tls-server"), settings=settings) as server:
        yield server


@pytest.mark.parametrize("release", RELEASES[1:])
def test_messages_travel_encrypted(tls_server: RunningServer, tmp_path: Path, release: str) -> None:
    certificate_file = tmp_path / "certificate.pem"
    certificate_file.write_text(ssl.get_server_certificate((tls_server.host, tls_server.port)))
    place = PLACE | {"stream": f"secret-{release}"}
    options = f"?tls=true&tls_domain=localhost&tls_ca_file={certificate_file}"
    with Conversation(release, tls_server.address) as child:
        child.ask("connect", client="own", options=options)
        child.ask("create", client="own", partitions=1, **place)
        child.ask("send", client="own", payloads=["over TLS", "x" * 1_000_000], **place)
        found = child.ask("poll", client="own", **place)
        assert [payload for _, payload, _ in found] == ["over TLS", "x" * 1_000_000]


def test_a_certificate_that_is_not_trusted_is_refused_by_the_client(tls_server: RunningServer) -> None:
    with Conversation("0.9.0", tls_server.address) as child, pytest.raises(Refused):
        child.ask("connect", client="own", options="?tls=true&tls_domain=localhost&reconnection_retries=0")
