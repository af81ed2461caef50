"""From file, environment and command line to values: precedence, spellings, and messages about what is wrong."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import courser
from courser.broker.access.access_token_settings import AccessTokenSettings, TrustedIssuer
from courser.broker.settings import BrokerSettings, TopicDefaults
from courser.configuration.environment import configuration_path, variable, with_file
from courser.configuration.key import Key, key_of, variable_name
from courser.configuration.loading import Configuration
from courser.errors import ConfigurationRefused
from courser.model.setting_kinds import Address
from courser.server.configuration.effective import is_logged_at_start
from courser.server.configuration.loading import LIVE_KEYS, all_keys, load
from courser.server.configuration.log_levels import log_levels
from courser.transports.settings import TCP_ADDRESS, TCP_ENABLED
from tests.server.test_settings import ONLY_CHECKED, OTHER_VALUES

Load = Callable[..., Configuration]


@pytest.fixture
def load_text(tmp_path: Path) -> Load:
    """Load a configuration from the text of a file."""

    def load_it(text: str = "", *settings: str, **environment: str) -> Configuration:
        path = tmp_path / "server.toml"
        path.write_text(textwrap.dedent(text))
        return load(path, environment, settings)

    return load_it


def problems_of(load_it: Callable[[], object]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationRefused) as refused:
        load_it()
    return refused.value.problems


# --- sources ------------------------------------------------------------------------------------------


def test_nothing_at_all_gives_the_defaults() -> None:
    configuration = load()
    assert configuration.warnings == ()
    for key in LIVE_KEYS:
        assert configuration[key] == key.default
        assert configuration.source(key) == "default"


def test_later_sources_win(load_text: Load) -> None:
    text = "[tcp]\naddress = '127.0.0.1:1'\n"
    iggy = {"IGGY_TCP_ADDRESS": "127.0.0.1:2"}
    ours = {"COURSER_TCP_ADDRESS": "127.0.0.1:3"}
    assert load_text(text)[TCP_ADDRESS].port == 1
    assert load_text(text, **iggy)[TCP_ADDRESS].port == 2
    assert load_text(text, **iggy, **ours)[TCP_ADDRESS].port == 3
    assert load_text(text, "tcp.address=127.0.0.1:4", **iggy, **ours)[TCP_ADDRESS].port == 4


def test_later_sources_win_under_any_spelling(load_text: Load) -> None:
    text = "[system.segment]\nmessage_expiry = '1s'\n"
    configuration = load_text(text, IGGY_TOPIC_MESSAGE_EXPIRY="2s", COURSER_SYSTEM_TOPIC_MESSAGE_EXPIRY="3s")
    assert configuration[key_of(TopicDefaults, "message_expiry")] == 3_000_000
    assert configuration.source(key_of(TopicDefaults, "message_expiry")) == "COURSER_SYSTEM_TOPIC_MESSAGE_EXPIRY"


def test_empty_variables_are_not_set(load_text: Load) -> None:
    configuration = load_text("[tcp]\nenabled = false", IGGY_TCP_ENABLED="", COURSER_TCP_ENABLED="")
    assert configuration[TCP_ENABLED] is False


@pytest.mark.parametrize("key", LIVE_KEYS, ids=lambda key: key.path)
def test_every_spelling_of_every_key_works_everywhere(key: Key[Any], tmp_path: Path) -> None:
    text = (OTHER_VALUES | ONLY_CHECKED)[key.path]
    value = key.kind.from_text(text)
    assert value != key.default
    for spelling in key.spellings:
        path = tmp_path / "config.toml"
        path.write_text(f"{spelling} = {key.kind.to_toml(value)}\n")
        variables = [f"{prefix}{variable_name(spelling)}" for prefix in ("IGGY_", "COURSER_")]
        ways = [load(path), load(settings=[f"{spelling}={text}"]), *(load(None, {name: text}) for name in variables)]
        assert [configuration[key] for configuration in ways] == [value] * 4


def test_variables_are_unambiguous() -> None:
    index = all_keys()
    names = [variable_name(path) for key in index.keys for path in key.spellings]
    assert len(names) == len(set(names))


def test_one_setting_under_two_names_must_agree(load_text: Load) -> None:
    text = """
        [system.segment]
        validate_checksum = true
        [system.partition]
        validate_checksum = {}
    """
    assert load_text(text.format("true"))[key_of(BrokerSettings, "validate_checksum")] is True
    (problem,) = problems_of(lambda: load_text(text.format("false")))
    assert "system.partition.validate_checksum" in problem
    assert "system.segment.validate_checksum" in problem
    (problem,) = problems_of(lambda: load_text(IGGY_TCP_ENABLED="x", IGGY_PATH="a", IGGY_SYSTEM_PATH="a"))
    assert "IGGY_TCP_ENABLED" in problem


def test_files_with_a_byte_order_mark_and_other_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "any name.conf"
    path.write_bytes(b"\xef\xbb\xbf[tcp]\r\naddress = 'localhost:1'\r\n")
    assert load(path)[TCP_ADDRESS] == Address("localhost", 1)


# --- what is wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tcp.adress = 'x:1'", ["tcp.adress", '"x:1"', "unknown key", "tcp.address", "host and port"]),
        ("[system.partition]\nsize = '1 GB'", ["system.partition.size", "system.segment.size", "a size such as"]),
        ("[sytem]\npath = 'x'", ["sytem.path", "system.path"]),
        ("[http]\nenable = true", ["http.enable", "http.enabled"]),
        (
            "[system.partition]\npaths = 'x'",
            ["the closest is system.partition.path, an Iggy key that Courser does not use"],
        ),
        ("system.path = '~no.such.user/x'", ['"~no.such.user/x"', "expected the path of a directory"]),
        ("[nonsense]", ["nonsense", "a table", "unknown key"]),
        ("tcp = 5", ["tcp = 5", "expected a table"]),
        ("[tcp.address]\nport = 1", ["tcp.address", "a table", "expected host and port"]),
        ("[system.segment]\nsize = '2 GiB'", ["system.segment.size", '"2 GiB"', "at most 1 GiB"]),
        ("[system.segment]\nsize = 1000", ["system.segment.size", "1000", "a multiple of 512"]),
        ("[system.partition]\nmessages_required_to_save = 0", ["= 0 ", "a whole number from 1 to"]),
        ("[system.partition]\nenforce_fsync = 'yes'", ['"yes"', "true or false"]),
        ("[system.topic]\nmessage_expiry = 'server_default'", ["server_default", 'or "none"']),
        ("[system.topic]\nmax_size = '0'", ['or "unlimited"', "at least 16 MiB"]),
        ("[personal_access_token]\nmax_tokens_per_user = 0", ["max_tokens_per_user", "from 1 to"]),
        ("[system.logging]\nrotation_check_interval = '10 ms'", ["rotation_check_interval", "at least 1s"]),
        ("[tcp]\naddress = '127.0.0.1:65536'", ["65536", "port from 0 to 65535"]),
        ("[ui]\nbase_path = '/courser/'", ["ui.base_path", '"/courser/"', "without a slash at its end"]),
        ("[ui]\nbase_path = '/a; Domain=b'", ["ui.base_path", "of letters, digits and"]),
        ("x = [1, 2]", ["x = [1, 2]", "unknown key"]),
    ],
)
def test_messages_name_key_value_expectation_and_the_closest_key(
    text: str, words: list[str], load_text: Load, tmp_path: Path
) -> None:
    (problem,) = problems_of(lambda: load_text(text))
    assert str(tmp_path / "server.toml") in problem
    assert [word for word in words if word not in problem] == []


def test_all_mistakes_are_told_at_once(load_text: Load) -> None:
    problems = problems_of(
        lambda: load_text("[tcp]\nenabled = 1\nadress = 'x'", "a.b=1", COURSER_HEARTBEAT_INTERVAL="soon")
    )
    assert len(problems) == 4
    assert any("COURSER_HEARTBEAT_INTERVAL" in problem and '"soon"' in problem for problem in problems)
    assert any(problem.startswith('a.b = "1" (--set): unknown key') for problem in problems)


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"[tcp\n", "not valid TOML"),
        (b"a = 1\na = 2\n", "not valid TOML: Cannot overwrite a value (at line 2, column 6): a key is set twice"),
        (b"a = \xff\n", "not valid UTF-8"),
        (b"#" * 2_000_000, "not a configuration file"),
    ],
)
def test_files_that_are_no_configuration(contents: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(contents)
    (problem,) = problems_of(lambda: load(path))
    assert words in problem
    assert str(path) in problem


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.toml"):
        (problem,) = problems_of(lambda path=path: load(path))  # type: ignore[misc]
        assert problem.startswith(f"cannot read {path}: ")


def test_long_values_are_cut_in_messages(load_text: Load) -> None:
    (problem,) = problems_of(lambda: load_text(f"[tcp]\naddress = '{'x' * 100_000}'"))
    assert len(problem) < 500


def test_secrets_are_never_in_messages(load_text: Load) -> None:
    canary = "canary-5f3a"
    for text in (
        f"[system.encryption]\nkeys = '{canary}'",
        f"[http.jwt]\nencodin_secret = '{canary}'",
        f"[data_maintenance.archiver.s3]\nsecret_acces_key = '{canary}'",
        f"[tcp]\nenabled = 3\n[system.encryption]\nkey = '{canary}'",
    ):
        assert canary not in "".join(problems_of(lambda text=text: load_text(text)))  # type: ignore[misc]


# --- keys that do nothing, and variables that nobody knows --------------------------------------------


def test_keys_without_a_meaning_give_one_warning(load_text: Load) -> None:
    configuration = load_text(
        "[tcp]\nipv6 = true\nsocket_migration = false\n[cluster]\nenabled = false\n[cluster.auth]\nshared_secret='x'",
        IGGY_CLUSTER_NODES_0_NAME="a",
    )
    (warning,) = configuration.warnings
    assert warning == ("Iggy settings that Courser does not use, ignored: tcp.{ipv6, socket_migration}, cluster")


def test_a_list_of_tables_has_variables_for_each_field(load_text: Load) -> None:
    issuer = {
        f"IGGY_HTTP_JWT_TRUSTED_ISSUERS_{row}_{name}": value
        for row, name, value in [
            *((0, "ISSUER", "https://a"), (0, "JWKS_URL", "https://a/keys"), (0, "AUDIENCE", "shop")),
            *((0, "USER_ID", "7"), (11, "ISSUER", "https://b"), (11, "JWKS_URL", "https://b/keys")),
            (11, "AUDIENCE", "shop"),
        ]
    }
    from_file = "[[http.jwt.trusted_issuers]]\nissuer = 'c'\njwks_url = 'https://c/keys'\naudience = 'shop'"
    configuration = load_text(from_file, **issuer)
    assert configuration.warnings == ()
    assert configuration[key_of(AccessTokenSettings, "trusted_issuers")] == (
        TrustedIssuer(issuer="https://a", jwks_url="https://a/keys", audience="shop", user_id=7),
        TrustedIssuer(issuer="https://b", jwks_url="https://b/keys", audience="shop", user_id=0),
    )


def test_an_incomplete_table_in_variables_is_refused(load_text: Load) -> None:
    (problem,) = problems_of(lambda: load_text(COURSER_HTTP_JWT_TRUSTED_ISSUERS_0_ISSUER="https://a"))
    assert "http.jwt.trusted_issuers" in problem
    assert "COURSER_HTTP_JWT_TRUSTED_ISSUERS_0_ISSUER" in problem
    assert "expected a list of tables with issuer, jwks_url" in problem


def test_unknown_variables_are_warnings(load_text: Load) -> None:
    configuration = load_text(
        IGGY_SYSTEM_PARTITON_ENFORCE_FSYNC="true",
        COURSER_TPC_ADDRESS="127.0.0.1:1",
        IGGY_ZZZ="secret",
        HOME="elsewhere",
    )
    assert len(configuration.warnings) == 3
    assert "did you mean IGGY_SYSTEM_PARTITION_ENFORCE_FSYNC" in configuration.warnings[0]
    assert configuration.warnings[1] == "ignoring IGGY_ZZZ: unknown setting"
    assert "COURSER_TCP_ADDRESS" in configuration.warnings[2]


@pytest.mark.parametrize(
    "name",
    [
        *("IGGY_CI_BUILD", "IGGY_CONFIG_PATH", "IGGY_CONNECTORS_CONFIG_PATH", "IGGY_MCP_CONFIG_PATH"),
        *("IGGY_ROOT_USERNAME", "IGGY_ROOT_PASSWORD", "IGGY_TEST_X", "IGGY_CONNECTORS_SINK_A_B", "COURSER_LOG"),
    ],
)
def test_variables_of_others_are_left_alone(name: str) -> None:
    assert load(None, {name: "x"}).warnings == ()


def test_no_variable_that_courser_itself_reads_is_taken_for_a_mistake() -> None:
    sources = (path.read_text() for path in Path(courser.__file__).parent.rglob("*.py"))
    names = {name for text in sources for name in re.findall(r'"(COURSER_[A-Z]+(?:_[A-Z]+)*)"', text)}
    assert {"COURSER_URL", "COURSER_STATE_HOME"} <= names
    assert load(None, dict.fromkeys(names, "x")).warnings == ()


# --- what the environment says besides settings -------------------------------------------------------


def test_ours_before_theirs_and_empty_is_nothing() -> None:
    assert variable({"COURSER_X": "a", "IGGY_X": "b"}, "X") == "a"
    assert variable({"COURSER_X": "", "IGGY_X": "b"}, "X") == "b"
    assert variable({"IGGY_X": ""}, "X") is None
    assert configuration_path({"IGGY_CONFIG_PATH": "a.toml"}) == Path("a.toml")
    assert configuration_path({}) is None


def test_whether_the_configuration_is_printed() -> None:
    assert is_logged_at_start({})
    assert is_logged_at_start({"IGGY_DISPLAY_CONFIG": "1"})
    assert not is_logged_at_start({"IGGY_DISPLAY_CONFIG": "0"})
    assert not is_logged_at_start({"COURSER_DISPLAY_CONFIG": "false", "IGGY_DISPLAY_CONFIG": "1"})


def test_levels_of_the_environment() -> None:
    assert log_levels({}) is None
    levels = log_levels({"RUST_LOG": "warn,courser=debug"})
    assert levels is not None
    assert levels.modules == (("courser", 10),)
    ours = log_levels({"RUST_LOG": "warn", "COURSER_LOG": "error"})
    assert ours is not None
    assert ours.root == 40
    # Set for some other program: not understood, not ours to complain about.
    assert log_levels({"RUST_LOG": "hyper"}) is None
    with pytest.raises(ConfigurationRefused, match="COURSER_LOG"):
        log_levels({"COURSER_LOG": "loud"})


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1 # why", "1"),
        ("'a # b' # 'why'", "a # b"),
        ("a#b", "a#b"),
        ("'it's'", "it's"),
        ('"x', '"x'),
        ("'", "'"),
        ("", ""),
    ],
)
def test_quotes_and_comments_in_a_file_of_variables(tmp_path: Path, written: str, value: str) -> None:
    path = tmp_path / ".env"
    path.write_text(f"NAME={written}\n")
    assert with_file({"IGGY_ENV_PATH": str(path)})["NAME"] == value


def test_a_file_of_variables(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("# comment\n\nexport IGGY_TCP_ENABLED=false\nIGGY_PATH = 'a b'\nX=\"=\"\nIGGY_ROOT_USERNAME=me\n")
    environment = with_file({"IGGY_ENV_PATH": str(path), "IGGY_ROOT_USERNAME": "you", "X": ""})
    assert environment["IGGY_TCP_ENABLED"] == "false"
    assert environment["IGGY_PATH"] == "a b"
    assert environment["IGGY_ROOT_USERNAME"] == "you"
    assert environment["X"] == "="
    path.write_text("A=1\nsome secret\n")
    with pytest.raises(ConfigurationRefused, match=r"line 2: expected NAME=value$"):
        with_file({"COURSER_ENV_PATH": str(path)})
    with pytest.raises(ConfigurationRefused, match="cannot read"):
        with_file({"COURSER_ENV_PATH": str(tmp_path / "missing")})
