"""Verbs that are one request: each row of the tree fits the command that it names."""

import json
import string
from collections.abc import Iterator

import click
import pytest

from courser.api import commands
from courser.api import replies as r
from courser.api.table import Command
from courser.cli import requests
from courser.cli.columns import columns_of
from courser.cli.lazy import LazyGroup, Verb
from courser.cli.tree import root
from courser.model.messaging import Transport


def verbs(group: LazyGroup = root) -> Iterator[tuple[str, Verb]]:
    for name, entry in group.entries.items():
        if isinstance(entry, Verb):
            yield f"{group.name} {name}", entry
        elif isinstance(entry, LazyGroup):
            yield from verbs(entry)


VERBS = dict(verbs())


@pytest.mark.parametrize("name", VERBS)
def test_a_row_fits_its_command(name: str) -> None:
    verb = VERBS[name]
    kind: type[Command] = getattr(commands, verb.command)
    known = {*kind.__struct_fields__, "place"}
    assert {*verb.words, *verb.sought} <= known
    reply = kind.row.reply
    assert (reply is None) <= bool(verb.done), "a command that only says that it was carried out is reported"
    if reply is not None:
        known |= {field for part in (reply, *r.Reply.__subclasses__()) for field in part.__struct_fields__}
    for text in (verb.confirm, verb.done, verb.empty):
        assert {field for _, field, _, _ in string.Formatter().parse(text) if field} <= known
    assert verb.in_short.endswith(".")
    assert verb.in_short.count(".") == 1


class AnsweredOnce:
    """A client whose server knows one answer."""

    def __init__(self, reply: r.Reply | None) -> None:
        self.reply = reply
        self.asked: list[Command] = []

    def ask(self, action: object, *_: object) -> r.Reply | None:
        assert callable(action)
        action(self)
        return self.reply

    def request(self, command: Command) -> None:
        self.asked.append(command)


def run(
    verb: Verb, reply: r.Reply | None, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[list[Command], dict[str, object]]:
    client = AnsweredOnce(reply)
    monkeypatch.setattr(requests, "ask_server", client.ask)
    written: list[str] = []
    monkeypatch.setattr("courser.cli.output.write", written.append)
    requests.request_command("new", verb).main([*arguments, "-o", "json"], standalone_mode=False)
    return client.asked, json.loads("".join(written))


def test_arguments_follow_from_the_fields_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, _ = run(Verb("GetClient", "Show it.", ()), details(), monkeypatch, "7")
    assert asked == [commands.GetClient(7)]
    verb = Verb("GetSegments", "List them.", ())
    for arguments, problem in (
        (["demo"], "missing TOPIC"),
        (["demo/orders"], "missing PARTITION"),
        (["demo/orders", "x"], 'PARTITION: "x" is not|PARTITION: .x. is not'),
        (["demo/orders", "0", "1"], "unexpected word: 1"),
    ):
        with pytest.raises(click.UsageError, match=problem):
            run(verb, None, monkeypatch, *arguments)


def details() -> r.ClientDetails:
    transport = next(iter(Transport))
    return r.ClientDetails(r.ClientInfo(7, None, transport, "here", 1), [r.ClientGroup(1, 2, 3)])


def test_a_reply_with_parts_is_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, shown = run(Verb("GetMe", "Show it.", ()), details(), monkeypatch)
    assert shown["client_id"] == 7
    assert shown["groups"] == [{"stream_id": 1, "topic_id": 2, "group_id": 3}]


def test_an_effect_counts_or_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Verb("CreatePartitions", "Add some.", (), done="added {count}", effect="created")
    asked, shown = run(added, None, monkeypatch, "demo/orders", "3")
    assert asked == [commands.CreatePartitions("demo", "orders", 3)]
    assert shown == {"stream": "demo", "topic": "orders", "created": 3}
    purged = Verb("PurgeTopic", "Purge it.", (), confirm="purge {place}", done="purged {place}", effect="purged")
    asked, shown = run(purged, None, monkeypatch, "1", "orders", "--yes")
    assert asked == [commands.PurgeTopic(1, "orders")]
    assert shown == {"stream": 1, "topic": "orders", "purged": True}


def test_columns_follow_from_the_fields_of_a_reply() -> None:
    fields = {field.key: field for field in columns_of(r.PartitionInfo)}
    assert set(fields) == set(r.PartitionInfo.__struct_fields__)
    assert fields["size"].text(2**20) == "1.0 MB"
    assert fields["message_count"].is_number
    assert not fields["created_at"].is_number
