"""Verbs that are one request: the tree has a row for each, and the rest follows from the command that it sends.

The fields of the command are the arguments, and their types are checked. The reply is shown in its columns.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, get_type_hints

import click
from msgspec.structs import asdict

from courser.api import commands
from courser.api.replies import Reply
from courser.api.table import Command
from courser.cli.columns import columns_of, item_of
from courser.cli.connecting import ask_server
from courser.cli.lazy import Verb, completed_by
from courser.cli.naming import TopicPath, Word, identifier, sought, stream_argument, topic_argument
from courser.cli.options import yes_option
from courser.cli.output import Section, emit_deed, emit_list, emit_thing
from courser.cli.server_options import server_command
from courser.cli.terminal import confirm
from courser.model.identifiers import Identifier

_PLACE = ("stream", "topic", "partition_id")
_COMPLETIONS = {"user": "complete_user"}


def request_command(name: str, verb: Verb) -> click.Command:
    kind: type[Command] = getattr(commands, verb.command)
    # What only a client of a program would choose has a default.
    names = kind.__struct_fields__[: len(kind.__struct_fields__) - len(kind.__struct_defaults__)]
    hints = get_type_hints(kind)
    words = {field: _word(field, hints[field], verb) for field in names if field not in _PLACE[:2]}

    def run(*, output: str, place: TopicPath | None = None, is_confirmed: bool = True, **given: Any) -> None:
        typed = {field: given[word.name] for field, word in words.items() if word.name in given}
        values: dict[str, Any] = {
            field: getattr(place, field) if field in _PLACE else _value(typed[field], hints[field]) for field in names
        }
        texts = {**values, **typed, "place": place}
        if verb.confirm:
            confirm(verb.confirm.format(**texts), is_confirmed=is_confirmed)
        missing = {verb.sought.get(field, field): values[field] for field in typed}
        reply = ask_server(lambda client: client.request(kind(**values)), place, sought(**missing))
        if verb.done:
            record = _effect(verb, values) if reply is None else _thing(reply)
            emit_deed(verb.done.format(**record | texts), record, output)
        else:
            assert reply is not None
            _show(reply, output, also=verb.also, empty=verb.empty.format(**texts))

    run.__doc__ = verb.help
    function = yes_option(run) if verb.confirm else run
    if "stream" in names:
        place_argument = topic_argument if "topic" in names else stream_argument
        function = place_argument(*words.values())(function)
    else:
        for field, word in reversed(words.items()):
            completion = completed_by(_COMPLETIONS[field]) if field in _COMPLETIONS else None
            argument = click.argument(word.name, metavar=word.metavar, type=word.kind, shell_complete=completion)
            function = argument(function)
    return server_command(name, *verb.examples)(function)


def _word(field: str, hint: object, verb: Verb) -> Word:
    low = 1 if field == "count" else 0
    return Word(verb.words.get(field, field), click.IntRange(min=low) if hint is int else click.STRING)


def _value(value: Any, hint: object) -> Any:
    return identifier(value) if hint == Identifier else value


def _effect(verb: Verb, values: Mapping[str, Any]) -> dict[str, object]:
    """What was done, for programs: the command, and what it has done to how many or at all."""
    record = dict(values)
    if verb.effect:
        record[verb.effect] = record.pop("count", True)
    return record


def _record(part: Reply) -> dict[str, object]:
    return {name: value.name.lower() if isinstance(value, Enum) else value for name, value in asdict(part).items()}


def _thing(reply: Reply) -> dict[str, object]:
    """A reply that describes one thing: its own fields, or those of its first part."""
    first = getattr(reply, reply.__struct_fields__[0])
    return _record(first if isinstance(first, Reply) else reply)


def _show(reply: Reply, output: str, *, also: tuple[str, ...], empty: str) -> None:
    kind = type(reply)
    items = {name: item for name, hint in get_type_hints(kind).items() if (item := item_of(hint)) is not None}
    lists = {name: [_record(part) for part in getattr(reply, name)] for name in items}
    first = getattr(reply, kind.__struct_fields__[0])
    if items and not isinstance(first, Reply):
        ((name, item),) = items.items()
        others = {field: getattr(reply, field) for field in also}
        emit_list(columns_of(item), ({**record, **others} for record in lists[name]), output, empty=empty)
        return
    sections = [Section(name, columns_of(item)) for name, item in items.items()]
    emit_thing(columns_of(type(first) if items else kind), {**_thing(reply), **lists}, output, sections)
