"""``courser topic``, ``stream`` and ``partition``: create, show and change topics; show what they are part of."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import click
from msgspec.structs import asdict

from courser.api.replies import StreamInfo
from courser.cli.columns import columns_of
from courser.cli.connecting import ask_server
from courser.cli.failures import ExitCode, Failure
from courser.cli.fields import Record
from courser.cli.naming import PARTITION, TopicPath, Word, stream_argument, topic_argument
from courser.cli.output import Section, emit_deed, emit_list, emit_thing
from courser.cli.quantity_words import COMPRESSION, OptionChoice, Quantity, expiry_of
from courser.cli.server_options import server_command
from courser.cli.topic_records import (
    MAINTENANCE_SECTIONS,
    PARTITION_FIELDS,
    SETTING_FIELDS,
    TOPIC_FIELDS,
    bounds_by_partition,
    durability_record,
    maintenance_record,
    partition_records,
    topic_record,
)
from courser.client.client import Client
from courser.model.setting_kinds import quoted
from courser.model.topic_options import TOPIC_OPTIONS, ChangeableTopicSettings, TopicOption, TopicSettings

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


_FLAGS: dict[str, str | None] = {
    "compression_algorithm": None,
    "keep_latest_by_key": "--keep-latest-by-key/--keep-all",
    "message_expiry": "--expiry",
}
"""Flags that have another name than their option. The algorithm is an argument."""
_METAVARS = {"duration": "TIME", "size": "SIZE", "count": "COUNT"}


def _flag(option: TopicOption) -> Callable[[_Function], _Function] | None:
    name = _FLAGS.get(option.name, f"--{option.name.replace('_', '-')}")
    if name is None or not option.has_effect:
        return None
    if option.kind.name == "flag" and "/" not in name:
        name = f"{name}/--no-{name[2:]}"
    examples = f" For example {' or '.join(map(quoted, option.kind.examples))}." if option.kind.examples else ""
    fixed = "" if option.is_changeable else " Cannot be changed later."
    return click.option(
        name,
        option.name,
        type=_type(option),
        default=None,
        metavar=_METAVARS.get(option.kind.name),
        help=option.sentence + examples + fixed,
    )


def _type(option: TopicOption) -> click.ParamType[Any] | None:
    match option.kind.name:
        case "flag":
            return None
        case "count":
            return click.IntRange(min=option.low)
        case "choice":
            return OptionChoice(option.kind)
    return Quantity(option.kind.name, option.kind.parse)


def _option_flags(*, is_update: bool) -> Callable[[_Function], _Function]:
    """The flags of all options that a new topic may have, or that can be changed."""

    def add(function: _Function) -> _Function:
        for option in reversed([*TOPIC_OPTIONS.values()]):
            flag = _flag(option)
            if flag is not None and (option.is_changeable or not is_update):
                function = flag(function)
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
@_option_flags(is_update=False)
def create_command(
    *,
    place: TopicPath,
    partitions: int | None,
    compression: str | None,
    expiry: tuple[str, ...],
    output: str,
    **settings: object,
) -> None:
    """Create a topic, by default with one partition. Other settings default to those of the server."""
    name = str(place.topic)
    wanted = _settings(settings, compression, expiry)
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
@_option_flags(is_update=True)
def update_command(
    *,
    place: TopicPath,
    new_name: str | None,
    compression: str | None,
    expiry: tuple[str, ...],
    output: str,
    **settings: object,
) -> None:
    """Change a topic's name or settings. Settings that are not given stay unchanged.

    The segment size and the sync settings cannot be changed after a topic is created.
    """
    # Only settings that can be changed have flags.
    wanted = cast("ChangeableTopicSettings", _settings(settings, compression, expiry))
    if new_name is None and not wanted:
        raise click.UsageError("nothing to change: pass a NEW_NAME or an option")

    async def ask(client: Client) -> Record:
        await client.update_topic(*place.names, new_name, **wanted)
        return topic_record((await client.get_topic(place.stream, new_name or place.topic)).topic)

    emit_deed(f'changed topic "{place}"', ask_server(ask, place), output)


def _settings(flags: dict[str, object], compression: str | None, expiry: tuple[str, ...]) -> TopicSettings:
    settings = {name: value for name, value in flags.items() if value is not None}
    if compression is not None:
        settings["compression_algorithm"] = compression
    if expiry:
        settings.setdefault("message_expiry", expiry_of(expiry))
    # Each flag is named after its option.
    return cast("TopicSettings", settings)


# --- streams ---


@server_command("get", "courser stream get demo", "courser s g 0 -o json")
@stream_argument()
def stream_get_command(*, place: TopicPath, output: str) -> None:
    """Show one stream and its topics."""
    details = ask_server(lambda client: client.get_stream(place.stream), place)
    record = {**asdict(details.stream), "topics": [topic_record(topic) for topic in details.topics]}
    emit_thing(columns_of(StreamInfo), record, output, [Section("topics", TOPIC_FIELDS)])


@server_command("create", "courser stream create demo")
@click.argument("name")
def stream_create_command(*, name: str, output: str) -> None:
    """Create a stream."""
    if "/" in name:
        # The server would accept the name, but no command could refer to it as one word.
        raise Failure(f'"{name}" is the name of a topic', f"courser topic create {name} creates it", ExitCode.USAGE)
    stream = ask_server(lambda client: client.create_stream(name))
    emit_deed(f'created stream "{name}" with id {stream.stream_id}', asdict(stream), output)


# --- partitions ---


@server_command("list", "courser partition list demo/orders")
@topic_argument()
def partition_list_command(*, place: TopicPath, output: str) -> None:
    """List the partitions of a topic and their offsets."""

    async def ask(client: Client) -> list[Record]:
        details = await client.get_topic(*place.names)
        bounds = await bounds_by_partition(client, place)
        return partition_records(details.partitions, bounds)

    empty = f"no partitions; add one with courser partition create {place} 1"
    emit_list(PARTITION_FIELDS, ask_server(ask, place), output, empty=empty)


@server_command("get", "courser partition get demo/orders 0")
@topic_argument(PARTITION)
def partition_get_command(*, place: TopicPath, output: str) -> None:
    """Show one partition: its offsets, what was deleted from it and which messages are damaged."""
    partition_id = place.partition_id or 0

    async def ask(client: Client) -> Record:
        # First: it names a partition that does not exist.
        await client.get_segments(*place.names, partition_id)
        details = await client.get_topic(*place.names)
        records = partition_records(details.partitions, await bounds_by_partition(client, place))
        maintenance = await client.get_topic_maintenance(*place.names)
        (record,) = (record for record in records if record["partition_id"] == partition_id)
        return {**record, **maintenance_record(maintenance, partition_id)}

    emit_thing(PARTITION_FIELDS, ask_server(ask, place), output, MAINTENANCE_SECTIONS)
