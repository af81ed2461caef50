"""The grammars of values: from TOML, from the environment, and back to TOML."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from courser.broker.settings import INDEX_CACHE
from courser.model import setting_kinds as kinds
from courser.model.quantities import NEVER, SECOND
from courser.model.setting_kinds import Address, SettingKind
from courser.records.classic import Dialect
from courser.server.configuration.log_levels import LOG_LEVELS, parse_log_levels
from courser.server.configuration.settings import ALL_CORES, processes
from courser.storage.segment_index import IndexCache
from courser.transports.settings import DIALECT, DIALECTS

MIB = 1024 * 1024
LEVELS = parse_log_levels("info,courser.broker=debug")

GOOD: list[tuple[SettingKind[Any], object, str, object]] = [
    # kind, as in a file, as in the environment, value
    (kinds.BOOL, True, "true", True),
    (kinds.BOOL, False, " FALSE ", False),
    (kinds.OPTIONAL_BOOL, True, "True", True),
    (kinds.integer(1, 10), 10, "10", 10),
    (kinds.size(), "1 GiB", "1 GiB", 1024 * MIB),
    (kinds.size(), 1_048_576, "1048576", MIB),
    (kinds.size(), "unlimited", "0", 0),
    (kinds.size(512, 1024, multiple=512), "1 KiB", "1 KiB", 1024),
    (kinds.duration(), "2 days 4 hours", "2days4hours", (2 * 24 + 4) * 3600 * SECOND),
    (kinds.duration(), 0, "none", 0),
    (kinds.duration(SECOND, or_zero=True), "disabled", "0", 0),
    (kinds.EXPIRY, "7 days", "1w", 7 * 86_400 * SECOND),
    (kinds.EXPIRY, "none", "never_expire", NEVER),
    (kinds.topic_size(16 * MIB), "16 MiB", "16777216", 16 * MIB),
    (kinds.topic_size(16 * MIB), 16 * MIB, "16 MiB", 16 * MIB),
    (kinds.topic_size(16 * MIB), "unlimited", "Unlimited", NEVER),
    (kinds.PATH, "local_data", "local_data", Path("local_data")),
    (kinds.FILE, "", "", None),
    (kinds.FILE, "key.pem", "key.pem", Path("key.pem")),
    (kinds.TEXT, "a", "a", "a"),
    (kinds.choice("text", "json"), "json", "JSON", "json"),
    (kinds.ADDRESS, "127.0.0.1:8090", "127.0.0.1:8090", Address("127.0.0.1", 8090)),
    (kinds.ADDRESS, "[::1]:0", "[::1]:0", Address("::1", 0)),
    (kinds.ADDRESS, "localhost:65535", "localhost:65535", Address("localhost", 65535)),
    (LOG_LEVELS, "info,courser.broker=debug", "info, courser.broker=debug", LEVELS),
    (INDEX_CACHE, True, "true", IndexCache.ALL),
    (INDEX_CACHE, "all", "all", IndexCache.ALL),
    (INDEX_CACHE, "open_segment", "open_segment", IndexCache.OPEN_SEGMENT),
    (INDEX_CACHE, False, "none", IndexCache.NONE),
    (DIALECT, "0.6", "0.6", Dialect.SDK_0_6),
    (DIALECTS, {"al=ice": "0.5"}, "al=ice=0.5", {"al=ice": Dialect.SDK_0_5}),
    (DIALECTS, {"a": "0.5", "b": "0.8"}, "a=0.5, b=0.8", {"a": Dialect.SDK_0_5, "b": Dialect.SDK_0_8}),
    (DIALECTS, "a=0.5,b=0.8", "a=0.5,b=0.8", {"a": Dialect.SDK_0_5, "b": Dialect.SDK_0_8}),
    (DIALECTS, {}, ",", {}),
    (processes(64), 3, "3", 3),
    (processes(64), "auto", "AUTO", ALL_CORES),
]


@pytest.mark.parametrize(("kind", "in_file", "in_environment", "value"), GOOD)
def test_good_values(kind: SettingKind[Any], in_file: object, in_environment: str, value: object) -> None:
    assert kind.from_toml(in_file) == value
    assert kind.from_text(in_environment) == value


@pytest.mark.parametrize(("kind", "in_file", "in_environment", "value"), GOOD)
def test_what_is_printed_is_toml_and_reads_back_the_same(
    kind: SettingKind[Any], in_file: object, in_environment: str, value: object
) -> None:
    assert kind.from_toml(tomllib.loads(f"value = {kind.to_toml(value)}")["value"]) == value


BAD: list[tuple[SettingKind[Any], list[object], list[str]]] = [
    (kinds.BOOL, [1, 0, "true", None, []], ["yes", "1", "on", ""]),
    (processes(64), [0, 65, "all", None], ["0", "65", "all", ""]),
    (kinds.integer(1, 10), [0, 11, -1, 1.0, True, "5"], ["0", "11", "-1", "1.5", "1e1", "9" * 30, "\u0665"]),
    (kinds.size(512, 1024, multiple=512), [511, 513, 1536, -1, True, 1.5, "2 KiB"], ["1", "1 G", "-1"]),
    (kinds.duration(), [30, 1.5, True, "30", "-1s", "1 fortnight"], ["30", "1.5s"]),
    (kinds.duration(SECOND), ["0", 0, "999ms", "none"], ["0", "1ms"]),
    (kinds.duration(SECOND, or_zero=True), ["999ms"], ["1us"]),
    (kinds.EXPIRY, ["server_default", "default", "0", 0, "0s", 3600], ["server_default", "5"]),
    (kinds.topic_size(16 * MIB), ["0", "server_default", "1 MiB", 1, True, 0], ["0", "15 MiB"]),
    (kinds.PATH, ["", " ", 5, "a\0b", "a\nb", "x" * 5000, "~no.such.user/x"], ["", "\x7f"]),
    (kinds.choice("text", "json"), ["xml", 1], [""]),
    (
        kinds.ADDRESS,
        ["localhost", ":8090", "127.0.0.1:65536", "127.0.0.1:", "::1:80", "a b:80", "h:-1", "h:8o", 8090],
        ["127.0.0.1:99999", "h:\u0665"],
    ),
    (LOG_LEVELS, ["loud", "", "info,", "info,=debug", "a b=debug", 5], ["info,courser"]),
    (INDEX_CACHE, ["some", 1], ["1", "yes"]),
    (DIALECT, ["0.4", "0.9", 0.8, 8], ["8"]),
    (DIALECTS, [{"a": "0.4"}, {"a": 1}, "a=0.9", []], ["alice", "=0.5", "a=", "a=0.9"]),
]


@pytest.mark.parametrize(("kind", "in_file", "in_environment"), BAD)
def test_bad_values(kind: SettingKind[Any], in_file: list[object], in_environment: list[str]) -> None:
    assert [value for value in in_file if not is_refused(kind.from_toml, value)] == []
    assert [text for text in in_environment if not is_refused(kind.from_text, text)] == []


def is_refused(parse: Callable[[Any], object], value: object) -> bool:
    try:
        parse(value)
    except ValueError:
        return True
    return False


def test_levels_by_module() -> None:
    levels = parse_log_levels("warn,courser.broker=trace,iggy::server=off")
    assert levels.root == 30
    assert dict(levels.modules) == {"courser.broker": 10, "iggy.server": 60}
    assert parse_log_levels("courser.wire=debug").root == 20


def test_texts_with_anything_in_them_stay_toml() -> None:
    text = '"\\\n\t\x01\x7f\u20ac\U0001f600'
    assert tomllib.loads(f"value = {kinds.quoted(text)}")["value"] == text
