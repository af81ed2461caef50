"""Every command that talks to a server: as a table, for programs, and when it fails."""

import csv
import io
import json
import shlex
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

from tests.cli.commands import Cli
from tests.cli.scenes import make_scene, make_sink, make_user, token
from tests.servers import RunningServer
from tools.command_pages import commands


@dataclass(frozen=True)
class Case:
    """A command line; ``{s}`` and so on as in ``Scene``."""

    line: str
    shown: str
    """What a person sees: on stdout."""
    key: str
    """What a program finds: a name in the JSON."""
    said: str = ""
    """What a person is told: on stderr."""


def deed(line: str, said: str, key: str) -> Case:
    """A command that does something, and says so."""
    return Case(line, "", key, said)


CASES = [
    Case("stream list", "{s}", "stream_id"),
    Case("stream get {s}", "orders", "topics"),
    deed("stream create {new}", 'created stream "{new}"', "stream_id"),
    deed("stream update {s} {new}", 'to "{new}"', "name"),
    deed("stream delete {s} --yes", 'deleted stream "{s}"', "deleted"),
    deed("stream purge {s} --yes", 'purged stream "{s}"', "purged"),
    Case("topic list {s}", "orders", "topic_id"),
    Case("topic get {t}", "PARTITION", "partitions"),
    Case("topic get {t}", "PARTITION", "deletions"),
    Case("topic get {t}", "durability                            written\n", "power_cut_loses"),
    deed("topic create {s}/{new} 3 none 7 days", 'created topic "{s}/{new}" with id 1 and 3 partitions', "topic_id"),
    deed("topic update {t} {new} --expiry 1h", 'changed topic "{t}"', "message_expiry"),
    deed("topic update {t} --max-topic-size 2GiB", 'changed topic "{t}"', "max_topic_size"),
    deed("topic update {t} --keep-latest-by-key", 'changed topic "{t}"', "keep_latest_by_key"),
    deed("topic update {t} --durability synced", 'changed topic "{t}"', "name"),
    deed("topic update {t} --consumer-offset-durability persisted", 'changed topic "{t}"', "name"),
    deed("topic delete {s} orders --yes", 'deleted topic "{t}"', "deleted"),
    deed("topic purge {t} --yes", 'purged topic "{t}"', "purged"),
    Case("partition list {t}", "NEXT", "next_offset"),
    deed("partition create {t} 2", 'added 2 partitions to "{t}"', "created"),
    deed("partition delete {t} 1 --yes", 'deleted 1 partitions of "{t}"', "deleted"),
    Case("partition get {t} 0", "next", "damages"),
    Case("segment list {t} 0", "STATE", "state"),
    deed("segment delete {t} 0 1 --yes", "deleted up to 1 segments of partition 0", "count"),
    deed("message send {t} hello", "sent 1 message to {t}, partition", "base_offset"),
    Case("message poll {t} 0 --first", '{{"n":0}}', "payload"),
    deed("message flush {t} 0 --fsync", 'flushed partition 0 of "{t}"', "fsync"),
    deed("send {t} hello", "sent 1 message to {t}, partition", "message_count"),
    Case("tail {t}", '{{"n":2}}', "offset"),
    Case("ls", "{s}", "max_lag"),
    Case("lag {t}", "readers", "lag_seconds"),
    Case("top --once --interval 0.1", "messages in", "disk_used"),
    Case("consumer-group list {t}", "readers", "group_id"),
    Case("consumer-group get {t} readers", "LAG", "partitions"),
    deed("consumer-group create {t} {new}", 'created group "{new}" of "{t}"', "group_id"),
    deed("consumer-group reset {t} readers --to latest --yes", 'reset group "readers" of "{t}"', "skipped_count"),
    deed("consumer-group delete {t} readers --yes", 'deleted group "readers"', "deleted"),
    Case("consumer-offset get app {t} 0", "stored offset", "lag"),
    deed("consumer-offset set app {t} 0 2", 'stored offset 2 for consumer "app"', "offset"),
    deed("consumer-offset delete app {t} 0 --yes", 'deleted the offset of consumer "app"', "deleted"),
    Case("user list", "iggy", "user_id"),
    Case("user get {u}", "active", "permissions"),
    deed("user create {new} secret", 'created user "{new}"', "user_id"),
    deed("user delete {u} --yes", 'deleted user "{u}"', "deleted"),
    deed("user name {u} {new}", 'to "{new}"', "name"),
    deed("user status {u} inactive", 'user "{u}" is now inactive', "status"),
    deed("user password {u} secret another", 'changed the password of user "{u}"', "changed"),
    deed("user permissions {u} -g p_msg -s 0:r_str#1:s_msg", 'changed the permissions of user "{u}"', "permissions"),
    deed("user permissions {u} --allow {t}:read,send", 'changed the permissions of user "{u}"', "permissions"),
    deed("user create {new} secret --allow {s}:manage --allow *:poll", 'created user "{new}"', "user_id"),
    Case("user can iggy send {t}", 'yes: user "iggy" may send to "{t}"', "is_allowed"),
    Case("pat list", "{p}", "expires_at"),
    Case("pat create {new} 1 day", "", "token", 'created token "{new}"'),
    deed("pat delete {p} --yes", 'deleted token "{p}"', "deleted"),
    Case("client list", "tcp", "address"),
    Case("sink list", "{k}", "staged_size"),
    Case("sink get {k}", "ATTEMPT", "parts"),
    deed("sink discard {k} --batch 1 --yes", 'discarded the staged parts of batch 1 of sink "{k}"', "discarded"),
    deed("sink delete {k} --yes", 'deleted sink "{k}"', "deleted"),
    Case("me", "tcp", "groups"),
    Case("ping", "MILLISECONDS", "milliseconds"),
    Case("stats", "messages", "message_count"),
    Case("options", "message_expiry", "default"),
    Case("cluster", "iggy-node", "tcp_port"),
    Case("ui --print --address http://console/", "http://console/ui/#login=", "url"),
]

