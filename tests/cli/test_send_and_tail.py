"""``courser send`` and ``courser tail``: pipes in and out, where to begin, where to end."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from courser.cli.message_printing import moment_text
from tests.cli.commands import Cli, courser, start
from tests.servers import RunningServer


@pytest.fixture
def topic(stream: str) -> str:
    return f"{stream}/orders"


def payloads(out: str) -> list[str]:
    return [record["payload"] for record in map(json.loads, out.splitlines())]


# --- send ---


def test_lines_of_stdin_are_messages(topic: str) -> None:
    result = courser("send", topic, stdin="one\ntwo\r\n\nlast without an end")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == f"sent 4 messages to {topic}, partition 0, offsets 0 to 3\n"
    assert courser("tail", topic, "--raw").stdout == "one\ntwo\n\nlast without an end\n"


def test_a_file_larger_than_a_batch(topic: str, cli: Cli) -> None:
    lines = [f"line {number} {'x' * (number % 700)}" for number in range(5000)]
    result = courser("send", topic, "-o", "jsonl", stdin="\n".join(lines))
    batches = [json.loads(line) for line in result.stdout.splitlines()]
    assert sum(batch["message_count"] for batch in batches) == 5000
    assert len(batches) > 1
    assert courser("tail", topic, "--from", "earliest", "--raw").stdout.splitlines() == lines


def test_a_line_larger_than_what_is_read_at_once(topic: str) -> None:
    line = "0123456789" * 300_000
    assert courser("send", topic, stdin=f"{line}\nx\n").returncode == 0
    assert courser("tail", topic, "--raw").stdout == f"{line}\nx\n"


def test_an_empty_stdin_is_no_message(topic: str) -> None:
    result = courser("send", topic)
    assert (result.returncode, result.stderr) == (0, "nothing to send: stdin was empty\n")


def test_lines_are_sent_as_they_come(topic: str) -> None:
    with start("send", topic, "-o", "jsonl", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for offset in range(3):
            process.stdin.write(f"message {offset}\n")
            process.stdin.flush()
            # Acknowledged while stdin is still open.
            assert json.loads(process.stdout.readline())["base_offset"] == offset
        process.stdin.close()
        assert process.wait(60) == 0


def test_create_makes_what_is_missing_once(stream: str, cli: Cli) -> None:
    place = f"{stream}new/things"
    first = cli("send", place, "a", "--create", "--partitions", "3")
    assert first.code == 0
    assert first.err.splitlines()[:2] == [f'created stream "{stream}new"', f'created topic "{place}"']
    second = cli("send", place, "b", "--create")
    assert (second.code, "created" in second.err) == (0, False)
    assert json.loads(cli("topic", "get", place, "-o", "json").out)["partition_count"] == 3


def test_keys_and_headers_travel_with_messages(topic: str, cli: Cli) -> None:
    headers = [
        "--header",
        "source=shop",
        "-H",
        "n:uint8:7",
        "-H",
        "f:float32:0.5",
        "-H",
        "ok:bool:true",
        "-H",
        "r:raw:ab",
    ]
    assert cli("send", topic, "paid", "--key", "customer-7", *headers).code == 0
    record = json.loads(cli("tail", topic, "-o", "json").out)[0]
    assert record["key"] == "customer-7"
    assert record["headers"] == {"source": "shop", "n": 7, "f": 0.5, "ok": True, "r": "6162"}
    line = cli("tail", topic, "--headers").out
    assert "[customer-7]  paid  source=shop  n=7  f=0.5  ok=True  r=ab" in line


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--as", "json", "{"], "message 1 is not JSON"),
        (["--as", "hex", "12", "zz"], "message 2 is not hexadecimal digits"),
        (["-H", "nonsense", "x"], "key=value or key:kind:value"),
        (["-H", "a:uint8:300", "x"], "is not of kind uint8"),
        (["-H", "a:strnig:b", "x"], "kinds are raw, string"),
        (["-H", "a:bool:perhaps", "x"], "is not of kind bool"),
    ],
)
def test_what_cannot_be_sent(arguments: list[str], problem: str, topic: str, cli: Cli) -> None:
    result = cli("send", topic, *arguments)
    assert result.code == 2
    assert problem in result.err
    assert cli("tail", topic).out == ""


def test_bytes_as_hexadecimal_digits(topic: str, cli: Cli) -> None:
    assert cli("send", topic, "--as", "hex", "00ff10", "0x4869").code == 0
    assert [line.split()[-1] for line in cli("tail", topic).out.splitlines()] == ["0x00ff10", "Hi"]
    records = json.loads(cli("tail", topic, "-o", "json").out)
    assert [(record["payload"], record["payload_encoding"]) for record in records] == [
        ("00ff10", "hex"),
        ("Hi", "text"),
    ]


# --- tail ---


@pytest.fixture
def ten(topic: str, cli: Cli) -> str:
    for number in range(4):
        assert cli("send", topic, *(str(number * 5 + part) for part in range(5))).code == 0
    return topic


def numbers(cli: Cli, *arguments: object) -> list[int]:
    result = cli("tail", *arguments, "-o", "jsonl")
    assert result.code == 0, result.err
    return [int(json.loads(line)["payload"]) for line in result.out.splitlines()]


def test_where_reading_begins(ten: str, cli: Cli) -> None:
    assert numbers(cli, ten) == list(range(10, 20))
    assert numbers(cli, ten, "--from", "earliest") == list(range(20))
    assert numbers(cli, ten, "--from", "17") == [17, 18, 19]
    assert numbers(cli, ten, "--from", "20") == []
    assert numbers(cli, ten, "--from", "1000") == []
    assert numbers(cli, ten, "--last", "3") == [17, 18, 19]
    assert numbers(cli, ten, "--last", "300") == list(range(20))
    assert numbers(cli, ten, "--from", "latest", "--exit-at-end") == []
    assert numbers(cli, ten, "--from", "1h") == list(range(20))
    assert numbers(cli, ten, "--from", "2000-01-01") == list(range(20))
    assert numbers(cli, ten, "--from", "2100-01-01T00:00:00Z") == []
    assert numbers(cli, ten, "--from", "earliest", "--limit", "7") == list(range(7))


def test_reading_from_the_time_of_a_message(ten: str, cli: Cli) -> None:
    records = [json.loads(line) for line in cli("tail", ten, "--from", "earliest", "-o", "jsonl").out.splitlines()]
    moment = records[10]["timestamp"]
    text = f"{moment_text(moment).replace(' ', 'T')}{moment % 1000:03d}"
    assert numbers(cli, ten, "--from", text) == [
        number for number in range(20) if records[number]["timestamp"] >= moment
    ]


def test_several_partitions_are_merged_by_time(stream: str, cli: Cli) -> None:
    place = f"{stream}/wide"
    assert cli("topic", "create", place, 3).code == 0
    for number in range(12):
        assert cli("send", place, number, "--partition", number % 3).code == 0
    assert numbers(cli, place, "--from", "earliest") == list(range(12))
    assert numbers(cli, place, "--last", "5") == [7, 8, 9, 10, 11]
    assert numbers(cli, place, "--partition", "1", "--from", "earliest") == [1, 4, 7, 10]
    assert cli("tail", place, "--last", "1").out.startswith("2:3  ")


def test_lines_for_people_and_templates(topic: str, cli: Cli) -> None:
    cli("send", topic, '{"n": 1}', "two\nlines \x1b[31m")
    first, second = cli("tail", topic).out.splitlines()
    assert first.split("  ")[0] == "0"
    assert first.endswith('  {"n": 1}')
    assert second.endswith(r"  two\nlines \x1b[31m")
    assert (
        cli("tail", topic, "--last", "1", "--format", r"{offset}\t{payload}|{key}").out == "1\ttwo\nlines \x1b[31m|\n"
    )
    assert json.loads(cli("tail", topic, "--as", "json", "-o", "jsonl").out.splitlines()[0])["payload"] == {"n": 1}
    assert cli("tail", topic, "--limit", "1", "--as", "hex").out.strip().endswith("0x7b226e223a20317d")
    assert courser("tail", topic, "--raw").stdout == '{"n": 1}\ntwo\nlines \x1b[31m\n'


def test_csv_has_a_line_of_names(topic: str, cli: Cli) -> None:
    assert cli("tail", topic, "-o", "csv").out.startswith("partition_id,offset,")
    cli("send", topic, 'a,"b"')
    assert cli("tail", topic, "-o", "csv").out.splitlines()[1].endswith(',{},"a,""b""",text')


