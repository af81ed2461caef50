"""Messages in and out of pipes: keys and headers of each message, JSON lines, whole files."""

import json
from pathlib import Path
from struct import pack

import click
import pytest

from courser.cli.message_lines import MESSAGE_FIELDS, message_of_line, message_record
from courser.cli.output import RecordWriter
from courser.cli.payloads import header_texts
from courser.client.messages import Headers, Message, write_headers
from courser.records.user_headers import HeaderKind, UserHeader
from tests.cli.commands import Cli, courser
from tests.servers import RunningServer


@pytest.fixture
def topic(stream: str, cli: Cli) -> str:
    assert cli("topic", "create", f"{stream}/wide", 3).code == 0
    return f"{stream}/wide"


def records(cli: Cli, topic: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in cli("tail", topic, "--from", "earliest", "-o", "jsonl").out.splitlines()]


def message(payload: bytes, headers: Headers | None = None, key: bytes | None = None) -> Message:
    return Message(payload, 7, 2, 1_000, 900, 2**127 + 5, write_headers(headers, key))


def line_of(subject: Message, capsys: pytest.CaptureFixture[str]) -> str:
    RecordWriter(MESSAGE_FIELDS, "jsonl").put(message_record(subject, "auto", "jsonl"))
    return capsys.readouterr().out


# --- a line of JSON has everything ---


@pytest.mark.parametrize(
    ("payload", "encoding"),
    [
        (b"", "text"),
        (b"hello", "text"),
        ("grün\u009b".encode(), "text"),
        (b"\xff\x00", "hex"),
        (b"17", "text"),
        (b'"quoted"', "text"),
        (b'{"b" : 1.0e5,  "a":[1, 2]}', "json"),
        ('{"colour": "grün", "twice": 1, "twice": 2}'.encode(), "json"),
        (b'{"big": 123456789012345678901234567890}', "json"),
        (b'[{"a": null}]', "json"),
        (b'{\n  "n": 1\n}\n', "text"),
        (b' {"n": 1}', "text"),
        (b'{"n": NaN}', "text"),
        (b'{"n": "\xff"}', "hex"),
        (b"[" * 100_000, "text"),
    ],
)
def test_every_payload_survives_a_line(payload: bytes, encoding: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = line_of(message(payload), capsys)
    assert json.loads(line)["payload_encoding"] == encoding
    assert message_of_line(line.encode(), 1).payload == payload


def test_keys_headers_ids_and_times_survive_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    headers: Headers = {
        "text": "grün",
        "flag": False,
        "number": -5,
        "huge": 2**100,
        "float": 5.0,
        "raw": b"\x00\xff",
        "infinite": float("inf"),
        "float32": UserHeader(b"float32", pack("<f", 0.1), value_kind=HeaderKind.FLOAT32),
        "uint8": UserHeader(b"uint8", b"\x07", value_kind=HeaderKind.UINT8),
        "digits": UserHeader(b"digits", b"7", value_kind=HeaderKind.STRING),
        "-3": UserHeader(b"\xfd\xff", b"value", HeaderKind.INT16, HeaderKind.STRING),
        "beef": UserHeader(b"\xbe\xef", b"\x01", HeaderKind.RAW, HeaderKind.BOOL),
    }
    subject = message(b"x", headers, b"\xffkey")
    back = message_of_line(line_of(subject, capsys).encode(), 1)
    assert isinstance(back.key, bytes)
    assert write_headers(back.headers, back.key) == subject.raw_headers
    assert (back.id, back.timestamp) == (subject.id, subject.origin_timestamp)


def test_a_line_needs_only_a_payload() -> None:
    assert message_of_line(b'{"payload": "text"}', 1).payload == b"text"
    assert message_of_line(b'{"payload": {"n" : 1}}', 1).payload == b'{"n" : 1}'
    assert message_of_line(b'{"payload": 17}', 1).payload == b"17"
    assert message_of_line(b'{"payload": "text", "payload_encoding": "json"}', 1).payload == b'"text"'
    assert message_of_line(b'{"payload": "", "key": "k", "headers": {"a": 1}}', 1).headers == {"a": 1}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"hello", "message 3 is not a message in JSON"),
        (b"[1]", "Expected `object`"),
        (b'{"key": "k"}', "missing required field `payload`"),
        (b'{"payload": "x", "header": {}}', "unknown field `header`"),
        (b'{"payload": 17, "payload_encoding": "text"}', "a payload in text must be a string"),
        (b'{"payload": "zz", "payload_encoding": "hex"}', "hexadecimal"),
        (b'{"payload": {"n": "\xff"}}', "utf-8"),
        (b'{"payload": "x", "key": 7}', "Expected `str | null`"),
        (b'{"payload": "x", "headers": {"a": [1]}}', "$.headers"),
        (b'{"payload": "x", "headers": {"a": 300}, "header_kinds": {"a": "uint8"}}', "is not of kind uint8"),
        (b'{"payload": "x", "headers": {"a": 1}, "header_kinds": {"a": "unit8"}}', "kinds are raw, string"),
        (b'{"payload": "x", "id": "7"}', "Invalid UUID"),
    ],
)
def test_what_is_no_message(line: bytes, problem: str) -> None:
    with pytest.raises(click.UsageError, match="message 3") as caught:
        message_of_line(line, 3)
    assert problem in caught.value.message


