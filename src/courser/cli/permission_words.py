"""Permissions in the syntax of the Iggy CLI: ``p_msg,s_msg`` globally, ``3:r_str#1:s_msg`` for a stream and its topics.

Each permission has a long name, that of the SDKs, and a short one. Streams and topics are given by id, as the server
stores them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import click
import msgspec

from courser.cli.failures import closest
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions

Level = TypeVar("Level", bound=GlobalPermissions | StreamPermissions | TopicPermissions)

_SHORT_NOUNS = {
    "servers": "srv",
    "users": "usr",
    "streams": "str",
    "stream": "str",
    "topics": "top",
    "topic": "top",
    "messages": "msg",
}


def parse_permissions(everywhere: str | None, streams: Sequence[str]) -> Permissions | None:
    """Parse the options; None if none is given.

    Raises:
        click.UsageError: a word is not a permission, or not an id.
    """
    if everywhere is None and not streams:
        return None
    return Permissions(
        parse_level(GlobalPermissions, everywhere or ""),
        dict(_stream(text) for text in streams),
    )


def _stream(text: str) -> tuple[int, StreamPermissions]:
    first, *topics = text.split("#")
    stream_id, words = _id_and_words("stream", first)
    permissions = parse_level(StreamPermissions, words)
    granted = {}
    for topic in topics:
        topic_id, topic_words = _id_and_words("topic", topic)
        granted[topic_id] = parse_level(TopicPermissions, topic_words)
    return stream_id, msgspec.structs.replace(permissions, topics=granted)


def _id_and_words(kind: str, text: str) -> tuple[int, str]:
    number, _, words = text.partition(":")
    if not (number.isascii() and number.isdigit()):
        raise click.UsageError(f'a {kind} id must be a number, not "{number[:40]}" (courser ls -o json shows ids)')
    return int(number), words


def parse_level(kind: type[Level], text: str, other_words: Iterable[str] = ()) -> Level:
    """Parse the permissions of one level. ``other_words`` are known to the caller, and mentioned in errors.

    Raises:
        click.UsageError: a word is not a permission.
    """
    short = _short_names(kind)
    granted = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name = short.get(word, word)
        if name not in short.values():
            alike = closest(word, [*other_words, *short, *short.values()])
            known = ", ".join([*other_words, *short.values()])
            meant = f'; did you mean "{alike}"?' if alike else f"; known are {known}"
            raise click.UsageError(f'unknown permission "{word[:40]}"{meant}')
        granted[name] = True
    return msgspec.convert([granted.get(name, False) for name in short.values()], kind)


def _short_names(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The permissions of a level by short name: the first letter of the verb, and the noun."""
    named = (name for name in kind.__struct_fields__ if name != "topics")
    return {f"{name[0]}_{_SHORT_NOUNS[name.partition('_')[2]]}": name for name in named}


def permission_names(level: msgspec.Struct) -> list[str]:
    return [name for name in level.__struct_fields__ if getattr(level, name) is True]


def permissions_record(permissions: Permissions | None) -> dict[str, object] | None:
    """All permissions as a record for JSON."""
    if permissions is None:
        return None
    return {
        "global": permission_names(permissions.everywhere),
        "streams": {
            str(stream_id): {
                "permissions": permission_names(stream),
                "topics": {str(topic_id): permission_names(topic) for topic_id, topic in stream.topics.items()},
            }
            for stream_id, stream in permissions.streams.items()
        },
    }


Names = Mapping[tuple[int, int | None], str]
"""The names of streams, and of topics as ``stream/topic``, by id."""


def permission_rows(permissions: Permissions | None, names: Names) -> list[dict[str, object]]:
    """All permissions, one row for each level that has some."""
    if permissions is None:
        return []
    rows: list[dict[str, object]] = [
        {"where": "everywhere", "permissions": permission_names(permissions.everywhere)},
    ]
    for stream_id, stream in permissions.streams.items():
        name = names.get((stream_id, None), f"stream {stream_id}")
        rows.append({"where": name, "permissions": permission_names(stream)})
        rows += [
            {
                "where": names.get((stream_id, topic_id), f"stream {stream_id}, topic {topic_id}"),
                "permissions": permission_names(topic),
            }
            for topic_id, topic in stream.topics.items()
        ]
    return [row for row in rows if row["permissions"]]
