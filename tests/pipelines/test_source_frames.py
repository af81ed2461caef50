"""Which server a pipeline talks to, and what Spark is told about it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from courser.client.targets import parse_target
from courser.errors import TargetRefused
from courser.pipelines.definition import ServerAccess, Start, TopicName, TopicSource
from courser.pipelines.source_frames import connection_url, target_of, topic_options

SOURCE = TopicSource(TopicName("shop", "orders"), Start(), "lake")


def test_the_environment_decides_where_the_file_is_silent(tmp_path: Path) -> None:
    home = {"COURSER_CONFIG_HOME": str(tmp_path)}
    found = target_of(ServerAccess(), home | {"COURSER_URL": "iggy://a:b@10.0.0.5:1"})
    assert (found.address, found.username, found.password) == ("10.0.0.5:1", "a", "b")
    found = target_of(ServerAccess(url="10.0.0.6:2", username="app"), home | {"COURSER_PASSWORD": "secret"})
    assert (found.address, found.username, found.password) == ("10.0.0.6:2", "app", "secret")


def test_secrets_from_files(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("pass word\nnot this\n")
    found = target_of(ServerAccess(url="h:1", username="app", password_file=path), {"COURSER_PASSWORD": "other"})
    assert (found.username, found.password) == ("app", "pass word")
    found = target_of(ServerAccess(url="iggy://a:b@h:1", token_file=path), {})
    assert (found.token, found.username) == ("pass word", None)
    with pytest.raises(TargetRefused, match="could not read"):
        target_of(ServerAccess(url="h:1", token_file=tmp_path / "missing"), {})


@pytest.mark.parametrize(
    "url",
    [
        "iggy://user:p%40ss%2Fword@[::1]:8090",
        "iggy://to%2Fken@10.0.0.5:8090",
        "iggy://a:b@h:1?tls=true&tls_ca_file=%2Fa%2Fb.pem&tls_domain=x.example",
        "iggy://a:b@h:1?tls=true&tls_verify=false",
    ],
)
def test_everything_about_a_connection_fits_into_one_option(url: str) -> None:
    target = parse_target(url)
    assert parse_target(connection_url(target)) == target


def test_options_of_a_read() -> None:
    target = parse_target("iggy://a:b@h:1?request_timeout=500ms")
    options = topic_options(SOURCE, target, Start())
    assert options["startingOffsets"] == "earliest"
    assert options["requestTimeout"] == "0.5"
    assert options["consumer"] == "lake"
    assert "minPartitions" not in options
    at = topic_options(SOURCE, target, Start('{"0": 5}'))
    assert json.loads(at["startingOffsets"]) == {"0": 5}
    place = replace(SOURCE.place, topic="orders, all")
    assert topic_options(replace(SOURCE, place=place), target, Start())["topic"] == r"orders\, all"
    since = topic_options(SOURCE, target, Start("earliest", "2026-11-01T00:00:00+00:00"))
    assert since["startingTimestamp"] == "2026-11-01T00:00:00+00:00"
    assert "startingOffsets" not in since
