"""``courser config example``: profiles that our server takes."""

import json
import tomllib
from pathlib import Path

import pytest

from courser.cli.config_commands import PROFILES
from courser.cli.main import run
from courser.server.configuration import checks
from courser.server.configuration.loading import load
from courser.server.configuration.settings import settings_of
from tests.servers import RunningServer

LEVELS = {
    "production": (True, 100),
    "balanced": (True, 100),
    "throughput": (False, None),
    "durable": (True, 1),
}


@pytest.fixture(params=PROFILES)
def profile(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def file(profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run(["config", "example", profile]) == 0
    path = tmp_path / "server.toml"
    path.write_text(capsys.readouterr().out)
    return path


def test_it_loads_without_a_warning_and_means_what_it_says(profile: str, file: Path) -> None:
    configuration = load(file)
    assert configuration.warnings == ()
    assert list(checks.warnings(configuration)) == []
    checks.check(configuration)
    defaults = settings_of(configuration, log_levels=None).broker.topic_defaults
    is_synced, count = LEVELS[profile]
    assert defaults.enforce_fsync is is_synced
    assert count in (None, defaults.messages_required_to_save)


def test_a_server_starts_with_it(file: Path, tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "server", arguments=("--config", str(file), "--with-default-root-credentials"))
    with server:
        assert server.stop() == 0
    warnings = [line for line in server.output.splitlines() if " WARNING " in line]
    assert ["lets anyone log in as root" in line for line in warnings] == [True]


def test_for_programs(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "example", profile, "-o", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["profile"] == profile
    assert tomllib.loads(record["toml"])["system"]


def test_config_show_and_keys_for_programs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSER_SEED")
    assert run(["config", "show", "-o", "json", "--set", "tcp.address=127.0.0.1:7"]) == 0
    settings = {entry["key"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert settings["tcp.address"] == {"key": "tcp.address", "value": '"127.0.0.1:7"', "source": "--set"}
    assert settings["system.path"]["source"] is None
    assert run(["config", "keys", "-o", "csv"]) == 0
    assert "system.path" in capsys.readouterr().out
