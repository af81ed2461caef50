"""What values must not be together, and what is worth a warning."""

import base64
import importlib.util
import sys

import pytest

from courser.errors import ConfigurationRefused
from courser.records.encryption import KeyRing, parse_key
from courser.server.configuration import checks
from courser.server.configuration.loading import load
from courser.server.configuration.settings import settings_of

NO_LOG_FILES = ["logging.file_enabled=false", "logging.max_file_size=0"]


def issuers(*urls: str) -> str:
    """A setting that trusts the same issuer several times, with its keys at these places."""
    tables = (f'{{issuer = "a", jwks_url = "{url}", audience = "b", user_id = 2}}' for url in urls)
    return f"http.jwt.trusted_issuers=[{', '.join(tables)}]"


def test_a_codec_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(ConfigurationRefused, match=r"default_algorithm \(--set\): .* zstd needs .* cramjam"):
        checks.check(load(settings=["compression.default_algorithm=zstd"]))
    checks.check(load(settings=["compression.default_algorithm=gzip"]))


def test_keys_make_a_ring_and_are_not_shown() -> None:
    one, other = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
    configuration = load(settings=["encryption.enabled=true", f"encryption.key={one}", f"encryption.old_keys={other}"])
    checks.check(configuration)
    broker = settings_of(configuration).broker
    assert broker.encryption is not None
    assert broker.encryption.key == parse_key(one)
    assert broker.keys == KeyRing([parse_key(one), parse_key(other)])
    assert one not in repr(broker)
    assert other not in repr(broker)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["data_maintenance.messages.archiver_enabled=true"], "so set both alike"),
        (["data_maintenance.state.archiver_enabled=true"], "data_maintenance.state.archiver_enabled (--set)"),
        (["encryption.enabled=true"], "system.encryption.key is not set: set it to 32 random bytes in base64"),
        (["encryption.key=c2hvcnQ="], "encryption.key (--set): a key must be 32 random bytes in base64"),
        (["encryption.old_keys=no base64"], "encryption.old_keys (--set): a key must be 32 random bytes in base64"),
        (
            ["data_maintenance.archiver.enabled=true", "data_maintenance.messages.archiver_enabled=false"],
            "data_maintenance.archiver.enabled (--set) is true",
        ),
        (
            ["data_maintenance.archiver.enabled=true", "data_maintenance.archiver.kind=s3"],
            "data_maintenance.archiver.s3.bucket is required if data_maintenance.archiver.kind is s3",
        ),
        (
            [
                "data_maintenance.archiver.enabled=true",
                "data_maintenance.archiver.kind=s3",
                "data_maintenance.archiver.s3.bucket=b",
                "data_maintenance.archiver.s3.key_id=k",
            ],
            "data_maintenance.archiver.s3.secret_access_key is required",
        ),
        (["data_maintenance.messages.interval=0"], 'set a duration such as "1m", or set'),
        (["personal_access_token.cleaner.interval=none"], "personal_access_token.cleaner.enabled = false"),
        (["heartbeat.interval=0"], "heartbeat.enabled = false"),
        (["logging.max_total_size=1 MB"], "one log file must fit into the total size"),
        (["tcp.enabled=false"], "has no listener"),
        (["tcp.tls.enabled=true", "tcp.tls.self_signed=false", "tcp.tls.key_file=k"], "tcp.tls.cert_file is required"),
        (
            ["http.tls.enabled=true", "http.tls.self_signed=false", "http.tls.key_file=k"],
            "http.tls.cert_file is required",
        ),
        ([issuers("https://a/keys", "https://b/keys")], "names an issuer twice"),
        (["http.cors.allow_credentials=true"], "list the origins in http.cors.allowed_origins"),
        ([issuers("http://keys.example/a")], "which anybody on the way could replace: use https"),
        (["tcp.tls.enabled=true", "tcp.tls.self_signed=false", "tcp.tls.cert_file=c"], "tcp.tls.key_file is required"),
    ],
)
def test_what_cannot_be(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigurationRefused) as refused:
        checks.check(load(settings=settings))
    (problem,) = refused.value.problems
    assert words in problem


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["data_maintenance.messages.interval=0", "data_maintenance.messages.cleaner_enabled=false"],
        ["heartbeat.interval=0", "heartbeat.enabled=false"],
        ["system.logging.max_total_size=0"],
        ["system.logging.max_file_size=0", "system.logging.max_total_size=1 MB"],
        ["system.topic.max_size=16 MiB"],
        ["tcp.tls.enabled=true"],
        ["http.enabled=true"],
        [issuers("http://127.0.0.1:8081/keys")],
        ["data_maintenance.archiver.archive_expired=true"],
        ["data_maintenance.archiver.enabled=true", "data_maintenance.state.archiver_enabled=true"],
    ],
)
def test_what_can_be(settings: list[str]) -> None:
    checks.check(load(settings=settings))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["topic.message_expiry=1h", "data_maintenance.messages.cleaner_enabled=false"], "are not enforced"),
        (["data_maintenance.messages.cleaner_enabled=false"], "neither the server's defaults nor the topics' own"),
        (["message_saver.enforce_fsync=true", "message_saver.enabled=false"], "has no effect"),
        (["logging.max_file_size=0"], "logging.max_file_size (--set) is 0: one log file can exceed max_total_size"),
        (["tcp.address=0.0.0.0:8090"], "passwords are not encrypted"),
        (["tcp.address=[::]:8090"], "passwords are not encrypted"),
    ],
)
def test_what_is_perhaps_not_meant(settings: list[str], words: str) -> None:
    (warning,) = checks.warnings(load(settings=settings))
    assert words in warning


def test_usual_settings_give_no_warnings() -> None:
    for settings in (
        [],
        ["tcp.address=localhost:1"],
        ["tcp.address=[::1]:1"],
        ["topic.message_expiry=1h"],
        NO_LOG_FILES,
    ):
        assert list(checks.warnings(load(settings=settings))) == []


def test_a_store_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "obstore" else find(name))
    table = "data_maintenance.archiver"
    configuration = load(settings=[f"{table}.enabled=true", f"{table}.kind=s3", f"{table}.s3.bucket=b"])
    with pytest.raises(ConfigurationRefused, match=r"archiver.kind .* pip install 'courser\[s3\]'"):
        checks.check(configuration)