FAILURES = [
    ("ui --print", 1, "does not listen for HTTP", "http.enabled"),
    ("stream list --url 127.0.0.1:1", 3, "cannot connect", "courser dev"),
    ("stream get {s}x", 5, "did you mean", "{s}"),
    ("stream create {s}", 1, "hint", "another name"),
    ("stream update {s}x new", 5, "did you mean", "{s}"),
    ("stream delete {s}x --yes", 5, "did you mean", "{s}"),
    ("stream delete {s}", 2, "--yes", "without a terminal"),
    ("stream purge nothing-like-it --yes", 5, "not found", "courser stream create"),
    ("topic list {s}x", 5, "did you mean", "{s}"),
    ("topic get {s}/order", 5, 'topic "order" not found in stream "{s}"', 'did you mean "orders"?'),
    ("topic create {t}", 1, "hint", "another name"),
    ("topic create {s}x/orders", 5, "did you mean", "{s}"),
    ("topic update {s}/order --expiry 1h", 5, "did you mean", "orders"),
    ("topic delete {s}/order --yes", 5, "did you mean", "orders"),
    ("topic purge {t}", 2, "--yes", "without a terminal"),
    ("partition list {s}/order", 5, "did you mean", "orders"),
    ("partition create {s}/order 1", 5, "did you mean", "orders"),
    ("partition delete {s}/order 1 --yes", 5, "did you mean", "orders"),
    ("partition get {t} 7", 5, 'partition 7 not found in topic "{t}"', "0 to 1"),
    ("segment list {t} 7", 5, 'partition 7 not found in topic "{t}"', "0 to 1"),
    ("segment delete {t} 7 1 --yes", 5, "partition 7 not found", "0 to 1"),
    ("message send {s}/order x", 5, "did you mean", "--create"),
    ("message poll {t} 7 --first", 5, "partition 7 not found", "0 to 1"),
    ("message flush {t} 7", 5, "partition 7 not found", "0 to 1"),
    ("send {s}/order x", 5, 'did you mean "orders"?', "--create"),
    ("send {t} x --partition 7", 5, "partition 7 not found", "0 to 1"),
    ("tail {s}/order", 5, 'did you mean "orders"?', "courser topic create"),
    ("tail {t} --partition 7", 5, "partition 7 not found", "0 to 1"),
    ("tail {t} --group writers", 5, 'group "writers" not found in topic "{t}"', "courser consumer-group create"),
    ("ls {s}x", 5, "did you mean", "{s}"),
    ("lag {s}x", 5, "did you mean", "{s}"),
    ("top --url 127.0.0.1:1", 3, "cannot connect", "courser dev"),
    ("consumer-group list {s}/order", 5, "did you mean", "orders"),
    ("consumer-group get {t} raeders", 5, 'did you mean "readers"?', ""),
    ("consumer-group create {t} readers", 1, "hint", "another name"),
    ("consumer-group reset {t} raeders --to latest --yes", 5, 'did you mean "readers"?', ""),
    ("consumer-group reset {t} readers --to latest --partition 7 --yes", 5, "partition 7 not found", "0 to 1"),
    ("consumer-group delete {t} raeders --yes", 5, 'did you mean "readers"?', ""),
    ("consumer-offset get nobody {t} 0", 5, 'no offset is stored for "nobody"', "first commit"),
    ("consumer-offset get raeders {t} 0 -k consumer-group", 5, 'did you mean "readers"?', ""),
    ("consumer-offset set app {t} 7 0", 5, "partition 7 not found", "0 to 1"),
    ("consumer-offset delete nobody {t} 0 --yes", 5, "no offset is stored", ""),
    ("user list --user nobody --password wrong", 4, " failed: ", "which comes from --password"),
    ("ls --user iggy --password pw", 4, "failed: a password must have 3 to 100 bytes", "which comes from --password"),
    ("user create {new} pw", 1, "a password must have 3 to 100 bytes", "courser user create --help"),
    ("user get igy", 5, 'user "igy" not found', 'did you mean "iggy"?'),
    ("user create iggy secret", 1, "hint", "another name"),
    ("user delete igy --yes", 5, 'did you mean "iggy"?', ""),
    ("user delete iggy --yes", 4, "permission denied", "hint"),
    ("user name iggy x", 1, "3 to 50 bytes", "courser user name --help"),
    ("user name igy somebody", 5, 'did you mean "iggy"?', ""),
    ("user status igy active", 5, 'did you mean "iggy"?', ""),
    ("user password igy old-one new-one", 5, 'did you mean "iggy"?', ""),
    ("user password {u}", 1, "no terminal to ask for it", "CURRENT"),
    ("user permissions igy", 5, 'did you mean "iggy"?', ""),
    ("user permissions {u} --allow {s}/order:read", 5, 'topic "order" not found', "orders"),
    ("user permissions {u} --allow {t}:raed", 2, 'did you mean "read"?', "--help"),
    ("user permissions {u} --allow orders", 2, "STREAM/TOPIC:WORDS", "--help"),
    ("user permissions {u} --allow {s}/:read", 2, "a stream and a topic", "--help"),
    ("user can igy send {t}", 5, 'did you mean "iggy"?', ""),
    ("user can iggy send {s}/order", 5, 'topic "order" not found', "orders"),
    ("user can iggy read-users {t}", 2, "does not apply to a topic", "--help"),
    ("pat list --token wrong", 4, " failed: ", "courser login"),
    ("pat create {p}", 1, "hint", "another name"),
    ("pat delete {p}x --yes", 5, 'did you mean "{p}"?', ""),
    ("client list --url 127.0.0.1:1", 3, "cannot connect", "courser dev"),
    ("client get 1", 5, "client 1 not found", "courser client list"),
    ("sink list --url 127.0.0.1:1", 3, "cannot connect", "courser dev"),
    ("sink get {k}x", 5, 'sink "{k}x" not found', 'did you mean "{k}"?'),
    ("sink get nothing-like-it", 5, "not found", "courser sink list"),
    ("sink discard {k}x --yes", 5, "did you mean", "{k}"),
    ("sink discard {k}", 2, "--yes", "without a terminal"),
    ("sink delete {k}x --yes", 5, "did you mean", "{k}"),
    ("sink delete {k}", 2, "--yes", "without a terminal"),
    ("me --url iggy://x.invalid:1", 4, "no user to log in as", "COURSER_USERNAME"),
    ("me --url iggy://a:b@x.invalid:1", 3, "hint", "check the address"),
    ("ping --url http://127.0.0.1:1", 2, "only TCP", "context show"),
    ("stats --context nowhere", 5, 'context "nowhere" not found', "courser context list"),
    ("options --url 127.0.0.1:1", 3, "cannot connect", "courser dev"),
    ("cluster --url 127.0.0.1:1", 3, "cannot connect", "courser dev"),
    ("snapshot --out-dir /nowhere/at/all", 1, "cannot write", "--out-dir"),
]

