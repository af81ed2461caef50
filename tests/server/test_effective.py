"""The effective configuration as text, and the reference that is generated from the table."""

import tomllib
from pathlib import Path

import pytest

from courser.records.classic import Dialect
from courser.server.configuration.effective import to_toml
from courser.server.configuration.loading import LIVE_KEYS, load
from courser.server.configuration.reference import reference_markdown
from courser.server.configuration.settings import settings_of


def test_it_is_toml_that_loads_as_the_same(tmp_path: Path) -> None:
    configuration = load(
        settings=["tcp.address=[::1]:0", "topic.message_expiry=1 day", "tcp.classic_dialects=a.b=0.5,c d=0.6"]
    )
    path = tmp_path / "current_config.toml"
    path.write_text(to_toml(configuration, with_sources=True))
    again = load(path)
    assert again.warnings == ()
    for key in LIVE_KEYS:
        assert again[key] == configuration[key]
    assert settings_of(again).connections.classic_dialects == {"a.b": Dialect.SDK_0_5, "c d": Dialect.SDK_0_6}
    assert settings_of(again) == settings_of(configuration)


def test_the_real_port_is_shown() -> None:
    text = to_toml(load(settings=["tcp.address=127.0.0.1:0"]), addresses={"tcp": "127.0.0.1:4711"})
    assert tomllib.loads(text)["tcp"]["address"] == "127.0.0.1:4711"


def test_it_says_where_values_come_from(tmp_path: Path) -> None:
    path = tmp_path / "line\nend.toml"
    path.write_text("[heartbeat]\ninterval = '5s'\n")
    text = to_toml(load(path, {"IGGY_PATH": "x"}, ["tcp.enabled=true"]), with_sources=True)
    assert 'path = "x"  # IGGY_PATH\n' in text
    assert "enabled = true  # --set\n" in text
    assert "line\\nend.toml" in text
    assert '\nname = "' not in text
    tomllib.loads(text)


@pytest.mark.parametrize("prefix", ["IGGY_", "COURSER_"])
def test_secrets_are_masked(prefix: str) -> None:
    canary = "canary-77b1"
    configuration = load(
        None,
        {
            f"{prefix}SYSTEM_ENCRYPTION_ENABLED": "true",
            f"{prefix}SYSTEM_ENCRYPTION_KEY": canary,
            f"{prefix}SYSTEM_ENCRYPTION_OLD_KEYS": canary,
            f"{prefix}DATA_MAINTENANCE_ARCHIVER_ENABLED": "true",
            f"{prefix}DATA_MAINTENANCE_ARCHIVER_S3_BUCKET": "shown",
            f"{prefix}DATA_MAINTENANCE_ARCHIVER_S3_ACCESS_KEY_ID": canary,
            f"{prefix}DATA_MAINTENANCE_ARCHIVER_S3_SECRET_ACCESS_KEY": canary,
            f"{prefix}HTTP_JWT_ENCODING_SECRET": canary,
            f"{prefix}CLUSTER_AUTH_SHARED_SECRET": canary,
        },
    )
    text = to_toml(configuration, with_sources=True)
    assert canary not in text
    assert canary not in "".join(configuration.warnings)
    contents = tomllib.loads(text)
    assert contents["system"]["encryption"] == {"enabled": True, "key": "***", "old_keys": "***"}
    store = contents["data_maintenance"]["archiver"]["s3"]
    assert (store["bucket"], store["access_key_id"], store["secret_access_key"]) == ("shown", "***", "***")


def test_every_key_is_in_the_reference() -> None:
    reference = reference_markdown()
    for key in LIVE_KEYS:
        assert f"| `{key.path}` |" in reference
        assert "|" not in key.description
