"""The certificate that clients are shown: made at start, or from files that may change."""

import asyncio
import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from courser.errors import StartRefused
from courser.server.certificates import Certificate, fingerprint, make_self_signed
from courser.server.configuration.settings import TlsSettings
from courser.storage.watched_clock import SystemClock
from tests.fakes.clocks import ManualClock

NOW = datetime(2026, 1, 31, tzinfo=UTC)
MADE = TlsSettings(certificate_file=None, key_file=None, is_self_signed=True)


def clock_at(moment: datetime) -> ManualClock:
    return ManualClock(now=int(moment.timestamp() * 1_000_000))


def files_in(directory: Path, host: str = "localhost", moment: datetime = NOW) -> TlsSettings:
    key, certificate = make_self_signed(host, moment)
    settings = TlsSettings(
        certificate_file=directory / "cert.pem", key_file=directory / "key.pem", is_self_signed=False
    )
    (directory / "cert.pem").write_bytes(certificate)
    (directory / "key.pem").write_bytes(key)
    (directory / "key.pem").chmod(0o600)
    return settings


async def shown_to_client(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bytes | None:
    """What a client that verifies gets to see, over a real handshake."""
    connected = asyncio.Event()
    listener = await asyncio.start_server(lambda *_: connected.set(), "127.0.0.1", 0, ssl=server)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
        certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await connected.wait()
    return certificate


def trusting(pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pem.decode())
    return context


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "10.1.2.3"])
async def test_a_client_that_trusts_it_is_content_with_every_local_name(name: str) -> None:
    made = Certificate(MADE, "10.1.2.3", SystemClock())
    assert not made.is_from_files
    shown = await shown_to_client(made.context, trusting(made.pem), name)
    assert shown == ssl.PEM_cert_to_DER_cert(made.pem.decode())


async def test_a_client_that_does_not_know_it_is_not() -> None:
    made, other = (Certificate(MADE, "localhost", SystemClock()) for _ in range(2))
    with pytest.raises(ssl.SSLCertVerificationError):
        await shown_to_client(made.context, trusting(other.pem), "localhost")


def test_what_is_made() -> None:
    _, pem = make_self_signed("broker.example.com", NOW)
    certificate = x509.load_pem_x509_certificate(pem)
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "broker.example.com"]
    assert certificate.not_valid_before_utc < NOW < certificate.not_valid_after_utc
    assert fingerprint(pem) == fingerprint(pem)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_the_address_that_stands_for_all_is_no_name(host: str) -> None:
    _, pem = make_self_signed(host, NOW)
    certificate = x509.load_pem_x509_certificate(pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]


def test_old_protocol_versions_are_refused() -> None:
    assert Certificate(MADE, "localhost", clock_at(NOW)).context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_files_that_exist_come_before_a_certificate_of_our_own(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    preferring = TlsSettings(certificate_file=files.certificate_file, key_file=files.key_file, is_self_signed=True)
    assert Certificate(preferring, "localhost", clock_at(NOW)).pem == (tmp_path / "cert.pem").read_bytes()
    (tmp_path / "cert.pem").unlink()
    assert not Certificate(preferring, "localhost", clock_at(NOW)).is_from_files


def test_a_file_that_does_not_exist_is_told_when_another_certificate_takes_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "missing.pem"
    settings = TlsSettings(certificate_file=path, key_file=tmp_path / "key.pem", is_self_signed=True)
    assert not Certificate(settings, "localhost", SystemClock()).is_from_files
    assert f"using the generated certificate because {path} does not exist" in caplog.text
    caplog.clear()
    Certificate(MADE, "localhost", SystemClock())
    assert "takes the place" not in caplog.text


def test_a_file_that_cannot_be_looked_for_is_not_taken_for_missing(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    settings = TlsSettings(certificate_file=path, key_file=tmp_path / "key.pem", is_self_signed=True)
    with pytest.raises(StartRefused, match="cannot read the certificate: File name too long"):
        Certificate(settings, "localhost", SystemClock())


def test_files_are_read_again(tmp_path: Path) -> None:
    certificate = Certificate(files_in(tmp_path), "localhost", clock_at(NOW))
    first = certificate.pem
    files_in(tmp_path)
    certificate.reload()
    assert certificate.pem != first
    (tmp_path / "key.pem").write_text("nonsense")
    second = certificate.pem
    with pytest.raises(StartRefused):
        certificate.reload()
    assert certificate.pem == second


def test_files_that_do_not_do(tmp_path: Path) -> None:
    good, other = tmp_path / "good", tmp_path / "other"
    for directory in (good, other):
        directory.mkdir()
    settings = files_in(good)
    files_in(other)
    refusals = {
        "cert.pem": [(b"", "contains no certificate"), (None, "cannot read")],
        "key.pem": [
            (b"nonsense", "not a usable private key"),
            ((other / "key.pem").read_bytes(), "KEY_VALUES_MISMATCH"),
            (encrypted((good / "key.pem").read_bytes()), "has no passphrase"),
            (None, "cannot read"),
        ],
    }
    for name, cases in refusals.items():
        before = (good / name).read_bytes()
        for contents, words in cases:
            if contents is None:
                (good / name).unlink()
            else:
                (good / name).write_bytes(contents)
            with pytest.raises(StartRefused) as refused:
                Certificate(settings, "localhost", clock_at(NOW))
            assert words in str(refused.value)
            assert str(good) in str(refused.value)
        (good / name).write_bytes(before)


def encrypted(pem: bytes) -> bytes:
    key = serialization.load_pem_private_key(pem, None)
    secret = serialization.BestAvailableEncryption(b"passphrase")
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)


def test_half_a_pair_is_refused(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    for certificate_file, key_file in ((files.certificate_file, None), (None, files.key_file)):
        settings = TlsSettings(certificate_file=certificate_file, key_file=key_file, is_self_signed=False)
        with pytest.raises(StartRefused, match=r"set both tcp\.tls\.cert_file and tcp\.tls\.key_file"):
            Certificate(settings, "localhost", clock_at(NOW))


@pytest.mark.parametrize(
    ("moment", "level", "words"),
    [
        (NOW + timedelta(days=4000), logging.ERROR, "expired on"),
        (NOW + timedelta(days=3645), logging.WARNING, "expires on"),
        (NOW - timedelta(days=10), logging.ERROR, "not valid before"),
    ],
)
def test_certificates_out_of_their_time_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, moment: datetime, level: int, words: str
) -> None:
    Certificate(files_in(tmp_path), "localhost", clock_at(moment))
    assert [record.levelno for record in caplog.records if words in record.message] == [level]


def test_a_key_that_others_may_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = files_in(tmp_path)
    Certificate(settings, "localhost", clock_at(NOW))
    assert "other users can read" not in caplog.text
    (tmp_path / "key.pem").chmod(0o644)
    Certificate(settings, "localhost", clock_at(NOW))
    assert "other users can read" in caplog.text


def test_a_key_that_was_made_leaves_no_file_open() -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    Certificate(MADE, "localhost", clock_at(NOW))
    assert open_files() == before
