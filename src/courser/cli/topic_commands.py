"""``courser topic``: create, show, change, purge and delete topics."""

from collections.abc import Callable
from typing import TypeVar, cast

import click

from courser.cli.bounds import bounds_by_partition
from courser.cli.connecting import ask_server
from courser.cli.naming import TopicPath, Word, stream_argument, topic_argument
from courser.cli.quantity_words import BYTE_SIZE, COMPRESSION, DURABILITY, EXPIRY, TOPIC_SIZE, expiry_of
from courser.cli.records import Record, Section, emit_deed, emit_list, emit_thing
from courser.cli.server_options import server_command, yes_option
from courser.cli.terminal import confirm
from courser.cli.topic_records import (
    MAINTENANCE_SECTIONS,
    PARTITION_FIELDS,
    SETTING_FIELDS,
    TOPIC_FIELDS,
    durability_record,
    maintenance_record,
    partition_records,
    topic_record,
)
from courser.client.administration import ChangeableTopicSettings, TopicSettings
from courser.client.client import Client

_Function = TypeVar("_Function", bound=Callable[..., object])


@server_command("list", "courser topic list demo", "courser t l demo -o csv")
@stream_argument()
def list_command(*, place: TopicPath, output: str) -> None:
    """List the topics of a stream."""
    topics = ask_server(lambda client: client.get_topics(place.stream), place)
    empty = f"no topics yet; create one with courser topic create {place}/NAME"
    emit_list(TOPIC_FIELDS, map(topic_record, topics), output, empty=empty)


@server_command("get", "courser topic get demo/orders", "courser topic get demo orders -o json")
@topic_argument()
def get_command(*, place: TopicPath, output: str) -> None:
    """Show one topic: its settings, its partitions, what was deleted from it and what is damaged.

    The last deletions since the server started are listed, each with its reason: expired, size (of the topic),
    requested (by a client), purged, or pressure (too little free disk space). The log of the server has all of them.

    The durability is what this server does: written, bounded or synced. The requested durability is what the client
    that created or updated the topic asked for, in Iggy's words.
    """
    sections = [Section("partitions", PARTITION_FIELDS), *MAINTENANCE_SECTIONS]
    emit_thing((*TOPIC_FIELDS, *SETTING_FIELDS), _whole(place), output, sections)


def _whole(place: TopicPath) -> Record:
    async def ask(client: Client) -> Record:
        details = await client.get_topic(*place.names)
        bounds = await bounds_by_partition(client, place)
        return {
            **topic_record(details.topic),
            **durability_record(await client.get_topic_durability(*place.names)),
            "partitions": partition_records(details.partitions, bounds),
            **maintenance_record(await client.get_topic_maintenance(*place.names)),
        }

    return ask_server(ask, place)


_CHANGEABLE_OPTIONS = (
    click.option(
        "--expiry", "expiry_option", type=EXPIRY, metavar="TIME", help='How long messages are kept: "7 days", "none".'
    ),
    click.option(
        "--max-topic-size",
        type=TOPIC_SIZE,
        metavar="SIZE",
        help='The maximum size of all partitions: "10 GiB", "unlimited".',
    ),
    click.option(
        "--durability",
        type=DURABILITY,
        help="synced: sends are acknowledged after a sync. default: the level of the server.",
    ),
    click.option(
        "--consumer-offset-durability",
        type=DURABILITY,
        help="The same for stored offsets.",
    ),
    click.option(
        "--keep-latest-by-key/--keep-all",
        "keep_latest_by_key",
        default=None,
        help="Whether to remove messages once a newer one with the same key is stored.",
    ),
    click.option(
        "--local-retention-time",
        type=EXPIRY,
        metavar="TIME",
        help='How long the server keeps archived messages on its own disk: "1 day", "none".',
    ),
    click.option(
        "--local-retention-size",
        type=TOPIC_SIZE,
        metavar="SIZE",
        help='How much of them it keeps there, over all partitions: "10 GiB", "unlimited".',
    ),
)
_FIXED = "Cannot be changed later."
_FIXED_OPTIONS = (
    click.option(
        "--segment-size", type=BYTE_SIZE, metavar="SIZE", help=f'The size of a segment file: "256 MiB". {_FIXED}'
    ),
    click.option(
        "--enforce-fsync/--no-enforce-fsync",
        default=None,
        help=f"Whether to sync messages of this topic. {_FIXED}",
    ),
    click.option(
        "--messages-required-to-save",
        type=click.IntRange(min=1),
        metavar="COUNT",
        help=f"With fsync: how many messages a power cut may lose. {_FIXED}",
    ),
)


