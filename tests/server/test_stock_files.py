"""The files that Iggy ships, of every release, load as they are, with the warnings that the documentation names."""

import tomllib
from pathlib import Path

import pytest

from courser.configuration.key import KeyStatus
from courser.model.quantities import SECOND
from courser.server.configuration import checks
from courser.server.configuration.loading import all_keys, load
from courser.server.configuration.settings import settings_of
from courser.storage.segment_index import IndexCache
from tests.server import stock_files


def test_the_stock_file_of_0_8_starts_with_three_warnings(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(stock_files.IGGY_0_8)
    configuration = load(path)
    checks.check(configuration)
    no_retention, no_root = checks.warnings(configuration)
    assert "tokens of 'test-issuer' are refused because user 0 is root" in no_root
    assert no_retention.startswith("data_maintenance.messages.cleaner_enabled (")
    (ignored,) = configuration.warnings
    assert ignored.startswith("Iggy settings that Courser does not use, ignored: consumer_group.{rebalancing_timeout, ")
    for name in (
        "quic.socket.{",
        "tcp.{ipv6, socket_migration}",
        "cluster",
        "system.memory_pool.{",
    ):
        assert name in ignored
    settings = settings_of(configuration)
    assert (settings.tcp.host, settings.tcp.port, settings.tls) == ("127.0.0.1", 8090, None)
    assert settings.tcp.socket is None
    broker = settings.broker
    assert (broker.cleaner_enabled, broker.heartbeat_enabled, broker.heartbeat_interval) == (False, False, 5 * SECOND)
    assert (broker.saver_enforce_fsync, broker.saver_interval) == (True, 30 * SECOND)
    assert broker.index_cache is IndexCache.OPEN_SEGMENT
    assert settings.logging.sysinfo_interval == 10 * SECOND


@pytest.mark.parametrize("text", [stock_files.ONLY_IN_0_5, stock_files.ONLY_IN_0_6, stock_files.WITHOUT_SYSTEM])
def test_other_releases_too(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    configuration = load(path)
    checks.check(configuration)
    assert len(configuration.warnings) == 1
    assert configuration.warnings[0].startswith("Iggy settings that Courser does not use")
    assert "iggy123" not in configuration.warnings[0]


def test_a_file_without_the_table_system_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(stock_files.WITHOUT_SYSTEM)
    broker = settings_of(load(path)).broker
    assert (broker.validate_checksum, broker.heartbeat_interval) == (True, 30 * SECOND)


def test_the_table_has_no_key_that_no_stock_file_has() -> None:
    """Of those that are only accepted: a name nobody ever wrote would hide a misspelling."""
    texts = (
        stock_files.IGGY_0_8,
        stock_files.ONLY_IN_0_5,
        stock_files.ONLY_IN_0_6,
        stock_files.WITHOUT_SYSTEM,
    )
    names = {name for text in texts for name in names_in(tomllib.loads(text))}
    accepted = {key.path.rpartition(".")[2] for key in all_keys().keys if key.status is KeyStatus.IGNORED}
    of_the_guide = {"path"}
    of_newer_files = {
        *("wal_bytes_max", "wal_group_commit_delay_micros", "dedup_clients_max", "consumer_offsets_max"),
        *("offset_reservation_lease", "transfer_served_cache_bytes_max", "transfer_artifact_bytes_max"),
    }
    assert accepted - names == (of_the_guide | of_newer_files) - names


def names_in(table: dict[str, object]) -> set[str]:
    names = set(table)
    for value in table.values():
        if isinstance(value, dict):
            names |= names_in(value)
    return names