@pytest.mark.parametrize("partition_count", [1, 2])
def test_following_shows_what_arrives(stream: str, cli: Cli, partition_count: int) -> None:
    place = f"{stream}/live"
    assert cli("topic", "create", place, partition_count).code == 0
    assert cli("send", place, "0", "--partition", 0).code == 0
    with start("tail", place, "--follow", "--from", "earliest", "-o", "jsonl") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["payload"] == "0"
        for number in range(1, 5):
            assert cli("send", place, number, "--partition", number % partition_count).code == 0
            assert json.loads(process.stdout.readline())["payload"] == str(number)
        process.terminate()


def test_following_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    with server:
        url = f"iggy://iggy:iggy@{server.address}"
        assert courser("-u", url, "send", "demo/orders", "before", "--create").returncode == 0
        with start("-u", url, "tail", "demo/orders", "-f", "--format", "{offset} {payload}") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "0 before\n"
            server.kill()
            server.start()
            assert courser("-u", url, "send", "demo/orders", "after").returncode == 0
            assert process.stdout.readline() == "1 after\n"
            process.terminate()


def test_a_group_goes_on_where_it_stopped(ten: str, cli: Cli) -> None:
    assert cli("consumer-group", "create", ten, "readers").code == 0
    assert numbers(cli, ten, "--group", "readers") == list(range(20))
    assert numbers(cli, ten, "--group", "readers") == []
    assert cli("send", ten, "20").code == 0
    assert numbers(cli, ten, "--group", "readers", "--exit-at-end") == [20]
    assert json.loads(cli("ls", ten, "-o", "json").out)["groups"][0]["lag"] == 0
    assert cli("consumer-offset", "set", "readers", ten, 0, 4, "-k", "consumer-group").code == 0
    assert json.loads(cli("ls", ten, "-o", "json").out)["groups"][0]["lag"] == 16
    assert numbers(cli, ten, "--group", "readers") == list(range(5, 21))