ELSEWHERE = {
    "client get",
    "snapshot",
    "dev",
    "serve",
    "login",
    "logout",
    "doctor",
    "demo",
    "help",
    "completion",
    "user reset-root",
    *(f"context {verb}" for verb in ("list", "show", "create", "use", "delete")),
    *(f"config {verb}" for verb in ("show", "keys", "example")),
    *("export", "replay", "compact", "backfill", "merge", "audit", "usage"),
    *(" ".join(path) for path, _ in commands() if path[0] in ("archive", "inspect", "bench", "pipeline", "spark")),
}
"""Tested in files of their own."""


@pytest.fixture
def names(server: RunningServer) -> dict[str, str]:
    return make_scene(server.address).names


def call(cli: Cli, server: RunningServer, line: str, names: dict[str, str], *more: str) -> tuple[int, str, str]:
    if "{u}" in line:
        make_user(server.address, names["u"])
    if "{k}" in line or line == "sink list":
        make_sink(server.address, names["k"], names["t"])
    with token(server.address, names["p"]) if "{p}" in line or line == "pat list" else nullcontext():
        result = cli(*shlex.split(line.format_map(names)), *more)
    return result.code, result.out, result.err


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.line)
def test_as_a_table(case: Case, cli: Cli, server: RunningServer, names: dict[str, str]) -> None:
    code, out, err = call(cli, server, case.line, names)
    assert (code, err if not case.said else "") == (0, ""), err
    assert case.shown.format_map(names) in out
    assert case.said.format_map(names) in err
    if case.said and not case.line.startswith("pat create"):
        assert out == ""