# --- send ---


def test_a_topic_copied_through_a_pipe_is_the_same(topic: str, stream: str, cli: Cli) -> None:
    cli("send", topic, "-K", ":", "-H", "n:uint8:7", "ann:paid", 'bob:{"n": 1}', "ann:" + "ü")
    cli("send", topic, "--as", "hex", "00ff", "-H", "source=shop")
    lines = courser("tail", topic, "--from", "earliest", "-o", "jsonl").stdout
    copied = courser("send", f"{stream}/copy", "--create", "--partitions", 2, "-i", "jsonl", stdin=f"{lines}\n")
    assert copied.returncode == 0, copied.stderr

    def contents(place: str) -> list[dict[str, object]]:
        where = ("partition_id", "offset", "timestamp")
        kept = [{name: value for name, value in record.items() if name not in where} for record in records(cli, place)]
        return sorted(kept, key=lambda record: str(record["id"]))

    assert contents(f"{stream}/copy") == contents(topic)
    assert len(contents(topic)) == 4


def test_each_message_has_its_own_key(topic: str, cli: Cli) -> None:
    names = ["ann", "bob", "cid", "dan", "eve"]
    words = [f"{name}\t{number}\t" for number in range(4) for name in names]
    result = cli("send", topic, "-K", r"\t", *words, "-o", "jsonl")
    assert sum(json.loads(line)["message_count"] for line in result.out.splitlines()) == 20
    stored = records(cli, topic)
    for name in names:
        mine = [record for record in stored if record["key"] == name]
        assert [record["payload"] for record in mine] == ["0\t", "1\t", "2\t", "3\t"]
        assert len({record["partition_id"] for record in mine}) == 1
        # The same partition that the server chooses.
        (row,) = map(json.loads, cli("send", topic, "x", "--key", name, "-o", "jsonl").out.splitlines())
        assert row["partition_id"] == mine[0]["partition_id"]
    assert len({record["partition_id"] for record in stored}) > 1


def test_a_user_who_may_only_send(topic: str, cli: Cli) -> None:
    """Who may not look at the topic does not know its partitions: the server chooses them."""
    name = topic.partition("/")[0]
    assert cli("user", "create", name, "secret", "-g", "s_msg").code == 0
    login = ["--user", name, "--password", "secret"]
    assert cli("topic", "get", topic, *login).code == 4
    assert cli("send", topic, *login, "-K", ":", "ann:1", "bob:2", "ann:3").code == 0
    assert cli("send", topic, *login, "without a key").code == 0
    stored = records(cli, topic)
    assert [record["payload"] for record in stored if record["key"] == "ann"] == ["1", "3"]
    assert len({record["partition_id"] for record in stored if record["key"] == "ann"}) == 1
    assert len(stored) == 4


def test_messages_without_a_key_use_all_partitions(topic: str, cli: Cli) -> None:
    lines = "\n".join(map(str, range(3000)))
    assert courser("send", topic, stdin=lines).stderr == f"sent 3000 messages to {topic}\n"
    assert {record["partition_id"] for record in records(cli, topic)} == {0, 1, 2}


def test_creation_times_far_apart(topic: str, cli: Cli) -> None:
    lines = [json.dumps({"payload": "x", "key": "k", "origin_timestamp": year * 10**13}) for year in range(5)]
    assert cli("send", topic, "-i", "jsonl", *lines).code == 0
    assert [record["origin_timestamp"] for record in records(cli, topic)] == [year * 10**13 for year in range(5)]