def test_a_limit_commits_what_was_printed_and_no_more(ten: str, cli: Cli) -> None:
    assert cli("consumer-group", "create", ten, "readers").code == 0
    assert numbers(cli, ten, "--group", "readers", "--limit", 3) == [0, 1, 2]
    assert json.loads(cli("ls", ten, "-o", "json").out)["groups"][0]["lag"] == 17
    assert numbers(cli, ten, "--group", "readers", "--limit", 1) == [3]
    assert numbers(cli, ten, "--group", "readers", "--follow", "--limit", 16) == list(range(4, 20))
    assert json.loads(cli("ls", ten, "-o", "json").out)["groups"][0]["lag"] == 0


def test_where_nothing_is_to_be_read_it_says_so(topic: str, cli: Cli) -> None:
    def said(*options: object) -> str:
        result = cli("tail", topic, *options)
        assert (result.code, result.out) == (0, "")
        return result.err

    assert said() == f"no messages in {topic}\n"
    cli("send", topic, "a")
    cli("consumer-group", "create", topic, "readers")
    assert cli("tail", topic, "--group", "readers", "--raw").out == "a\n"
    assert said("--group", "readers") == f'no messages in {topic} for group "readers"\n'
    assert said("--from", 1) == f"no messages in {topic} from this position on\n"
    assert cli("tail", topic).err == ""


def test_an_interrupt_leaves_nothing_printed_uncommitted(ten: str, cli: Cli) -> None:
    assert cli("consumer-group", "create", ten, "readers").code == 0
    with start("tail", ten, "--group", "readers", "--follow") as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(20)]
        # At this moment it may just be committing them.
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert len(printed) == 20
    assert json.loads(cli("ls", ten, "-o", "json").out)["groups"][0]["lag"] == 0


def test_the_offset_of_a_group_with_members_is_theirs(ten: str, cli: Cli) -> None:
    assert cli("consumer-group", "create", ten, "readers").code == 0
    with start("tail", ten, "--group", "readers", "--follow") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        result = cli("consumer-offset", "set", "readers", ten, 0, 4, "-k", "consumer-group")
        assert (result.code, "has members" in result.err, "stop its members" in result.err) == (1, True, True)
        process.terminate()


def test_from_one_topic_into_another(ten: str, stream: str) -> None:
    copied = courser("tail", ten, "--from", "earliest", "--raw")
    assert courser("send", f"{stream}/copy", "--create", stdin=copied.stdout).returncode == 0
    assert courser("tail", f"{stream}/copy", "--from", "earliest", "--raw").stdout == copied.stdout


def test_a_topic_without_partitions(stream: str, cli: Cli) -> None:
    assert cli("topic", "create", f"{stream}/none", 0).code == 0
    result = cli("tail", f"{stream}/none")
    assert (result.code, f"courser partition create {stream}/none 1" in result.err) == (5, True)
    assert cli("send", f"{stream}/none", "x").code == 5


def test_words_that_are_no_text(stream: str, cli: Cli) -> None:
    assert courser("send", f"{stream}/orders", "\udcff").returncode == 0
    assert courser("tail", f"{stream}/orders", "--format", "{payload}").stdout == "0xff\n"
    result = cli("stream", "create", "\udcff")
    assert (result.code, "not valid UTF-8" in result.err) == (2, True)


def test_limits_of_keys_are_explained(topic: str, cli: Cli) -> None:
    result = cli("send", topic, "x", "--key", "k" * 300)
    assert (result.code, "255" in result.err) == (1, True)
    assert result.err.splitlines()[-1] == "hint:  for usage, run courser send --help"