@pytest.mark.parametrize("output", ["json", "jsonl", "csv"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.line)
def test_for_programs(case: Case, output: str, cli: Cli, server: RunningServer, names: dict[str, str]) -> None:
    code, out, err = call(cli, server, case.line, names, "-o", output)
    assert (code, err) == (0, "")
    match output:
        case "json":
            document = json.loads(out)
            record = document[0] if isinstance(document, list) else document
            assert case.key in record
        case "jsonl":
            records = [json.loads(line) for line in out.splitlines()]
            assert all(case.key in record for record in records if record.get("topic", "") is not None)
        case _:
            rows = list(csv.DictReader(io.StringIO(out)))
            assert rows
            # What belongs to a thing is in its JSON only.
            assert case.key in rows[0] or case.key in (
                "topics",
                "partitions",
                "deletions",
                "damages",
                "groups",
                "permissions",
                "parts",
            )


@pytest.mark.parametrize(("line", "code", "first", "second"), FAILURES, ids=[failure[0] for failure in FAILURES])
def test_when_it_fails(
    line: str, code: int, first: str, second: str, cli: Cli, server: RunningServer, names: dict[str, str]
) -> None:
    found, out, err = call(cli, server, line, names)
    lines = err.splitlines()
    assert (found, out) == (code, ""), err
    assert lines[-2].startswith("error: ")
    assert lines[-1].startswith("hint:  ")
    assert first.format_map(names) in err
    assert second.format_map(names) in err
    assert "wrong" not in err.replace("unknown user or wrong password", "")


def test_no_command_is_left_out() -> None:
    everything = {" ".join(path) for path, _ in commands()}
    shown = {path for path in everything for case in CASES if f"{case.line} ".startswith(f"{path} ")}
    failed = {path for path in everything for line, *_ in FAILURES if f"{line} ".startswith(f"{path} ")}
    assert everything - shown == ELSEWHERE
    assert everything - failed == ELSEWHERE - {"client get", "snapshot"}


def test_one_client(cli: Cli) -> None:
    me = json.loads(cli("me", "-o", "json").out)
    assert json.loads(cli("client", "list", "-o", "json").out)[0].keys() == me.keys() - {"groups"}


def test_a_snapshot_is_a_zip_file(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("snapshots")
    result = cli("snapshot", "--snapshot-types", "server_config", "--out-dir", directory, "-o", "json")
    record = json.loads(result.out)
    (path,) = directory.iterdir()
    assert record == {"path": str(path), "size": path.stat().st_size}
    assert path.read_bytes()[:2] == b"PK"
    assert cli("snapshot", "--snapshot-types", "nonsense").code == 2


def test_a_default_without_a_limit_is_no_number(cli: Cli) -> None:
    defaults = {option["key"]: option["default"] for option in json.loads(cli("options", "-o", "json").out)}
    assert (defaults["message_expiry"], defaults["max_topic_size"], defaults["segment_size"]) == (None, None, 2**30)
    (line,) = [line for line in cli("options").out.splitlines() if line.startswith("message_expiry")]
    assert line.split()[1:3] == ["no", "limit"]