def test_a_file_is_one_message(topic: str, tmp_path: Path, cli: Cli) -> None:
    image = bytes(range(256)) * 10 + b"\n"
    path = tmp_path / "image"
    path.write_bytes(image)
    assert cli("send", topic, "--file", path, "--key", "k", "-H", "type=image").code == 0
    assert courser("send", topic, "--file", "-", "--key", "k", stdin=image).returncode == 0
    stored = records(cli, topic)
    assert [bytes.fromhex(str(record["payload"])) for record in stored] == [image, image]
    assert stored[0]["headers"] == {"type": "image"}
    missing = cli("send", topic, "--file", tmp_path / "nothing")
    assert (missing.code, missing.err.splitlines()[0]) == (
        1,
        f"error: cannot read {tmp_path}/nothing: No such file or directory",
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-K", ":", "no separator"], 'message 1 has no key before ":"'),
        (["-K", ":", "a:b", ":empty"], 'message 2 has no key before ":"'),
        (["-K", "", "x"], "the separator must not be empty"),
        (["-K", ":", "--key", "k", "a:b"], "--key and --key-separator cannot be combined"),
        (["-K", ":", "--partition", "0", "a:b"], "--key-separator and --partition cannot be combined"),
        (["--file", "/dev/null", "word"], "--file and MESSAGES cannot be combined"),
        (["--file", "/dev/null", "-i", "jsonl"], "--input jsonl and --file cannot be combined"),
        (["-i", "jsonl", "--as", "hex", "{}"], "--input jsonl and --as cannot be combined"),
        (["-i", "jsonl", '{"payload": "x"}', "{"], "message 2 is not a message in JSON"),
    ],
)
def test_what_cannot_be_sent(arguments: list[str], problem: str, topic: str, cli: Cli) -> None:
    result = cli("send", topic, *arguments)
    assert (result.code, problem in result.err) == (2, True), result.err
    assert cli("tail", topic).out == ""


def test_nothing_to_send_creates_nothing(stream: str, cli: Cli) -> None:
    assert courser("send", f"{stream}/new", "--create", "-i", "jsonl", stdin="\n\n").returncode == 0
    assert cli("topic", "get", f"{stream}/new").code == 5


# --- messages that are too large ---


def test_what_no_server_accepts_is_not_read_to_its_end(topic: str, tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(10**12)
    result = cli("send", topic, "--file", path)
    assert (result.code, result.out) == (1, "")
    limit = "and the protocol allows 67,108,864 in one request"
    assert result.err.splitlines() == [
        f"error: {path} has 1,000,000,000,000 bytes, {limit}",
        "hint:  split the data, or store it elsewhere and send a reference to it",
    ]
    endless = cli("send", topic, "--file", "/dev/zero")
    assert endless.err.startswith(f"error: the start of /dev/zero has 67,108,865 bytes, {limit}")
    line = courser("send", topic, stdin=b"first\n" + bytes(64 * 1024 * 1024 + 1))
    assert line.returncode == 1
    assert line.stderr.splitlines()[0].startswith("sent 1 message")
    assert line.stderr.splitlines()[1].startswith("error: the start of a line of stdin has 67,")


def test_a_message_above_the_limit_of_the_server(tmp_path: Path, cli: Cli) -> None:
    with RunningServer(tmp_path, settings={"tcp.frame_size_max": "64 KiB"}) as server:
        target = ["--url", f"iggy://iggy:iggy@{server.address}"]
        result = cli("send", *target, "demo/orders", "--create", "before", "x" * 70_000, "after")
        assert result.code == 1
        *_, sent, error, hint = result.err.splitlines()
        assert sent == "sent 1 message to demo/orders, partition 0, offset 0"
        assert error.startswith("error: the message has 70,")
        assert error.endswith(" bytes, and the server's setting tcp.frame_size_max allows 65,536 in one request")
        assert hint.startswith("hint:  raise tcp.frame_size_max on the server, or split the data")
        assert cli("tail", *target, "demo/orders", "--raw").out == "before\n"


# --- tail ---


def test_json_appears_as_json(topic: str, cli: Cli) -> None:
    cli("send", topic, '{"n": 1}', "--partition", 0)
    cli("send", topic, '[\n"ü"\n]', "--partition", 0)
    cli("send", topic, "17", "--partition", 0)
    shown = [
        (record["payload"], record["payload_encoding"]) for record in json.loads(cli("tail", topic, "-o", "json").out)
    ]
    assert shown == [({"n": 1}, "json"), (["ü"], "json"), ("17", "text")]
    assert [record["payload"] for record in records(cli, topic)] == [{"n": 1}, '[\n"ü"\n]', "17"]
    as_json = [
        json.loads(line)["payload"] for line in cli("tail", topic, "-o", "jsonl", "--as", "json").out.splitlines()
    ]
    assert as_json == [{"n": 1}, ["ü"], 17]
    as_text = [
        json.loads(line)["payload"] for line in cli("tail", topic, "-o", "jsonl", "--as", "text").out.splitlines()
    ]
    assert as_text == ['{"n": 1}', '[\n"ü"\n]', "17"]


# --- headers for people ---


def test_bytes_of_headers_are_text_if_they_can_be_read() -> None:
    headers: Headers = {"reason": b"no JSON", "colour": "grün".encode(), "raw": b"\xff\x00", "bell": b"\x07", "n": 7}
    shown = ["reason=no JSON", "colour=grün", "raw=0xff00", "bell=0x07", "n=7"]
    assert header_texts(message(b"", headers)) == shown