def _options(*options: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


_CREATE_WORDS = (
    Word("partitions", click.IntRange(0, 1000), is_required=False),
    Word("compression", COMPRESSION, is_required=False),
    Word("expiry", takes_all=True, is_required=False),
)


@server_command(
    "create",
    "courser topic create demo/orders",
    "courser topic create demo/orders 3 none 7 days",
    'courser topic create demo orders 3 --max-topic-size "10 GiB"',
)
@topic_argument(*_CREATE_WORDS)
@_options(*_CHANGEABLE_OPTIONS, *_FIXED_OPTIONS)
def create_command(
    *,
    place: TopicPath,
    partitions: int | None,
    compression: str | None,
    expiry: tuple[str, ...],
    expiry_option: int | None,
    output: str,
    **settings: object,
) -> None:
    """Create a topic, by default with one partition. Other settings default to those of the server."""
    name = str(place.topic)
    wanted = _settings(settings, compression, expiry, expiry_option)
    count = 1 if partitions is None else partitions
    details = ask_server(
        lambda client: client.create_topic(place.stream, name, count, **wanted), TopicPath(place.stream)
    )
    sentence = f'created topic "{place.stream}/{name}" with id {details.topic.topic_id} and {count} partitions'
    emit_deed(sentence.replace(" 1 partitions", " 1 partition"), topic_record(details.topic), output)


@server_command(
    "update",
    "courser topic update demo/orders --expiry 7d",
    "courser topic update demo/orders invoices none 15days",
)
@topic_argument(
    Word("new_name", is_required=False),
    Word("compression", COMPRESSION, is_required=False),
    Word("expiry", takes_all=True, is_required=False),
)
@_options(*_CHANGEABLE_OPTIONS)
def update_command(
    *,
    place: TopicPath,
    new_name: str | None,
    compression: str | None,
    expiry: tuple[str, ...],
    expiry_option: int | None,
    output: str,
    **settings: object,
) -> None:
    """Change a topic's name or settings. Settings that are not given stay unchanged.

    The segment size and the sync settings cannot be changed after a topic is created.
    """
    # Only settings that can be changed have options.
    wanted = cast("ChangeableTopicSettings", _settings(settings, compression, expiry, expiry_option))
    if new_name is None and not wanted:
        raise click.UsageError("nothing to change: pass a NEW_NAME or an option")

    async def ask(client: Client) -> Record:
        await client.update_topic(*place.names, new_name, **wanted)
        return topic_record((await client.get_topic(place.stream, new_name or place.topic)).topic)

    emit_deed(f'changed topic "{place}"', ask_server(ask, place), output)


def _settings(
    options: dict[str, object], compression: str | None, expiry: tuple[str, ...], expiry_option: int | None
) -> TopicSettings:
    settings = TopicSettings()
    given = {name: value for name, value in options.items() if value is not None}
    settings.update(given)  # type: ignore[typeddict-item]  # the options are named after its keys
    if compression is not None:
        settings["compression_algorithm"] = compression
    if expiry_option is not None or expiry:
        settings["message_expiry"] = expiry_option if expiry_option is not None else expiry_of(expiry)
    return settings


@server_command("delete", "courser topic delete demo/orders --yes")
@topic_argument()
@yes_option
def delete_command(*, place: TopicPath, is_confirmed: bool, output: str) -> None:
    """Delete a topic with all its messages. This cannot be undone."""
    confirm(f'delete topic "{place}" with all its messages', is_confirmed=is_confirmed)
    ask_server(lambda client: client.delete_topic(*place.names), place)
    emit_deed(f'deleted topic "{place}"', {"stream": place.stream, "topic": place.topic, "deleted": True}, output)


@server_command("purge", "courser topic purge demo/orders --yes")
@topic_argument()
@yes_option
def purge_command(*, place: TopicPath, is_confirmed: bool, output: str) -> None:
    """Delete all messages of a topic and its stored offsets. Offsets are not reused."""
    confirm(f'delete all messages of topic "{place}"', is_confirmed=is_confirmed)
    ask_server(lambda client: client.purge_topic(*place.names), place)
    emit_deed(f'purged topic "{place}"', {"stream": place.stream, "topic": place.topic, "purged": True}, output)
